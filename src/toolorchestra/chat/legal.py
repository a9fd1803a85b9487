"""A policy that plays random legal moves over any tools: a baseline, and the writer of warm-up demonstrations.

A move is legal when the tool may be called now and its required arguments can be drawn from its schema (`enum`,
`examples`, boolean, bounded integer). It shows how to call, not what to call.
In: tool specs. Out: calls, uniform over tools, then over arguments.
Source: project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from toolorchestra.pricing import Usage
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Message, ToolCall, ToolSpec

Think = Callable[[Sequence[Message], Sequence[ToolSpec]], str]


class RandomLegal:
    """Plays uniformly random legal moves; deterministic in its seed, the sampling's seed and the turn.

    Args:
        seed: of the moves.
        name: what reports call it.
        max_calls: after so many tool results it submits.
        think: writes the thinking of the first turn.
    """

    def __init__(self, seed: int, name: str = "random", max_calls: int = 3, think: Think | None = None) -> None:
        self.name = name
        self._seed = seed
        self._max_calls = max_calls
        self._think = think

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Make a random legal move."""
        luck = Random(f"{self._seed}:{sampling.seed}:{sampling.attempt}:{len(messages)}")
        results = sum(message.role == "tool" for message in messages)
        legal = [tool for tool in tools if _can_fill(tool.parameters) and self._may_call(tool, results)]
        if not legal:
            return Completion(Message("assistant", "I cannot act."), "stop", Usage(), self.name)
        tool = luck.choice(legal)
        thinking = self._think(messages, tools) if self._think and not results else ""
        call = ToolCall("call_0", tool.name, _fill(tool.parameters, luck))
        return Completion(Message("assistant", "", thinking, (call,)), "stop", Usage(), self.name)

    def _may_call(self, tool: ToolSpec, results: int) -> bool:
        return results > 0 if tool.ends else results < self._max_calls


def _can_fill(schema: Mapping[str, Any]) -> bool:
    return all(_choices(schema["properties"][name]) for name in schema.get("required", ()))


def _fill(schema: Mapping[str, Any], luck: Random) -> dict[str, Any]:
    return {name: luck.choice(_choices(schema["properties"][name])) for name in schema.get("required", ())}


def _choices(schema: Mapping[str, Any]) -> Sequence[Any]:
    if schema.get("enum") or schema.get("examples"):
        return schema.get("enum") or schema["examples"]
    if schema.get("type") == "boolean":
        return (False, True)
    if schema.get("type") == "integer" and "minimum" in schema and "maximum" in schema:
        return range(schema["minimum"], schema["maximum"] + 1)
    return ()
