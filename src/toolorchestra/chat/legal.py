"""A policy that plays random legal moves over any tools: a baseline, and the writer of warm-up demonstrations.

A move is legal when the tool may be called now and its required arguments can be drawn from its schema (`enum`,
`examples`, boolean, bounded integer, or an object of these). A tool that ends the rollout may be called once there is a
result; any other until there are `max_calls` results. It shows how to call, not what to call.
In: tool specs. Out: calls, uniform over legal tools, then over the values of each required argument.
Source: project.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from toolorchestra.pricing import Usage
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Message, ToolCall, ToolSpec

Think = Callable[[Sequence[Message], Sequence[ToolSpec], ToolCall, Random], str]
"""Writes the thinking before a move, given what was said, what is on offer, the move, and where to draw from."""


class RandomLegal:
    """Plays uniformly random legal moves; deterministic in its seed, the sampling's seed and the turn.

    Args:
        seed: of the moves.
        name: what reports call it.
        max_calls: after so many tool results it submits.
        think: writes the thinking before each move.
    """

    def __init__(self, seed: int, name: str = "random", max_calls: int = 3, think: Think | None = None) -> None:
        self.name = name
        self._seed = seed
        self._max_calls = max_calls
        self._think = think

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Make a random legal move, or say that there is none."""
        luck = Random(f"{self._seed}:{sampling.seed}:{sampling.attempt}:{len(messages)}")
        results = sum(message.role == "tool" for message in messages)
        legal = [tool for tool in tools if _can_fill(tool.parameters) and self._may_call(tool, results)]
        if not legal:
            return Completion(Message("assistant", "I cannot act."), "stop", Usage(), self.name)
        tool = luck.choice(legal)
        call = ToolCall("call_0", tool.name, _fill(tool.parameters, luck))
        thinking = self._think(messages, tools, call, luck) if self._think else ""
        return Completion(Message("assistant", "", thinking, (call,)), "stop", Usage(), self.name)

    def _may_call(self, tool: ToolSpec, results: int) -> bool:
        return results > 0 if tool.ends else results < self._max_calls


def _can_fill(schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties", {})
    return all(name in properties and _can_draw(properties[name]) for name in schema.get("required", ()))


def _fill(schema: Mapping[str, Any], luck: Random) -> dict[str, Any]:
    return {name: _draw(schema["properties"][name], luck) for name in schema.get("required", ())}


def _can_draw(schema: Mapping[str, Any]) -> bool:
    return bool(_choices(schema)) or (_is_object(schema) and _can_fill(schema))


def _draw(schema: Mapping[str, Any], luck: Random) -> Any:
    choices = _choices(schema)
    if isinstance(choices, range):  # which may be longer than `len` can say
        return luck.randrange(choices.start, choices.stop)
    return luck.choice(choices) if choices else _fill(schema, luck)


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and "enum" not in schema


def _choices(schema: Mapping[str, Any]) -> Sequence[Any]:
    if "enum" in schema or schema.get("examples"):
        return schema["enum"] if "enum" in schema else schema["examples"]
    if schema.get("type") == "boolean":
        return (False, True)
    if schema.get("type") == "integer" and "minimum" in schema and "maximum" in schema:
        return range(math.ceil(schema["minimum"]), math.floor(schema["maximum"]) + 1)
    return ()
