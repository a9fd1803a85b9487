"""Arguments against their schema: what is refused, what is mended, what is said."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolorchestra.errors import ConfigError, ToolError
from toolorchestra.tools.arguments import check_arguments, require_supported

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where", "examples": ["Oslo"]},
        "unit": {"type": "string", "enum": ["metric", "imperial"], "default": "metric"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "above": {"type": "number"},
        "wet": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "near": {"type": "object", "properties": {"km": {"type": "number"}}, "required": ["km"]},
        "extra": {"type": "object"},
        "nothing": {"type": "null"},
        "any": {},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def check(**arguments: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    return check_arguments(CITY, {"city": "Oslo", **arguments})


def checked(**arguments: Any) -> dict[str, Any]:
    value, notes = check(**arguments)
    assert notes == ()
    return {name: value[name] for name in arguments}


def refused(schema: Any = CITY, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        check_arguments(schema, arguments if "city" in arguments or schema is not CITY else {"city": "x", **arguments})
    return str(caught.value)


def one(kind: str, value: Any, **more: Any) -> tuple[Any, tuple[str, ...]]:
    """Check one value of a type."""
    schema = {"type": "object", "properties": {"x": {"type": kind, **more}}}
    require_supported(schema)
    checked, notes = check_arguments(schema, {"x": value})
    assert type(checked["x"]) is not bool or kind == "boolean"
    return checked["x"], notes


def test_valid_arguments_pass_unchanged():
    valid = {
        "days": 3,
        "above": 1.5,
        "wet": True,
        "hours": [0, 12],
        "near": {"km": 2},
        "nothing": None,
        "any": [1, "x"],
    }
    assert checked(**valid) == valid


def test_a_default_is_filled_in_and_not_shared():
    assert check()[0] == {"city": "Oslo", "unit": "metric"}
    schema = {"type": "object", "properties": {"a": {"type": "object", "default": {"b": []}}}}
    check_arguments(schema, {})[0]["a"]["b"].append(1)
    assert check_arguments(schema, {})[0] == {"a": {"b": []}}


def test_a_missing_argument_is_named_with_those_that_exist():
    with pytest.raises(ToolError, match=r"'city' is missing.*city, unit, days"):
        check_arguments(CITY, {})
    assert "'near.km' is missing" in refused(near={})


def test_a_wrong_choice_lists_the_valid_ones():
    assert refused(unit="kelvin") == "Argument 'unit' must be one of metric, imperial, not \"kelvin\"."


def test_a_choice_is_of_its_own_type():
    schema = {"type": "object", "properties": {"x": {"enum": [1, "1", None]}}}
    assert [check_arguments(schema, {"x": x})[0]["x"] for x in (1, "1", None)] == [1, "1", None]
    assert "must be one of 1, 1, null, not true" in refused(schema, x=True)


def test_an_extra_argument_is_refused_or_left_out():
    assert "no argument 'country'" in refused(country="Norway")
    opened = {**CITY, "additionalProperties": True}
    value, notes = check_arguments(opened, {"city": "Oslo", "country": "Norway", "zip": 1})
    assert value == {"city": "Oslo", "unit": "metric"}
    assert ["country" in notes[0], "zip" in notes[1], len(notes)] == [True, True, 2]


def test_an_object_without_properties_is_free_form():
    assert checked(extra={"a": {"b": [1]}}) == {"extra": {"a": {"b": [1]}}}
    closed = {"type": "object", "additionalProperties": False}
    assert "There are no arguments" in refused(closed, a=1)
    assert check_arguments(closed, {}) == ({}, ())


@pytest.mark.parametrize("written", ["5", " 5 ", "+5", "5.0"])
def test_a_number_in_quotes_is_mended_and_noted(written: str):
    value, (note,) = check(days=written)
    assert value["days"] == 5 and type(value["days"]) is int
    assert "days" in note and "5" in note
    assert one("number", written)[0] == 5


def test_a_large_integer_in_quotes_keeps_its_digits():
    assert one("integer", "9007199254740993")[0] == 9007199254740993


def test_a_whole_float_is_an_integer():
    assert [(type(v), v, notes) for v, notes in [one("integer", 5.0)]] == [(int, 5, ())]


@pytest.mark.parametrize(
    "written", ["abc", "", "5.5", "5_0", "\u0665", "nan", "inf", "9" * 5000, "1e400", 5.5, True, None, [5]]
)
def test_what_is_no_integer_is_refused(written: Any):
    with pytest.raises(ToolError, match="must be of type integer"):
        one("integer", written)


@pytest.mark.parametrize("written", ["abc", "nan", "inf", "1e400", float("nan"), float("inf"), True, None, {}])
def test_what_is_no_number_is_refused(written: Any):
    with pytest.raises(ToolError, match="must be of type number"):
        one("number", written)


def test_a_boolean_in_quotes_is_mended_and_a_number_is_none():
    assert [one("boolean", text)[0] for text in ("true", "False")] == [True, False]
    for written in (1, 0, "yes", ""):
        with pytest.raises(ToolError, match="must be of type boolean"):
            one("boolean", written)


def test_a_number_for_a_string_is_mended_and_nothing_else_is():
    assert [one("string", value)[0] for value in (5, -0.5)] == ["5", "-0.5"]
    assert one("string", 5)[1]
    for written in (True, None, [1], {}, 10**400, float("nan")):
        with pytest.raises(ToolError, match="must be of type string"):
            one("string", written)


def test_bounds_are_enforced():
    assert refused(days=8) == "Argument 'days' must be at most 7, not 8."
    assert refused(days="0") == "Argument 'days' must be at least 1, not 0."
    assert one("number", 10**400, minimum=0.5)[0] == 10**400


def test_items_are_checked_and_named():
    assert check(hours=["1", 2])[0]["hours"] == [1, 2]
    assert "'hours[1]' must be of type integer" in refused(hours=[1, "x"])
    assert "at least 0" in refused(hours=[-1])


@pytest.mark.parametrize("written", [None, [], "x", 3, True, [{"city": "Oslo"}]])
def test_arguments_that_are_no_object(written: Any):
    with pytest.raises(ToolError, match="arguments object must be of type object"):
        check_arguments(CITY, written)


def test_long_values_are_shortened_in_what_is_said():
    assert len(refused(unit="x" * 10_000)) < 200
    assert len(refused(**{"y" * 10_000: 1})) < 400


# -- schemas ---------------------------------------------------------------------------------------


def test_a_supported_schema_passes():
    require_supported(CITY)
    assert require_supported({"type": "object"}) is None  # it raises what it refuses


def prop(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "type 'object'"),
        ({"type": "string"}, "type 'object'"),
        ("x", "type 'object'"),
        (prop(pattern="a+"), r"parameters\.x: 'pattern' is not supported; use additionalProperties, default"),
        (prop(anyOf=[{"type": "string"}]), "anyOf"),
        (prop(type="float"), 'type "float" is not supported; use one of object'),
        (prop(type=["string", "null"]), "not supported"),
        (prop(type=[]), "not supported"),
        (prop(type="array", items=[{"type": "string"}]), r"x\[\]: a schema must be a table"),
        (prop(type="array", items={"type": "string", "format": "date"}), r"x\[\]: 'format'"),
        (prop(type="object", properties={"y": {"minLength": 1}}), r"x\.y: 'minLength'"),
        ({"type": "object", "properties": []}, "properties"),
        ({"type": "object", "required": ["x"]}, "'x' is required but"),
        ({"type": "object", "required": "x"}, "list of names"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "true or false"),
        (prop(enum=[]), "at least one"),
        (prop(enum="ab"), "list of single values"),
        (prop(enum=[{}]), "list of single values"),
        (prop(type="integer", enum=[1, "2"]), "offered but not valid"),
        (prop(type="integer", minimum="1"), "must be a number"),
        (prop(type="integer", minimum=True), "must be a number"),
        (prop(type="integer", minimum=2, maximum=1), "above"),
        (prop(type="integer", maximum=3, default=4), "at most 3"),
        (prop(enum=["a"], default="b"), "one of a"),
    ],
)
def test_an_unsupported_schema_is_refused_with_its_place(schema: Any, said: str):
    with pytest.raises(ConfigError, match=said):
        require_supported(schema, "parameters")


# -- laws ------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["5", "5.0", "true", "metric"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*CITY["properties"], "km", "other"])


@settings(deadline=None)
@given(JSON | st.dictionaries(NAMES, JSON, max_size=6), st.booleans())
def test_any_value_is_checked_or_refused_in_one_sentence(arguments: Any, closed: bool):
    schema = {**CITY, "additionalProperties": not closed}
    try:
        value, _ = check_arguments(schema, arguments)
    except ToolError as error:
        assert str(error).endswith(".") and "\n" not in str(error)
    else:
        assert set(value) <= set(CITY["properties"])
        assert check_arguments(schema, value) == (value, ()) or "nan" in repr(value)  # NaN equals nothing


@settings(deadline=None)
@given(JSON | st.dictionaries(st.sampled_from(["type", "properties", "required", "enum", "items", "default"]), JSON))
def test_any_schema_passes_or_is_refused(inner: Any):
    schema = {"type": "object", "properties": {"x": inner}}
    try:
        require_supported(schema)
    except ConfigError as error:
        assert str(error).startswith("parameters")
    else:
        for value in (json.loads("[null]")[0], 1, "1", [], {}):
            try:
                check_arguments(schema, {"x": value})
            except ToolError as error:
                assert "'x" in str(error)
