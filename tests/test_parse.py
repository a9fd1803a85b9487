"""Reading what a policy wrote: every case that broke a real system, and laws over any text."""

import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolorchestra.chat.calls import MAX_CALLS, MAX_DEPTH
from toolorchestra.chat.parse import parse_message, render_call, render_message
from toolorchestra.records import from_json, to_json
from toolorchestra.types import Message, ToolCall

# `make fuzz` raises this by its profile; the variable, by any figure.
EXAMPLES = int(os.environ.get("TOOLORCHESTRA_FUZZ_EXAMPLES", max(300, settings().max_examples)))

ASK = '<tool_call>{"name": "ask", "arguments": {"expert": "amber"}}</tool_call>'
RUN = '<tool_call>{"name": "run", "arguments": {}}</tool_call>'


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
    return f'<tool_call>{{"name": "ask", "arguments": {written}}}</tool_call>'


# -- the usual form --------------------------------------------------------------------------------


def test_thinking_text_and_calls():
    message, warnings = parse_message(f"<think>\nhm\n</think>\n\nI ask.\n{ASK}\n{RUN}\n")
    ask = ToolCall("call_0", "ask", {"expert": "amber"})
    assert message == Message("assistant", "I ask.", "hm", (ask, ToolCall("call_1", "run")))
    assert warnings == ()


def test_plain_text_is_content():
    assert parse_message(" 42 < 43 {} ") == (Message("assistant", "42 < 43 {}"), ())


def test_text_around_calls_is_kept_apart():
    assert read(f"one {ASK} two {RUN}").content == "one\ntwo"


def test_the_canonical_text_of_a_call():
    assert render_call("ask", {"expert": "amber"}) == ASK
    assert (
        render_call("say", {"text": "北京"}) == '<tool_call>{"name": "say", "arguments": {"text": "北京"}}</tool_call>'
    )


# -- where a call begins and ends ------------------------------------------------------------------


def test_a_sentence_before_the_closing_tag_is_a_warning():
    message, warnings = parse_message(ASK.replace("</tool_call>", " Let us see. </tool_call>"))
    assert message == read(ASK)
    assert any("Let us see." in w for w in warnings)


def test_a_sentence_before_the_json_is_a_warning():
    message, warnings = parse_message(ASK.replace("<tool_call>", "<tool_call>```json\n"))
    assert message == read(ASK)
    assert any("```json" in w for w in warnings)


@pytest.mark.parametrize("tag", ["<tool_call>", "</tool_call>", "<think>", "</think>", "</tool_call></tool_call>"])
def test_a_tag_inside_a_string_reaches_the_tool(tag: str):
    text = f'print("{tag}")'
    assert arguments(with_arguments(json.dumps({"code": text}))) == {"code": text}


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{ASK}",
        f"<tool_call>{ASK}</tool_call>",
        f"<tool_call>\n<tool_call>\n{ASK}",
        f"<tool_call>I call {ASK}</tool_call>",
        f"{ASK}</tool_call>",
        f"</tool_call>{ASK}",
        ASK.replace("</tool_call>", f"{RUN}</tool_call>"),
    ],
)
def test_doubled_and_nested_tags_are_one_call(text: str):
    message, warnings = parse_message(text)
    assert message.tool_calls == read(ASK).tool_calls
    assert message.content == "" and warnings


def test_a_call_nested_in_the_arguments_of_another_does_not_run():
    text = with_arguments(f'{{"code": {RUN}}}')
    assert names(text) == [] and len(errors(text)) == 1


@pytest.mark.parametrize("rest", ["", "\n", " and then"])
def test_a_missing_closing_tag_at_the_end(rest: str):
    message, warnings = parse_message(ASK.removesuffix("</tool_call>") + rest)
    assert message.tool_calls == read(ASK).tool_calls
    assert any("missing" in w for w in warnings)


def test_a_missing_closing_tag_between_two_calls():
    assert names(f"{ASK.removesuffix('</tool_call>')}\n{RUN}") == ["ask", "run"]


@pytest.mark.parametrize(
    "broken",
    [
        '<tool_call>{"name": "x", oops}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {"a": "</tool_call>',
        '<tool_call>{"name": "x", ',
        "<tool_call>{'name': 'x'}</tool_call>",
        "<tool_call>x()</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>" + '{"a":' * 5000 + "</tool_call>",
    ],
)
def test_a_broken_call_takes_nothing_from_its_neighbours(broken: str):
    message = read(f"{ASK}{broken}{RUN}")
    assert [(c.id, c.name) for c in message.tool_calls if not c.error] == [("call_0", "ask"), ("call_2", "run")]
    assert len(errors(f"{ASK}{broken}{RUN}")) == 1


def test_an_opening_tag_at_the_end_is_a_broken_call():
    assert "no JSON object" in errors("well <tool_call>")[0]


def test_a_call_cut_by_the_length_limit_is_broken():
    assert "not valid JSON" in errors(ASK[:40])[0]


def test_a_turn_with_very_many_calls_runs_none():
    assert len(names(RUN * MAX_CALLS)) == MAX_CALLS
    assert names(RUN * (MAX_CALLS + 1)) == [] and str(MAX_CALLS) in errors(RUN * (MAX_CALLS + 1))[0]


# -- thinking --------------------------------------------------------------------------------------


def test_a_call_quoted_in_the_thinking_does_not_run():
    message, warnings = parse_message(f"<think>I could write {ASK}.</think>{RUN}")
    assert [c.name for c in message.tool_calls] == ["run"]
    assert message.reasoning == f"I could write {ASK}." and message.content == "" and warnings == ()


def test_unclosed_thinking_takes_the_rest():
    message, warnings = parse_message(f"Well. <think>I could write {ASK} or")
    assert message == Message("assistant", "Well.", f"I could write {ASK} or")
    assert any("not closed" in w for w in warnings)


def test_thinking_that_was_opened_by_the_prompt():
    message, warnings = parse_message(f"I could write {ASK}.</think>{RUN}")
    assert message == Message("assistant", "", f"I could write {ASK}.", (ToolCall("call_0", "run"),))
    assert any("not opened" in w for w in warnings)


def test_a_call_between_two_ends_of_thinking_does_not_run():
    text = f"<think>one <think>two</think> {ASK} </think> {RUN}"
    assert names(text) == ["run"] and "one" in read(text).reasoning and "two" in read(text).reasoning


def test_thinking_after_an_unclosed_call_still_hides_its_calls():
    unclosed = ASK.removesuffix("</tool_call>")
    message = read(f"{unclosed}<think>{RUN}</think></tool_call>")
    assert [c.name for c in message.tool_calls] == ["ask"] and message.reasoning == RUN
    assert names(f"Perhaps {unclosed} or not.</think></tool_call>{RUN}") == ["run"]


def test_several_thoughts_are_joined():
    message = read(f"<think>a</think>x{ASK}<think>b</think>y")
    assert (message.reasoning, message.content) == ("a\nb", "x\ny") and len(message.tool_calls) == 1


# -- the call itself -------------------------------------------------------------------------------


def test_arguments_as_object_string_and_string_of_string():
    value = {"expert": "amber", "n": [1, {"deep": None}]}
    once = json.dumps(value)
    texts = [once, json.dumps(once), json.dumps(json.dumps(once))]
    assert [arguments(with_arguments(text)) for text in texts] == [value] * 3


def test_a_string_of_an_argument_is_not_unwrapped():
    assert arguments(with_arguments('{"code": "{\\"a\\": 1}"}')) == {"code": '{"a": 1}'}


@pytest.mark.parametrize("written", ["[1]", "null", "3", "true", '"text"', '""', '"[1]"', '"{} {}"', '"{"'])
def test_arguments_that_are_no_object_are_an_error(written: str):
    (call,) = read(with_arguments(written)).tool_calls
    assert call.error and call.name == "ask" and call.arguments == {}


def test_no_arguments_at_all():
    assert read('<tool_call>{"name": "run"}</tool_call>') == read(RUN)


@pytest.mark.parametrize("body", ["{}", '{"name": ""}', '{"name": " "}', '{"name": 3}', '{"arguments": {}}'])
def test_a_call_without_a_name_is_an_error(body: str):
    (call,) = read(f"<tool_call>{body}</tool_call>").tool_calls
    assert "names no tool" in call.error and '"arguments"' in call.error and call.name == ""


def test_other_fields_of_a_call_are_a_warning():
    message, warnings = parse_message(RUN.replace('{"name"', '{"id": 1, "name"'))
    assert message == read(RUN) and any("id" in w for w in warnings)


def test_literal_and_escaped_characters_are_the_same():
    literal = {"place": "北京", "mood": "🙂"}
    escaped = r'{"place": "\u5317\u4eac", "mood": "\ud83d\ude42"}'
    assert arguments(with_arguments(escaped)) == arguments(with_arguments(json.dumps(literal))) == literal
    assert "北京" in render_message(read(with_arguments(escaped)))


def test_raw_line_ends_and_tabs_in_strings_are_kept():
    assert arguments(with_arguments('{"code": "if x:\n\ty()"}')) == {"code": "if x:\n\ty()"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_are_none(number: str):
    text = with_arguments(f'{{"n": {number}}}') + RUN
    assert names(text) == ["run"] and len(errors(text)) == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "a", "name": "b"}',
        '{"name": "a", "arguments": {}, "arguments": {"x": 1}}',
        '{"name": "a", "arguments": {"x": 1, "x": 2}}',
        '{"name": "a", "arguments": "{\\"x\\": 1, \\"x\\": 2}"}',
    ],
)
def test_a_key_that_stands_twice_is_an_error(body: str):
    assert "twice" in errors(f"<tool_call>{body}</tool_call>")[0]


@pytest.mark.parametrize("text", ["a\ud800b", with_arguments(r'{"a\udc00": ["\ud800"]}'), "<think>\udfff</think>"])
def test_lone_surrogates_never_reach_a_record(text: str):
    message = read(text)
    assert from_json(Message, to_json(message)) == message and "\ufffd" in to_json(message)


def nested(levels: int) -> str:
    """Write an object with so many levels in all."""
    return '{"a": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


def test_depth_is_bounded():
    assert arguments(with_arguments(nested(MAX_DEPTH)))
    for levels in (MAX_DEPTH + 1, 300, 3_000, 200_000):
        assert "levels" in errors(with_arguments(nested(levels)))[0]
        assert "levels" in errors(with_arguments(json.dumps(nested(levels))))[0]


@pytest.mark.parametrize(
    "unit",
    ["<tool_call>", "</tool_call>", "<think>", "</think>", '<tool_call>{"', "<tool_call>{", '<tool_call>{"a":"", "',
     '{"a":', "<think></think>", "<tool_call>{}</tool_call>", RUN, '<tool_call>{"":"'],
)  # fmt: skip
def test_no_text_is_slow(unit: str):
    began = time.process_time()
    parse_message(unit * (400_000 // len(unit)))
    assert time.process_time() - began < 2.0


def test_very_many_keys_are_not_slow():
    keys = ", ".join(f'"k{n}": 0' for n in range(50_000))
    began = time.process_time()
    assert errors(with_arguments(f'{{{keys}, "k49999": 1}}'))
    assert time.process_time() - began < 2.0


# -- laws ------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TAGGED = st.lists(st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", '"', "\\"]) | TEXT).map(
    "".join
)
JSON = st.recursive(SCALARS | TAGGED, lambda inner: st.lists(inner) | st.dictionaries(TAGGED, inner), max_leaves=8)
CALLS = st.lists(st.tuples(TAGGED.filter(str.strip), st.dictionaries(TAGGED, JSON, max_size=3)), max_size=3)


def without(*tags: str) -> st.SearchStrategy[str]:
    return TAGGED.map(str.strip).filter(lambda text: not any(tag in text for tag in tags))


MESSAGES = st.builds(
    Message,
    st.just("assistant"),
    content=without("<think>", "</think>", "<tool_call>", "</tool_call>"),
    reasoning=without("</think>"),
    tool_calls=CALLS.map(lambda calls: tuple(ToolCall(f"call_{n}", *call) for n, call in enumerate(calls))),
)


@settings(deadline=None, max_examples=EXAMPLES)
@given(MESSAGES)
def test_what_is_rendered_is_read_back(message: Message):
    assert parse_message(render_message(message)) == (message, ())


FRAGMENTS = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call", "{", "}", "[", "]", '"', "\\", ",", ":", " ",
     "\n", '"name"', '"arguments"', '"ask"', "{}", ASK, RUN, ASK[:30], ASK[30:], "NaN", "-", "1e999", "null", "北京",
     "\\ud83d", "\\u", "\ud800", "\udc00", "\x00", "I could"]
)  # fmt: skip
POLICY_TEXT = st.lists(FRAGMENTS | st.text(max_size=3), max_size=24).map("".join)


@settings(deadline=None, max_examples=EXAMPLES)
@given(POLICY_TEXT)
def test_any_text_is_read(text: str):
    message, warnings = parse_message(text)
    assert message.role == "assistant"
    assert [call.id for call in message.tool_calls] == [f"call_{n}" for n in range(len(message.tool_calls))]
    assert all(call.error or call.name.strip() for call in message.tool_calls)
    assert all(isinstance(warning, str) for warning in warnings)
    assert from_json(Message, to_json(message)) == message


@settings(deadline=None, max_examples=EXAMPLES)
@given(POLICY_TEXT.map(lambda text: text.replace("</think>", "")))
def test_whatever_is_quoted_in_the_thinking_does_not_run(quoted: str):
    assert names(f"<think>{quoted}") == []
    assert names(f"<think>{quoted}</think>{RUN}") == ["run"]


@settings(deadline=None, max_examples=EXAMPLES)
@given(POLICY_TEXT.filter(lambda text: not any(tag in text for tag in ("<think>", "</think>", "</tool_call"))))
def test_whatever_went_before_a_later_call_runs(text: str):
    assert names(f"{text}</tool_call>{RUN}")[-1:] == ["run"]
