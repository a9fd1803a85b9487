"""Text of an assistant turn to a message and back, where calls are bare JSON, as Llama 3 writes them.

The form is `<think>…</think>`, then text and any number of `{"name": …, "parameters": {…}}`, on lines of their own or
parted by semicolons. Reading is total, as in `parse`. No tags mark a call, so these rules decide:

- An object with which the turn begins, or that follows thinking or another call, is a call, whatever it holds.
- Elsewhere an object is a call if it begins a line or follows a semicolon or an object, and its first key is `name` or
  `type`.
- A call's JSON ends with its closing brace. One that cannot be read takes all up to the next object of the second rule.
- What may be thinking does not run: an unclosed `<think>` takes the rest, a lone `</think>` all that came before.

In: text. Out: a message whose calls are named call_0, call_1, …, and warnings about what was odd.
Source: project; the form is that of the Llama 3.1 model card's JSON tool calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from toolorchestra.chat.calls import (
    MAX_CALLS,
    SURROGATE,
    CallKeys,
    read_call,
    too_many_calls,
    write_call,
)
from toolorchestra.types import Message, ToolCall

KEYS = CallKeys(("parameters", "arguments"), frozenset({"type"}))

_THINK, _END_THINK = "<think>", "</think>"
_AT_ONCE = re.compile(r"(?:[\s\[]|<\|python_tag\|>)*+(?=\{)")
_LATER = re.compile(
    r"</?think>"
    r'|(?:^|;[ \t]*+|(?<=\})[ \t]?+)(?:\[|<\|python_tag\|>)*+(?=\{\s*+"(?:name|type)"\s*+:)',
    re.MULTILINE,
)
_BETWEEN = re.compile(r"[\s;,\]]*+")


def render_message(message: Message) -> str:
    """Write an assistant message: its reasoning, its content, its calls.

    `parse_message` gives the message back on the terms of `parse.render_message`, if the content also has no brace.
    """
    thinking = f"{_THINK}{message.reasoning}{_END_THINK}" if message.reasoning else ""
    calls = "; ".join(write_call(call.name, call.arguments, KEYS) for call in message.tool_calls)
    return thinking + message.content + ("\n" if message.content and calls else "") + calls


def parse_message(text: str) -> tuple[Message, tuple[str, ...]]:
    """Read an assistant turn; never raises.

    Returns:
        The message, and a sentence for each kind of thing that was odd.
    """
    clean = SURROGATE.sub("\ufffd", text)
    reader = _Reader(clean)
    if clean != text:
        reader.warnings.append("Characters that are no text (lone surrogates) were replaced.")
    return reader.read(), tuple(dict.fromkeys(reader.warnings))


@dataclass(slots=True)
class _Reader:
    """Reads one text from left to right."""

    text: str
    lead: int = 0  # so much at the text's beginning was thinking without an opening tag
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def read(self) -> Message:
        at, at_once = 0, True
        while len(self.calls) <= MAX_CALLS:
            found = _AT_ONCE.match(self.text, at) if at_once else None
            found = found or _LATER.search(self.text, at)
            if found is None:
                self.content.append(self.text[at:])
                break
            self.content.append(self.text[at : found.start()])
            at, at_once = self._take(found)
        else:
            self.calls = [too_many_calls(KEYS)]
        lead = self.text[: self.lead].replace(_THINK, "").replace(_END_THINK, "")
        calls = tuple(replace(call, id=f"call_{n}") for n, call in enumerate(self.calls))
        return Message("assistant", _joined(self.content), _joined([lead, *self.reasoning]), calls)

    def _take(self, found: re.Match[str]) -> tuple[int, bool]:
        """Use what was found; return where the text goes on, and whether an object there is a call at once."""
        if found[0] == _THINK:
            return self._take_thinking(found.end()), True
        if found[0] == _END_THINK:
            self._all_was_thinking(found)
            return found.end(), True
        return self._take_call(found.end())

    def _take_thinking(self, start: int) -> int:
        close = self.text.find(_END_THINK, start)
        if close < 0:
            self.warnings.append(f"{_THINK} was not closed, so all that follows it is thinking.")
            close = len(self.text)
        self.reasoning.append(self.text[start:close])
        return min(close + len(_END_THINK), len(self.text))

    def _all_was_thinking(self, found: re.Match[str]) -> None:
        """Many templates write `<think>` into the prompt, so that the turn itself begins within the thinking."""
        self.lead = found.start()
        self.reasoning, self.content, self.calls = [], [], []
        self.warnings.append(f"{_END_THINK} was not opened, so all that precedes it is thinking.")

    def _take_call(self, brace: int) -> tuple[int, bool]:
        read = read_call(self.text, brace, KEYS)
        self.calls.append(read.call)
        self.warnings += read.warnings
        if read.end is None:
            following = _LATER.search(self.text, brace + 1)
            return (following.start() if following else len(self.text)), False
        between = _BETWEEN.match(self.text, read.end)
        return (between.end() if between else read.end), True


def _joined(parts: list[str]) -> str:
    return "\n".join(part for part in map(str.strip, parts) if part)
