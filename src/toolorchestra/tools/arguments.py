"""The arguments of a call, checked against the tool's JSON Schema.

Enforced: `type` (one), `properties`, `required`, `enum` (of single values), `additionalProperties`, `items`, `minimum`,
`maximum`; a `default` is filled in; `title`, `description` and `examples` are for readers. What is wrong is said
together with what is valid, for the policy to act on; what is meant beyond doubt is mended, with a note.
In: a schema, and arguments as the policy wrote them. Out: checked arguments, and the notes.
Source: project; a part of JSON Schema, https://json-schema.org.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from toolorchestra.errors import ConfigError, ToolError

_KEYWORDS = {
    "type", "properties", "required", "enum", "additionalProperties", "items", "minimum", "maximum", "default",
    "title", "description", "examples",
}  # fmt: skip
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")  # Python reads some 4,300 digits
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SHOWN_CHARS = 60
_MOST_BITS = 1000  # of a number that is written out


def check_arguments(schema: Mapping[str, Any], arguments: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Check a call's arguments.

    Args:
        schema: one that `require_supported` accepts.
        arguments: what the policy wrote; any JSON value.

    Returns:
        The arguments to use, and a sentence for each thing that was mended: a number or boolean written as a string, a
        number for a string, an unknown argument that was left out.

    Raises:
        ToolError: names the argument that is wrong and what is valid.
    """
    notes: list[str] = []
    return _checked({**schema, "type": "object"}, arguments, "", notes), tuple(notes)


def require_supported(schema: Any, place: str = "parameters") -> None:
    """Refuse, at start-up, a schema that `check_arguments` cannot enforce to the letter.

    Raises:
        ConfigError: names `place`, the keyword, and what is supported.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ConfigError(f"{place}: the schema of a tool's arguments must be a table of type 'object'")
    _require(schema, place)


def _checked(schema: Mapping[str, Any], value: Any, place: str, notes: list[str]) -> Any:
    value = _typed(schema.get("type"), value, place, notes)
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
        raise ToolError(f"{_called(place)} must be one of {_listed(schema['enum'])}, not {_show(value)}.")
    _check_bounds(schema, value, place)
    if isinstance(value, Mapping):
        return _checked_object(schema, value, place, notes)
    if isinstance(value, _TYPES["array"]):
        items = schema.get("items", {})
        return [_checked(items, item, f"{place}[{number}]", notes) for number, item in enumerate(value)]
    return value


def _check_bounds(schema: Mapping[str, Any], value: Any, place: str) -> None:
    if not _is_a(value, "number"):
        return
    if value < schema.get("minimum", value):
        raise ToolError(f"{_called(place)} must be at least {schema['minimum']}, not {_show(value)}.")
    if value > schema.get("maximum", value):
        raise ToolError(f"{_called(place)} must be at most {schema['maximum']}, not {_show(value)}.")


def _checked_object(
    schema: Mapping[str, Any], value: Mapping[str, Any], place: str, notes: list[str]
) -> dict[str, Any]:
    """Check an object's fields; one without `properties` is free-form, unless it may have no other fields at all."""
    closed = schema.get("additionalProperties") is False
    if "properties" not in schema and not closed:
        return dict(value)
    properties: Mapping[str, Any] = schema.get("properties", {})
    filled = {name: deepcopy(inner["default"]) for name, inner in properties.items() if "default" in inner}
    filled |= value
    for name in schema.get("required", ()):
        if name not in filled:
            raise ToolError(f"{_called(_join(place, name))} is missing. {_valid(properties)}")
    for name in (name for name in filled if name not in properties):
        if closed:
            raise ToolError(f"There is no argument '{_join(place, name)[:_SHOWN_CHARS]}'. {_valid(properties)}")
        notes.append(f"{_called(_join(place, name))} is unknown and was left out.")
    return {
        name: _checked(inner, filled[name], _join(place, name), notes)
        for name, inner in properties.items()
        if name in filled
    }


def _typed(kind: str | None, value: Any, place: str, notes: list[str]) -> Any:
    if kind is None:
        return value
    if _is_a(value, kind):
        return int(value) if kind == "integer" else value
    mended = _mended(kind, value)
    if mended is None:
        raise ToolError(f"{_called(place)} must be of type {kind}, not {_show(value)}.")
    notes.append(f"{_called(place)} was {_show(value)} and was read as {_show(mended)}.")
    return mended


def _is_a(value: Any, kind: str) -> bool:
    """Tell whether a value has a type of JSON Schema, for which 5.0 is an integer and True no number."""
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float):
        return value.is_integer() if kind == "integer" else kind == "number" and math.isfinite(value)
    return isinstance(value, _TYPES[kind])


def _mended(kind: str, value: Any) -> Any:
    """Read a value as the type that was meant; None where that is in doubt."""
    if kind == "string":
        small = isinstance(value, float) or (_is_a(value, "integer") and value.bit_length() < _MOST_BITS)
        return json.dumps(value) if small and _is_a(value, "number") else None
    if not isinstance(value, str):
        return None
    if kind == "boolean":
        return {"true": True, "false": False}.get(value.strip().lower())
    number = _number(value.strip()) if kind in ("integer", "number") else None
    if number is None or not _is_a(number, kind):
        return None
    return int(number) if kind == "integer" else number


def _number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)  # by way of a float, large ones would lose digits
    return float(text) if _NUMBER.fullmatch(text) else None  # `float` alone also reads nan, 1_0 and other scripts


def _same(value: Any, allowed: Any) -> bool:
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _require(schema: Any, place: str) -> None:
    if not isinstance(schema, Mapping):
        raise ConfigError(f"{place}: a schema must be a table, not {_show(schema)}")
    for keyword in schema:
        if keyword not in _KEYWORDS:
            raise ConfigError(f"{place}: '{keyword}' is not supported; use {', '.join(sorted(_KEYWORDS))}")
    kind = schema.get("type")
    if "type" in schema and (not isinstance(kind, str) or kind not in _TYPES):
        raise ConfigError(f"{place}: type {_show(kind)} is not supported; use one of {', '.join(_TYPES)}")
    if "items" in schema:
        _require(schema["items"], f"{place}[]")
    _require_fields(schema, place)
    _require_values(schema, place)


def _require_fields(schema: Mapping[str, Any], place: str) -> None:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not isinstance(properties, Mapping):
        raise ConfigError(f"{place}: 'properties' must be a table of schemas")
    if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
        raise ConfigError(f"{place}: 'required' must be a list of names")
    for name in required:
        if name not in properties:
            raise ConfigError(f"{place}: '{name}' is required but is not among the properties")
    if not isinstance(schema.get("additionalProperties", False), bool):
        raise ConfigError(f"{place}: 'additionalProperties' must be true or false")
    for name, inner in properties.items():
        _require(inner, f"{place}.{name}")


def _require_values(schema: Mapping[str, Any], place: str) -> None:
    """Check that bounds are numbers, and that what the schema itself offers is valid under it."""
    for bound in ("minimum", "maximum"):
        if bound in schema and not _is_a(schema[bound], "number"):
            raise ConfigError(f"{place}: '{bound}' must be a number, not {_show(schema[bound])}")
    if schema.get("minimum", -math.inf) > schema.get("maximum", math.inf):
        raise ConfigError(f"{place}: 'minimum' is above 'maximum'")
    enum = schema.get("enum", (None,))
    if not isinstance(enum, list | tuple) or not enum or any(isinstance(v, Mapping | list | tuple) for v in enum):
        raise ConfigError(f"{place}: 'enum' must be a list of single values, at least one")
    offered = [*schema.get("enum", ()), *([schema["default"]] if "default" in schema else ())]
    for value in offered:
        notes: list[str] = []
        try:
            _checked(schema, value, "", notes)
        except ToolError as error:
            raise ConfigError(f"{place}: {_show(value)} is offered but not valid: {error}") from None
        if notes:
            raise ConfigError(f"{place}: {_show(value)} is offered but not valid: {notes[0]}")


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _called(place: str) -> str:
    return f"Argument '{place[:_SHOWN_CHARS]}'" if place else "The arguments object"


def _valid(properties: Mapping[str, Any]) -> str:
    return f"The arguments are: {', '.join(properties)}." if properties else "There are no arguments."


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(value if isinstance(value, str) else _show(value) for value in values)


def _show(value: Any) -> str:
    """Write a value as JSON, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # not JSON, an endless number, or nested without end
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
