"""The final answer as a call: the latest result, so that a policy need not copy it, or the policy's own words.

Passages that were found are material for an answer and no result.

In: an optional answer. Out: the observation that ends the rollout.
Source: arXiv 2511.21689, sec. 3.1 (an expert's answer can be the final one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolorchestra.errors import ToolError
from toolorchestra.protocols import View
from toolorchestra.types import Observation, ToolSpec

_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "the answer; the latest result when left out"}},
    "additionalProperties": False,
}


class SubmitTool:
    """Gives the final answer and ends the rollout."""

    def __init__(self) -> None:
        self.spec = ToolSpec("submit", "gives the final answer, by default the latest result", _SCHEMA, ends=True)

    async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
        """Submit the given answer or the latest result.

        Raises:
            ToolError: there is neither.
        """
        results = [o.content for o in view.observations if o.is_result and o.kind != "document"]
        answer = str(arguments.get("answer") or "").strip() or (results[-1] if results else "")
        if not answer.strip():
            raise ToolError("There is nothing to submit yet. Call another tool first, or give the answer yourself.")
        return Observation("submit", "answer", answer.strip())
