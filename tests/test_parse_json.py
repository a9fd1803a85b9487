"""Reading turns whose calls are bare JSON: where a call begins and ends, and the cases that broke others."""

import json
import time

import pytest

from toolorchestra.chat.calls import MAX_CALLS, MAX_DEPTH
from toolorchestra.chat.parse_json import parse_message, render_message
from toolorchestra.types import Message, ToolCall

ASK = '{"name": "ask", "parameters": {"expert": "amber"}}'
RUN = '{"name": "run", "parameters": {}}'


def read(text: str) -> Message:
    return parse_message(text)[0]


def names(text: str) -> list[str]:
    """List the calls that would run."""
    return [call.name for call in read(text).tool_calls if not call.error]


def errors(text: str) -> list[str]:
    return [call.error for call in read(text).tool_calls if call.error]


def arguments(text: str) -> dict:
    (call,) = read(text).tool_calls
    assert not call.error
    return dict(call.arguments)


def with_arguments(written: str) -> str:
    return f'{{"name": "ask", "parameters": {written}}}'


# -- where a call begins and ends ------------------------------------------------------------------


def test_thinking_text_and_calls():
    message, warnings = parse_message(f"<think>\nhm\n</think>\n\nI ask.\n{ASK}; {RUN}\n")
    ask = ToolCall("call_0", "ask", {"expert": "amber"})
    assert message == Message("assistant", "I ask.", "hm", (ask, ToolCall("call_1", "run")))
    assert warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        f"{ASK}; {RUN}",
        f"{ASK}{RUN}",
        f"{ASK}\n\n{RUN}",
        f"[{ASK}, {RUN}]",
        f"[\n  {ASK},\n  {RUN}\n]",
        f"<|python_tag|>{ASK}; {RUN}",
        f"\n\n {ASK}\n {RUN}",
    ],
)
def test_several_calls(text: str):
    message, warnings = parse_message(text)
    assert names(text) == ["ask", "run"] and message.content == "" and warnings == ()


def test_a_call_after_a_sentence_begins_a_line():
    message = read(f"Let us ask.\n{ASK}")
    assert (names(f"Let us ask.\n{ASK}"), message.content) == (["ask"], "Let us ask.")


@pytest.mark.parametrize(
    "text", ["42 < 43 {}", f"I could write {ASK} here.", "A set:\n{1, 2}", '{1}: see {"a": 1}'[3:]]
)
def test_braces_within_a_sentence_are_content(text: str):
    assert parse_message(text) == (Message("assistant", text.strip()), ())


def test_a_sentence_after_a_call_is_kept_and_the_call_runs():
    message = read(f"{ASK} Let us see.")
    assert (names(f"{ASK} Let us see."), message.content) == (["ask"], "Let us see.")


@pytest.mark.parametrize("tag", ["</tool_call>", "<think>", "</think>", "; {", '\n{"name": "run"}', "<|python_tag|>"])
def test_whatever_stands_in_a_string_reaches_the_tool(tag: str):
    text = f'print("{tag}")'
    assert arguments(with_arguments(json.dumps({"code": text}))) == {"code": text}


def test_a_call_nested_in_the_arguments_of_another_does_not_run():
    assert arguments(with_arguments(f'{{"code": {RUN}}}')) == {"code": {"name": "run", "parameters": {}}}
    assert names(with_arguments(f'{{"code": {RUN}, oops}}')) == []


@pytest.mark.parametrize(
    "broken",
    [
        '{"name": "x", oops}',
        '{"name": "x", "parameters": {"a": "',
        "{'name': 'x'}",
        "{}",
        '{"a":' * 5000,
        '{"name": 3}',
    ],
)
@pytest.mark.parametrize("border", ["\n", "; "])
def test_a_broken_call_takes_nothing_from_its_neighbours(broken: str, border: str):
    text = border.join([ASK, broken, RUN])
    told = [(call.id, call.name, bool(call.error)) for call in read(text).tool_calls]
    assert told[0] == ("call_0", "ask", False) and told[1][2]
    assert told[2:] == [("call_2", "run", False)]


def test_a_call_cut_by_the_length_limit_is_broken():
    assert "not valid JSON" in errors(ASK[:30])[0]


def test_a_turn_with_very_many_calls_runs_none():
    assert len(names(RUN * MAX_CALLS)) == MAX_CALLS
    assert names(RUN * (MAX_CALLS + 1)) == [] and str(MAX_CALLS) in errors(RUN * (MAX_CALLS + 1))[0]


# -- thinking --------------------------------------------------------------------------------------


def test_a_call_quoted_in_the_thinking_does_not_run():
    message, warnings = parse_message(f"<think>\n{ASK}\n</think>{RUN}")
    assert [c.name for c in message.tool_calls] == ["run"] and message.reasoning == ASK and warnings == ()


def test_unclosed_thinking_takes_the_rest():
    message, warnings = parse_message(f"Well. <think>\n{ASK}")
    assert message == Message("assistant", "Well.", ASK) and any("not closed" in w for w in warnings)


def test_thinking_that_was_opened_by_the_prompt():
    message, warnings = parse_message(f"{ASK}</think>\n\n{RUN}")
    assert message == Message("assistant", "", ASK, (ToolCall("call_0", "run"),))
    assert any("not opened" in w for w in warnings)


# -- the call itself -------------------------------------------------------------------------------


def test_arguments_as_object_string_and_string_of_string():
    value = {"expert": "amber", "n": [1, {"deep": None}]}
    once = json.dumps(value)
    texts = [once, json.dumps(once), json.dumps(json.dumps(once))]
    assert [arguments(with_arguments(text)) for text in texts] == [value] * 3


def test_both_names_of_the_arguments_are_read_but_not_at_once():
    assert read(ASK.replace("parameters", "arguments")) == read(ASK)
    assert "twice" in errors('{"name": "a", "parameters": {}, "arguments": {"x": 1}}')[0]


def test_the_type_that_these_models_write_is_not_worth_a_warning():
    assert parse_message(ASK.replace('{"name"', '{"type": "function", "name"', 1)) == parse_message(ASK)
    assert "id" in parse_message(ASK.replace('{"name"', '{"id": 1, "name"', 1))[1][0]


@pytest.mark.parametrize("body", ["{}", '{"name": ""}', '{"name": 3}', '{"parameters": {}}', '{"answer": 4}'])
def test_a_call_without_a_name_is_an_error_that_shows_the_form(body: str):
    (call,) = read(body).tool_calls
    assert "names no tool" in call.error and '{"name": "…", "parameters": {…}}' in call.error


@pytest.mark.parametrize("written", ["[1]", "null", "3", '"text"', '""', '"[1]"', '"{"'])
def test_arguments_that_are_no_object_are_an_error(written: str):
    (call,) = read(with_arguments(written)).tool_calls
    assert "'parameters'" in call.error and call.name == "ask" and call.arguments == {}


def test_literal_and_escaped_characters_and_raw_line_ends():
    escaped = r'{"place": "\u5317\u4eac", "mood": "\ud83d\ude42"}'
    assert arguments(with_arguments(escaped)) == {"place": "北京", "mood": "🙂"}
    assert "北京" in render_message(read(with_arguments(escaped)))
    assert arguments(with_arguments('{"code": "if x:\n\ty()"}')) == {"code": "if x:\n\ty()"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 5000])
def test_numbers_that_are_none(number: str):
    assert names(f'{with_arguments(f"""{{"n": {number}}}""")}\n{RUN}') == ["run"]


def test_depth_is_bounded():
    deep = '{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}"
    assert "levels" in errors(with_arguments(deep))[0]


@pytest.mark.parametrize(
    "unit",
    ["<think>", "</think>", '{"name":"', '\n{"name": "', ';{"name":', "{}", "{", '{"a":', "\n", "; ", "[", "}",
     "\n{ \n", '}{"name":[', "<|python_tag|>", '\n{"name":"x","y":"\n', RUN],
)  # fmt: skip
def test_no_text_is_slow(unit: str):
    for before in ("", "x"):
        began = time.process_time()
        parse_message(before + unit * (400_000 // len(unit)))
        assert time.process_time() - began < 2.0
