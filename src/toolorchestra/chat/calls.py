"""The JSON of one call, whatever stands around it.

Reading is total: a call that cannot be read becomes one with an `error` that says what was wrong and what is valid.
In: text and the place of a brace. Out: a call without an id, where its JSON ends, and warnings about what was odd.
Source: project.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolorchestra.types import ToolCall

MAX_DEPTH = 64
"""Most levels of objects and arrays in a call's arguments."""

MAX_CALLS = 256
"""Most calls in a turn; a turn with more is a loop, and none of them runs."""

SURROGATE = re.compile(r"[\ud800-\udfff]")
"""A lone surrogate, which no file can hold."""

_SHOWN_CHARS = 200  # of a text that a warning quotes
_MOST_ENCODINGS = 3  # how often arguments may be wrapped in a JSON string
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


@dataclass(frozen=True, slots=True)
class CallKeys:
    """The names of a call's fields in one family of models.

    Attributes:
        arguments: the field that holds the arguments; the first is the one that is written, any is read.
        silent: fields that say nothing new, so that nobody is warned of them.
    """

    arguments: tuple[str, ...]
    silent: frozenset[str] = frozenset()

    @property
    def example(self) -> str:
        """A call's form, as a policy is told it."""
        return f'{{"name": "…", "{self.arguments[0]}": {{…}}}}'


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call, where its JSON ends (None when it could not be read at all), and warnings."""

    call: ToolCall
    end: int | None = None
    warnings: tuple[str, ...] = ()


def write_call(name: str, arguments: Mapping[str, Any], keys: CallKeys) -> str:
    """Write one call on one line, with literal characters beyond ASCII."""
    return json.dumps({"name": name, keys.arguments[0]: dict(arguments)}, ensure_ascii=False)


def read_call(text: str, brace: int, keys: CallKeys) -> ReadCall:
    """Read the call whose first brace stands at `brace`; never raises."""
    decoder = _Decoder()
    try:
        body, end = decoder.raw_decode(text, brace)
    except json.JSONDecodeError as error:
        return ReadCall(broken_call(f"it is not valid JSON ({_where(error, brace)})", keys))
    except RecursionError:
        return ReadCall(broken_call(_TOO_DEEP, keys))
    call, warnings = _read_body(body, decoder, keys)
    return ReadCall(call, end, warnings)


def broken_call(what: str, keys: CallKeys, name: str = "") -> ToolCall:
    """Make a call that tells the policy what was wrong with it, and what is valid."""
    return ToolCall("", name, error=f"The call could not be read: {what}. Write one JSON object, {keys.example}.")


def too_many_calls(keys: CallKeys) -> ToolCall:
    """Make the one call that stands for a turn with too many."""
    return broken_call(f"a turn holds at most {MAX_CALLS} calls, and none of these was run", keys)


def ignored(where: str, text: str) -> tuple[str, ...]:
    """Write the warning about text that was ignored, if there is any."""
    return (f"Ignored {where}: {text[:_SHOWN_CHARS]}",) if text else ()


def _where(error: json.JSONDecodeError, start: int = 0) -> str:
    return f"{error.msg} at character {error.pos - start}"


def _read_body(body: Mapping[str, Any], decoder: _Decoder, keys: CallKeys) -> tuple[ToolCall, tuple[str, ...]]:
    """Turn the JSON of a call into the call."""
    name = body.get("name", "")
    if not isinstance(name, str) or not name.strip():
        return broken_call("it names no tool", keys), ()
    name = SURROGATE.sub("\ufffd", name)
    given = [key for key in keys.arguments if key in body]
    if len(given) > 1:
        return broken_call(f"its arguments stand twice, as {' and '.join(map(repr, given))}", keys, name), ()
    key = given[0] if given else keys.arguments[0]
    try:
        arguments = _unwrapped(body.get(key, {}), decoder)
    except json.JSONDecodeError as error:
        return broken_call(f"its '{key}' are a text that is not valid JSON ({_where(error)})", keys, name), ()
    except RecursionError:
        return broken_call(_TOO_DEEP, keys, name), ()
    problem = _problem(arguments, decoder, key)
    if problem:
        return broken_call(problem, keys, name), ()
    extra = ", ".join(field for field in body if field not in {"name", key, *keys.silent})
    return ToolCall("", name, _clean(arguments)), ignored("fields of a call", extra)


def _unwrapped(arguments: Any, decoder: _Decoder) -> Any:
    """Undo the JSON strings in which some policies wrap the arguments."""
    for _ in range(_MOST_ENCODINGS):
        if isinstance(arguments, str):
            arguments = decoder.decode(arguments)
    return arguments


def _problem(arguments: Any, decoder: _Decoder, key: str) -> str:
    if decoder.problems:
        return decoder.problems[0]
    if not isinstance(arguments, dict):
        return f"its '{key}' are not an object"
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
        return SURROGATE.sub("\ufffd", value)
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
