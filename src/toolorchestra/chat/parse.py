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

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolorchestra.types import Message, ToolCall

MAX_DEPTH = 64
"""Most levels of objects and arrays in a call's arguments."""

MAX_CALLS = 256
"""Most calls in a turn; a turn with more is a loop, and none of them runs."""

_THINK, _END_THINK, _CALL, _END_CALL = "<think>", "</think>", "<tool_call>", "</tool_call>"
_TAG = re.compile(r"</?(?:think|tool_call)>")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SHOWN_CHARS = 200  # of a text that a warning quotes
_MOST_ENCODINGS = 3  # how often arguments may be wrapped in a JSON string


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Write one call in its canonical form, on one line, with literal characters beyond ASCII."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{_CALL}{body}{_END_CALL}"


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
    clean = _SURROGATE.sub("\ufffd", text)
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
    decoder = _Decoder()
    try:
        body, end = decoder.raw_decode(text, brace)
    except json.JSONDecodeError as error:
        return replace(piece, call=_broken(f"it is not valid JSON ({_where(error, brace)})"))
    except RecursionError:
        return replace(piece, call=_broken(_TOO_DEEP))
    call, warnings = _read_body(body, decoder)
    ahead = text[piece.end : brace].strip()
    return replace(piece, end=end, call=call, warnings=warnings + _ignored("before the call's JSON", ahead))


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
            self.calls = [_broken(f"a turn holds at most {MAX_CALLS} calls, and none of these was run")]
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
        self.calls.append(piece.call or _broken("no JSON object follows its opening tag"))
        self.warnings += piece.warnings
        close = _closing(self.pieces, number)
        if close is None:
            self.warnings.append(f"{_END_CALL} is missing after a call.")
        next_number = number + 1 if close is None else close
        stop = self.pieces[next_number].start if next_number < len(self.pieces) else len(self.text)
        if not self.calls[-1].error:
            self.warnings += _ignored("after a call", self.text[piece.end : stop].strip())
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


def _ignored(where: str, text: str) -> tuple[str, ...]:
    return (f"Ignored {where}: {text[:_SHOWN_CHARS]}",) if text else ()


_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def _broken(what: str, name: str = "") -> ToolCall:
    form = '{"name": "…", "arguments": {…}}'
    return ToolCall("", name, error=f"The call could not be read: {what}. Write one JSON object, {form}.")


def _where(error: json.JSONDecodeError, start: int = 0) -> str:
    return f"{error.msg} at character {error.pos - start}"


def _read_body(body: Mapping[str, Any], decoder: _Decoder) -> tuple[ToolCall, tuple[str, ...]]:
    """Turn the JSON of a call into the call."""
    name = body.get("name", "")
    if not isinstance(name, str) or not name.strip():
        return _broken("it names no tool"), ()
    name = _SURROGATE.sub("\ufffd", name)
    try:
        arguments = _unwrapped(body.get("arguments", {}), decoder)
    except json.JSONDecodeError as error:
        return _broken(f"its 'arguments' are a text that is not valid JSON ({_where(error)})", name), ()
    except RecursionError:
        return _broken(_TOO_DEEP, name), ()
    problem = _problem(arguments, decoder)
    if problem:
        return _broken(problem, name), ()
    extra = ", ".join(key for key in body if key not in ("name", "arguments"))
    return ToolCall("", name, _clean(arguments)), _ignored("fields of a call", extra)


def _unwrapped(arguments: Any, decoder: _Decoder) -> Any:
    """Undo the JSON strings in which some policies wrap the arguments."""
    for _ in range(_MOST_ENCODINGS):
        if isinstance(arguments, str):
            arguments = decoder.decode(arguments)
    return arguments


def _problem(arguments: Any, decoder: _Decoder) -> str:
    if decoder.problems:
        return decoder.problems[0]
    if not isinstance(arguments, dict):
        return "its 'arguments' are not an object"
    return _TOO_DEEP if _is_too_deep(arguments) else ""


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        items = (item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent))
        level = [item for item in items if isinstance(item, dict | list)]
    return bool(level)


def _clean(value: Any) -> Any:
    r"""Replace lone surrogates, which JSON can spell (`\ud800`) and no file can hold."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


class _Decoder(json.JSONDecoder):
    """JSON with raw line ends in strings. What is readable but has no one meaning is noted, so that reading goes on."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        super().__init__(
            strict=False,
            object_pairs_hook=self._object,
            parse_float=self._float,
            parse_int=self._int,
            parse_constant=lambda name: self.problems.append(f"{name} is not a JSON value"),
        )

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
            self.problems.append(f"the key '{_clean(twice)[:_SHOWN_CHARS]}' stands twice in one object")
        return value

    def _float(self, digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            self.problems.append("a number is too large")
        return value

    def _int(self, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python reads some 4,300 digits
            self.problems.append("a number is too large")
            return 0
