"""What a policy wrote, as a message: thinking, text, calls, and warnings about what was odd.

    <think>reasoning</think> text <tool_call>{"name": "ask", "arguments": {"expert": "amber"}}</tool_call>

Total: any text gives a message, never an exception. A call inside the thinking is a quotation and never runs. A call that
cannot be read becomes a `ToolCall` with `error`, so that the policy is told, and takes nothing from its neighbours.
In: text. Out: a message. One parser for training, evaluation and serving.
Source: project; the form is the one that Hermes and Qwen models use.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from toolorchestra.types import Message, ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_FORM = 'write <tool_call>{"name": "…", "arguments": {…}}</tool_call>'
_MAX_DEPTH = 64
_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda name: _refuse(name))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def parse_message(text: str) -> tuple[Message, tuple[str, ...]]:
    """Read the text of an assistant turn; returns the message and warnings."""
    warnings: list[str] = []
    reasoning, spoken = _split_thinking(_scrub(text), warnings)
    content, calls = _split_calls(spoken, warnings)
    return Message("assistant", content.strip(), reasoning.strip(), tuple(calls)), tuple(warnings)


def _scrub(text: str) -> str:
    """Replace lone surrogates, which no file and no wire can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _split_thinking(text: str, warnings: list[str]) -> tuple[str, str]:
    thoughts: list[str] = []
    spoken: list[str] = []
    rest = text
    while True:
        before, opened, inside = rest.partition(_THINK)
        spoken.append(before)
        if not opened:
            break
        thought, closed, rest = inside.partition(_THOUGHT)
        thoughts.append(thought)
        if not closed:
            warnings.append("the thinking was never closed, so everything after it counts as thinking")
            break
    return "\n".join(thoughts), "".join(spoken)


def _split_calls(text: str, warnings: list[str]) -> tuple[str, list[ToolCall]]:
    """Cut the calls out of the text, left to right."""
    kept: list[str] = []
    calls: list[ToolCall] = []
    while _OPEN in text:
        before, _, inside = text.partition(_OPEN)
        kept.append(before)
        call, text = _read_call(inside, f"call_{len(calls)}", warnings)
        calls.append(call)
    kept.append(text.replace(_CLOSE, ""))
    return "".join(kept), calls


def _read_call(inside: str, call_id: str, warnings: list[str]) -> tuple[ToolCall, str]:
    """Read one call behind its opening tag; returns it and the text that follows its closing tag."""
    body = inside.lstrip()
    while body.startswith(_OPEN):
        warnings.append("a call was opened twice")
        body = body[len(_OPEN) :].lstrip()
    try:
        value, end = _DECODER.raw_decode(body)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(":")[0] or type(error).__name__
        wrong, rest = _skip(body)
        return ToolCall(call_id, _guess_name(wrong), error=f"The call is not valid JSON ({reason}); {_FORM}."), rest
    extra, rest = _skip(body[end:])
    if extra.strip():
        warnings.append(f"text inside a call was ignored: {extra.strip()[:60]!r}")
    return _as_call(value, call_id), rest


def _skip(text: str) -> tuple[str, str]:
    """Split at the closing tag, or before the next call where that comes first."""
    close, following = text.find(_CLOSE), text.find(_OPEN)
    if close < 0 and following < 0:
        return text, ""
    if close < 0 or 0 <= following < close and "\n" in text[:following]:
        return text[:following], text[following:]
    nested = text[:close].replace(_OPEN, "")
    return nested, text[close + len(_CLOSE) :]


def _guess_name(body: str) -> str:
    found = re.search(r'"name"\s*:\s*"([^"\\]{1,64})"', body)
    return found[1] if found else ""


def _as_call(value: Any, call_id: str) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
        return ToolCall(call_id, "", error=f"The call names no tool; {_FORM}.")
    name = value["name"].strip()
    arguments = _unwrap(value.get("arguments", {}))
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolCall(call_id, name, error=f"The arguments of '{name}' must be a JSON object; {_FORM}.")
    if not _is_storable(arguments, _MAX_DEPTH):
        return ToolCall(call_id, name, error=f"The arguments of '{name}' are nested too deeply or hold no number.")
    return ToolCall(call_id, name, _scrub_value(arguments))


def _unwrap(value: Any) -> Any:
    """Decode arguments that were encoded as a string, once or twice."""
    for _ in range(2):
        if not isinstance(value, str):
            return value
        try:
            value = _DECODER.decode(value)
        except (ValueError, RecursionError):
            return value
    return value


def _is_storable(value: Any, depth: int) -> bool:
    if depth == 0 or isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, Mapping):
        return all(_is_storable(item, depth - 1) for item in value.values())
    return not isinstance(value, list) or all(_is_storable(item, depth - 1) for item in value)


def _scrub_value(value: Any) -> Any:
    """Replace lone surrogates, which JSON escapes can spell, anywhere in a value."""
    if isinstance(value, str):
        return _scrub(value)
    if isinstance(value, dict):
        return {_scrub(key): _scrub_value(item) for key, item in value.items()}
    return [_scrub_value(item) for item in value] if isinstance(value, list) else value


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call in its canonical form."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{_OPEN}{body}{_CLOSE}"


def render_message(message: Message) -> str:
    """Write an assistant message; `parse_message` reads it back where its texts hold no tags and no outer white space."""
    thought = f"{_THINK}{message.reasoning}{_THOUGHT}" if message.reasoning else ""
    calls = "".join(render_call(call.name, call.arguments) for call in message.tool_calls)
    return thought + message.content + calls
