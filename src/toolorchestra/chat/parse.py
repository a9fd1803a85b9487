"""Text of an assistant turn to a message and back.

The form is that of Hermes and Qwen: `<think>…</think>`, then text and any number of
`<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Reading is total: whatever a policy writes gives a message, and
a call that cannot be read is kept with an `error` that the policy is told. Three rules decide the doubtful cases:

- A call's JSON is read from its first brace on; tags inside its strings are part of them.
- Between an opening tag and the closing tag that matches it stands one call. Where none matches, the tag was forgotten.
- What may be thinking does not run: an unclosed `<think>` takes the rest, a lone `</think>` all that came before.

In: text. Out: a message whose calls are named call_0, call_1, …, and warnings about what was odd.
Source: project; the form is that of https://github.com/NousResearch/Hermes-Function-Calling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolorchestra.chat.calls import (
    MAX_CALLS,
    SURROGATE,
    CallKeys,
    broken_call,
    ignored,
    read_call,
    too_many_calls,
    write_call,
)
from toolorchestra.types import Message, ToolCall

KEYS = CallKeys(("arguments",))

_THINK, _END_THINK, _CALL, _END_CALL = "<think>", "</think>", "<tool_call>", "</tool_call>"
_TAG = re.compile(r"</?(?:think|tool_call)>")


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Write one call in its canonical form, on one line, with literal characters beyond ASCII."""
    return f"{_CALL}{write_call(name, arguments, KEYS)}{_END_CALL}"


def render_message(message: Message) -> str:
    """Write an assistant message: its reasoning, its content, its calls.

    `parse_message` gives the message back, without warnings, if reasoning and content have no white space around them
    and no lone surrogates, the reasoning holds no `</think>` and the content none of the four tags, and the calls are
    named call_0, call_1, …, have a name that is not blank and no error, and arguments of plain JSON: finite numbers,
    no lone surrogates, at most `MAX_DEPTH` levels.
    """
    thinking = f"{_THINK}{message.reasoning}{_END_THINK}" if message.reasoning else ""
    calls = "".join(render_call(call.name, call.arguments) for call in message.tool_calls)
    return thinking + message.content + calls


def parse_message(text: str) -> tuple[Message, tuple[str, ...]]:
    """Read an assistant turn; never raises.

    Returns:
        The message, and a sentence for each kind of thing that was odd. White space around reasoning and content is
        dropped; parts of the content that calls or thinking stand between are joined by line ends.
    """
    clean = SURROGATE.sub("\ufffd", text)
    reader = _Reader(clean, list(_pieces(clean)))
    if clean != text:
        reader.warnings.append("Characters that are no text (lone surrogates) were replaced.")
    return reader.read(), tuple(dict.fromkeys(reader.warnings))


@dataclass(frozen=True, slots=True)
class _Piece:
    """`text[start:end]`: a block of thinking; an opening tag, with the JSON after it if that was read; another tag."""

    tag: str
    start: int
    end: int
    call: ToolCall | None = None
    warnings: tuple[str, ...] = ()


def _pieces(text: str) -> Iterator[_Piece]:
    """Cut the text at its tags. Between the pieces stands content, and what is left of broken calls."""
    at = calls = 0
    while (found := _TAG.search(text, at)) and calls <= MAX_CALLS:
        piece = _Piece(found[0], found.start(), found.end())
        if piece.tag == _THINK:
            close = text.find(_END_THINK, piece.end)
            piece = replace(piece, end=len(text) if close < 0 else close + len(_END_THINK))
        elif piece.tag == _CALL:
            piece = _with_call(piece, text)
            calls += 1
        yield piece
        at = piece.end


def _with_call(piece: _Piece, text: str) -> _Piece:
    """Read the JSON after an opening tag; the piece stays as it is if no brace comes before the next tag."""
    following = _TAG.search(text, piece.end)
    brace = text.find("{", piece.end, following.start() if following else len(text))
    if brace < 0:
        return piece
    read = read_call(text, brace, KEYS)
    if read.end is None:
        return replace(piece, call=read.call)
    ahead = text[piece.end : brace].strip()
    warnings = read.warnings + ignored("before the call's JSON", ahead)
    return replace(piece, end=read.end, call=read.call, warnings=warnings)


@dataclass(slots=True)
class _Reader:
    """Puts the pieces of one text together."""

    text: str
    pieces: Sequence[_Piece]
    lead: int = 0  # so much at the text's beginning was thinking without an opening tag
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def read(self) -> Message:
        number = at = 0
        while number < len(self.pieces):
            self.content.append(self.text[at : self.pieces[number].start])
            number, at = self._take(number)
        if sum(piece.tag == _CALL for piece in self.pieces) > MAX_CALLS:
            self.calls = [too_many_calls(KEYS)]
        else:
            self.content.append(self.text[at:])
        lead = self.text[: self.lead].replace(_THINK, "").replace(_END_THINK, "")
        calls = tuple(replace(call, id=f"call_{n}") for n, call in enumerate(self.calls))
        return Message("assistant", _joined(self.content), _joined([lead, *self.reasoning]), calls)

    def _take(self, number: int) -> tuple[int, int]:
        """Use a piece; return the number of the next one, and where the text after this one goes on."""
        piece = self.pieces[number]
        if piece.tag == _CALL:
            return self._take_call(number)
        if piece.tag == _THINK:
            self._take_thinking(self.text[piece.start : piece.end])
        elif piece.tag == _END_THINK:
            self._all_was_thinking(piece)
        else:
            self.warnings.append(f"A {_END_CALL} without a call before it was ignored.")
        return number + 1, piece.end

    def _take_thinking(self, block: str) -> None:
        if not block.endswith(_END_THINK):
            self.warnings.append(f"{_THINK} was not closed, so all that follows it is thinking.")
        self.reasoning.append(block.removeprefix(_THINK).removesuffix(_END_THINK))

    def _all_was_thinking(self, piece: _Piece) -> None:
        """Many templates write `<think>` into the prompt, so that the turn itself begins within the thinking."""
        self.lead = piece.start
        self.reasoning, self.content, self.calls = [], [], []
        self.warnings.append(f"{_END_THINK} was not opened, so all that precedes it is thinking.")

    def _take_call(self, number: int) -> tuple[int, int]:
        piece, following = self.pieces[number], self.pieces[number + 1 :][:1]
        if piece.call is None and following and following[0].tag == _CALL:
            self.warnings.append(f"A {_CALL} without a call after it was ignored.")
            return number + 1, following[0].start
        self.calls.append(piece.call or broken_call("no JSON object follows its opening tag", KEYS))
        self.warnings += piece.warnings
        close = _closing(self.pieces, number)
        if close is None:
            self.warnings.append(f"{_END_CALL} is missing after a call.")
        next_number = number + 1 if close is None else close
        stop = self.pieces[next_number].start if next_number < len(self.pieces) else len(self.text)
        if not self.calls[-1].error:
            self.warnings += ignored("after a call", self.text[piece.end : stop].strip())
        return (next_number, stop) if close is None else (close + 1, self.pieces[close].end)


def _closing(pieces: Sequence[_Piece], number: int) -> int | None:
    """Find the closing tag that matches an opening one; thinking in between means that it was forgotten."""
    depth = 0
    for at in range(number, len(pieces)):
        if pieces[at].tag not in (_CALL, _END_CALL):
            return None
        depth += 1 if pieces[at].tag == _CALL else -1
        if depth == 0:
            return at
    return None


def _joined(parts: Sequence[str]) -> str:
    return "\n".join(part for part in map(str.strip, parts) if part)
