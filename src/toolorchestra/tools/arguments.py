"""The arguments of a call, checked against the tool's JSON Schema.

Supported: type, properties, required, enum, additionalProperties, items, minimum, maximum; `default`, `description` and
`examples` are read by others. What is wrong is said with what is valid, for the policy to act on.
In: a schema and arguments as the policy wrote them. Out: checked arguments and notes about what was mended.
Source: project.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolorchestra.errors import ConfigError, ToolError

_SUPPORTED = {
    "type", "properties", "required", "enum", "additionalProperties", "items", "minimum", "maximum", "default",
    "description", "examples", "title",
}  # fmt: skip
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def require_supported(schema: Mapping[str, Any], place: str = "schema") -> None:
    """Refuse, at start-up, a schema that `check_arguments` does not fully enforce.

    Raises:
        ConfigError: names the place and the keyword.
    """
    unknown = set(schema) - _SUPPORTED
    if unknown:
        raise ConfigError(f"{place}: unsupported JSON Schema keyword '{min(unknown)}'")
    if schema.get("type") not in {*_TYPES, None}:
        raise ConfigError(f"{place}: unsupported type {schema['type']!r}; use one of {', '.join(_TYPES)}")
    for name, inner in schema.get("properties", {}).items():
        require_supported(inner, f"{place}.{name}")
    if isinstance(schema.get("items"), Mapping):
        require_supported(schema["items"], f"{place}[]")


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Check a call's arguments; numbers written as strings are mended, with a note.

    Raises:
        ToolError: says which argument is wrong and what is valid.
    """
    notes: list[str] = []
    checked = _check({"type": "object", **schema}, dict(arguments), "arguments", notes)
    return checked, tuple(notes)


def _check(schema: Mapping[str, Any], value: Any, name: str, notes: list[str]) -> Any:
    value = _typed(schema, value, name, notes)
    if "enum" in schema and not any(type(value) is type(item) and value == item for item in schema["enum"]):
        raise ToolError(f"'{name}' must be one of {', '.join(map(str, schema['enum']))}, not {_show(value)}.")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            raise ToolError(f"'{name}' must lie between {low} and {high}, not {_show(value)}.")
    if isinstance(value, dict):
        return _check_object(schema, value, notes)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [_check(schema["items"], item, f"{name}[{i}]", notes) for i, item in enumerate(value)]
    return value


def _check_object(schema: Mapping[str, Any], value: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    for missing in (name for name in schema.get("required", ()) if name not in value):
        raise ToolError(f"The argument '{missing}' is missing. The arguments are: {_list(properties)}.")
    checked = {}
    for name, item in value.items():
        if name in properties:
            checked[name] = _check(properties[name], item, name, notes)
        elif schema.get("additionalProperties") is False:
            raise ToolError(f"There is no argument '{name}'. The arguments are: {_list(properties)}.")
        else:
            notes.append(f"argument '{name}' is not known and was left out")
    return checked


def _typed(schema: Mapping[str, Any], value: Any, name: str, notes: list[str]) -> Any:
    wanted = schema.get("type")
    if wanted is None or _is_a(value, wanted):
        return value
    mended = _mend(value, wanted)
    if mended is None:
        raise ToolError(f"'{name}' must be of type {wanted}, not {_show(value)}.")
    notes.append(f"'{name}' was read as {mended!r}")
    return mended


def _is_a(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, _TYPES[wanted])


def _mend(value: Any, wanted: str) -> int | float | None:
    if wanted not in {"integer", "number"} or isinstance(value, bool) or not isinstance(value, str | float):
        return None
    try:
        number = float(value)
        whole = int(value) if isinstance(value, str) and wanted == "integer" else int(number)
    except (ValueError, OverflowError):
        return None
    if wanted == "integer":
        return whole if whole == number else None
    return number if number - number == 0 else None  # refuses nan and infinity


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _list(properties: Mapping[str, Any]) -> str:
    return ", ".join(properties) or "none"
