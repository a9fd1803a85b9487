"""The Python interpreter as a tool.

In: the policy's code, and the task's text as the variable `task`. Out: what was printed, or why it failed; both cost
the same, and both are for the policy to act on. The code runs in a `Sandbox`.
Source: arXiv 2511.21689, app. C (price of a second).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolorchestra.errors import ConfigError, ToolError
from toolorchestra.pricing import Price, bill
from toolorchestra.protocols import View
from toolorchestra.tools.sandbox import RunResult, Sandbox
from toolorchestra.types import Observation, ToolSpec

_DESCRIPTION = "Runs Python code. The variable `task` holds the task's text. What the code prints comes back."


class PythonTool:
    """Runs the policy's code in a sandbox.

    Args:
        sandbox: where it runs; entered and left by the caller.
        examples: code that the schema shows as examples.
        price: what a call costs.
        typical_latency_s: seconds of a call, as shown.
        virtual: charge `typical_latency_s`, so that a record can be repeated to the byte; else the measured seconds.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        examples: Sequence[str] = (),
        price: Price = Price(usd_per_s=8.3e-6),
        typical_latency_s: float = 0.1,
        virtual: bool = True,
    ) -> None:
        self._sandbox = sandbox
        self._price = price
        self._virtual = virtual
        self._spec = ToolSpec("python", _DESCRIPTION, _parameters(examples), (), price, typical_latency_s)

    @property
    def spec(self) -> ToolSpec:
        """What the policy sees."""
        return self._spec

    async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
        """Run `arguments["code"]`. Code that fails, or runs out of time or memory, is observed and billed as well.

        Raises:
            ToolError: the sandbox cannot start.
        """
        try:
            result = await self._sandbox.run(arguments["code"], {"task": view.task.instruction})
        except ConfigError as error:
            raise ToolError(str(error)) from error
        latency_s = self._spec.typical_latency_s if self._virtual else result.seconds
        usage = bill(self._price, latency_s=latency_s)
        return Observation("python", "code", _content(result), usage=usage, failed=bool(result.error))


def _parameters(examples: Sequence[str]) -> dict[str, Any]:
    code: dict[str, Any] = {"type": "string", "description": "Python 3 code; standard library only"}
    if examples:
        code["examples"] = list(examples)
    return {"type": "object", "properties": {"code": code}, "required": ["code"], "additionalProperties": False}


def _content(result: RunResult) -> str:
    """Write output, then error, without the line ends around them."""
    return "\n".join(part for part in (result.output.rstrip("\n"), result.error) if part) or "(nothing was printed)"
