"""Laws of every form in which turns are written: any text is read, and what was written is read back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolorchestra.chat.forms import FORMS, Form
from toolorchestra.records import from_json, to_json
from toolorchestra.types import Message, ToolCall

IS_FUZZ = settings.get_current_profile_name() == "fuzz"
OUTPUTS = 100_000 if IS_FUZZ else 400  # outputs that `make fuzz` generates, and the slice of them in every run
EXAMPLES = max(200, settings().max_examples)

FRAGMENTS = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<|eot_id|>", "{", "}", "[", "]", '"',
     "\\", ",", ":", ";", " ", "\n", "\n{", "; {", "{}", '{"name"', '"name": "ask"', '"arguments": ', '"parameters": ',
     '"type": "function"', '{"name": "ask", "parameters": {"expert": "amber"}}',
     '<tool_call>{"name": "ask", "arguments": {"expert": "amber"}}</tool_call>', '{"name": "run", "arguments": "{}"}',
     "NaN", "1e999", "-", "null", "true", "北京", "\\ud83d", "\\u", "\ud800", "\udc00", "\x00", "I could", "```json\n"]
)  # fmt: skip
OUTPUT = st.lists(FRAGMENTS | st.text(max_size=3), max_size=20).map("".join)


@settings(max_examples=OUTPUTS)
@given(OUTPUT)
def test_any_output_is_read_in_every_form_and_what_is_wrong_is_told(text: str):
    for form in FORMS:
        message, warnings = form.parse(text)
        assert [call.id for call in message.tool_calls] == [f"call_{n}" for n in range(len(message.tool_calls))]
        for call in message.tool_calls:
            assert (form.keys.example in call.error) if call.error else call.name.strip()
        assert all(isinstance(warning, str) and warning for warning in warnings)
        assert from_json(Message, to_json(message)) == message


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{<"), max_size=20).map(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.tuples(WORDS.filter(bool), st.dictionaries(WORDS, JSON, max_size=3)), max_size=3)
MESSAGES = st.builds(
    Message,
    st.just("assistant"),
    content=WORDS,
    reasoning=WORDS,
    tool_calls=CALLS.map(lambda calls: tuple(ToolCall(f"call_{n}", *call) for n, call in enumerate(calls))),
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(max_examples=EXAMPLES)
@given(message=MESSAGES)
def test_what_is_written_is_read_back(form: Form, message: Message):
    assert form.parse(form.render(message)) == (message, ())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(max_examples=EXAMPLES)
@given(quoted=OUTPUT.map(lambda text: text.replace("</think>", "")))
def test_whatever_is_quoted_in_the_thinking_does_not_run(form: Form, quoted: str):
    call = form.render(Message("assistant", tool_calls=(ToolCall("call_0", "run"),)))
    assert [c.name for c in form.parse(f"<think>{quoted}</think>{call}")[0].tool_calls] == ["run"]
    assert not form.parse(f"<think>{quoted}")[0].tool_calls
