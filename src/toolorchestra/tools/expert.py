"""Experts as a tool: the policy names one, it answers the task with what was gathered so far.

The `Expert` that the description shows is the object that is billed.
In: an alias. Out: an answer with its tokens, dollars and seconds.
Source: arXiv 2511.21689, sec. 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolorchestra.errors import ConfigError, ModelError, ToolError
from toolorchestra.pricing import bill
from toolorchestra.prompts import expert_messages
from toolorchestra.protocols import ChatModel, Sampling, View
from toolorchestra.types import Expert, Observation, ToolSpec

NAME = "ask"


def expert_spec(experts: Sequence[Expert]) -> ToolSpec:
    """Describe the tool that reaches these experts."""
    properties = {
        "expert": {"type": "string", "enum": [e.alias for e in experts], "description": "who is asked"},
        "question": {"type": "string", "description": "what is asked; the task itself when left out"},
    }
    schema = {"type": "object", "properties": properties, "required": ["expert"], "additionalProperties": False}
    return ToolSpec(NAME, "an expert answers the task with what was gathered so far", schema, tuple(experts))


class ExpertTool:
    """Asks one of several experts.

    Args:
        experts: who is on offer, as shown.
        models: the model behind each, by `Expert.model`.

    Raises:
        ConfigError: nobody is on offer, an alias is empty or used twice, or an expert has no model.
    """

    def __init__(self, experts: Sequence[Expert], models: Mapping[str, ChatModel]) -> None:
        aliases = [e.alias for e in experts]
        if not experts or not all(a.strip() for a in aliases) or len(set(aliases)) < len(aliases):
            raise ConfigError("the offer needs at least one expert, each with an alias of its own")
        for expert in experts:
            if expert.model not in models:
                raise ConfigError(f"expert {expert.alias}: there is no model '{expert.model}'")
        self.spec = expert_spec(experts)
        self._experts = {e.alias: e for e in experts}
        self._models = models

    async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
        """Ask the named expert.

        Raises:
            ToolError: there is no such expert, or it gave no answer.
        """
        expert = self._experts.get(arguments["expert"])
        if expert is None:
            raise ToolError(f"There is no expert '{arguments['expert']}'. The experts are: {', '.join(self._experts)}.")
        source = f"{NAME}:{expert.alias}"
        gathered = [o for o in view.observations if o.kind != "error"]
        messages = expert_messages(str(arguments.get("question") or "").strip() or view.task.instruction, gathered)
        attempt = sum(o.source == source for o in gathered)
        try:
            completion = await self._models[expert.model].complete(messages, (), Sampling(attempt=attempt))
        except ModelError as error:
            raise ToolError(f"Expert '{expert.alias}' gave no answer: {error}") from error
        used = completion.usage
        usage = bill(expert.price, used.input_tok, used.output_tok, used.cached_tok, used.latency_s)
        return Observation(source, "answer", completion.message.content, usage=usage, simulated=expert.simulated)
