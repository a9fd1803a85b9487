"""Random legal play and scripted models."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolorchestra.chat.legal import RandomLegal
from toolorchestra.chat.parse import parse_message, render_message
from toolorchestra.chat.scripted import Scripted
from toolorchestra.errors import ModelError
from toolorchestra.pricing import Usage
from toolorchestra.protocols import ChatModel, Sampling
from toolorchestra.tools.arguments import check_arguments, require_supported
from toolorchestra.types import Completion, Message, ToolCall, ToolSpec


def schema(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def spec(name: str, parameters: dict[str, Any] | None = None, ends: bool = False) -> ToolSpec:
    return ToolSpec(name, "a tool", schema() if parameters is None else parameters, ends=ends)


ASK = spec("ask", schema(["expert"], expert={"type": "string", "enum": ["amber", "blue"]}, note={"enum": ["x"]}))
RUN = spec("run", schema(["code"], code={"type": "string", "examples": ["print(1)", "print(2)"]}))
FREE = spec("free", schema(["query"], query={"type": "string"}))
SUBMIT = spec("submit", ends=True)
TOOLS = [ASK, RUN, FREE, SUBMIT]


def conversation(results: int) -> list[Message]:
    said = [Message("assistant", "…"), Message("tool", "42", tool_call_id="call_0")]
    return [Message("user", "?"), *said * results]


def complete(
    model: ChatModel, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), seed: int = 0
) -> Completion:
    return asyncio.run(model.complete(messages, tools, Sampling(seed=seed)))


def moves(results: int, tools: Sequence[ToolSpec] = TOOLS, count: int = 300, **more: Any) -> list[ToolCall]:
    """Play the same turn with many seeds."""
    model = RandomLegal(0, **more)
    said = [complete(model, conversation(results), tools, seed).message for seed in range(count)]
    return [call for message in said for call in message.tool_calls]


# -- random legal play -----------------------------------------------------------------------------


def test_the_first_move_never_ends_and_is_uniform_over_tools():
    counts = Counter(call.name for call in moves(0))
    assert set(counts) == {"ask", "run"} and min(counts.values()) > 110


def test_values_are_uniform_and_optional_ones_are_left_out():
    counts = Counter(str(dict(call.arguments)) for call in moves(0, [ASK]))
    assert set(counts) == {"{'expert': 'amber'}", "{'expert': 'blue'}"} and min(counts.values()) > 110


def test_a_result_makes_submitting_legal():
    counts = Counter(call.name for call in moves(1))
    assert set(counts) == {"ask", "run", "submit"} and min(counts.values()) > 70


def test_after_enough_results_it_submits():
    assert {call.name for call in moves(3)} == {"submit"}
    assert {call.name for call in moves(3, max_calls=4)} == {"ask", "run", "submit"}
    assert {call.name for call in moves(1, max_calls=1)} == {"submit"}


def test_integers_booleans_and_objects_are_drawn():
    inner = schema(["on"], on={"type": "boolean"}, off={"type": "string"})
    tool = spec("t", schema(["n", "o"], n={"type": "integer", "minimum": 0.5, "maximum": 3}, o=inner))
    drawn = [call.arguments for call in moves(0, [tool])]
    assert {a["n"] for a in drawn} == {1, 2, 3}
    assert {a["o"]["on"] for a in drawn} == {True, False} and all(set(a["o"]) == {"on"} for a in drawn)


@pytest.mark.parametrize(
    "parameters",
    [
        schema(["x"], x={"type": "string"}),
        schema(["x"], x={"type": "integer", "minimum": 1}),
        schema(["x"], x={"type": "integer", "minimum": 0.2, "maximum": 0.8}),
        schema(["x"], x={"type": "string", "enum": []}),
        schema(["x"], x=schema(["y"], y={"type": "string"})),
        schema(["x"]),
        {"type": "object", "required": ["x"]},
    ],
)
def test_a_tool_whose_arguments_cannot_be_drawn_is_illegal(parameters: dict[str, Any]):
    assert {call.name for call in moves(0, [spec("t", parameters), ASK], 40)} == {"ask"}


@pytest.mark.parametrize(("tools", "results"), [([], 0), ([FREE], 0), ([SUBMIT], 0), ([ASK], 3)])
def test_without_a_legal_move_it_says_so(tools: list[ToolSpec], results: int):
    assert complete(RandomLegal(0), conversation(results), tools).message == Message("assistant", "I cannot act.")


def test_it_costs_nothing_and_has_a_name():
    done = complete(RandomLegal(0, name="dice"), conversation(0), TOOLS)
    assert (done.usage, done.finish_reason, done.model) == (Usage(), "stop", "dice")


def test_moves_depend_on_seeds_and_turn_alone():
    def play(seed: int, sampling: Sampling, results: int = 1) -> list[Message]:
        model = RandomLegal(seed)
        tools = [spec("t", schema(["n"], n={"type": "integer", "minimum": 0, "maximum": 10**30}))]
        return [asyncio.run(model.complete(conversation(results), tools, sampling)).message for _ in range(2)]

    first = play(0, Sampling(seed=5, conversation="a"))
    assert first[0] == first[1] == play(0, Sampling(seed=5, conversation="b", temperature=0.0))[0]
    others = [play(1, Sampling(seed=5)), play(0, Sampling(seed=6)), play(0, Sampling(seed=5), 2)]
    assert all(other[0] != first[0] for other in others)


def test_it_thinks_about_each_move():
    model = RandomLegal(0, think=lambda messages, tools, call, luck: f"{len(messages)} {len(tools)} {call.name}")
    for results in (0, 1):
        messages = conversation(results)
        said = complete(model, messages, TOOLS).message
        assert said.reasoning == f"{len(messages)} 4 {said.tool_calls[0].name}"


SCHEMAS = st.deferred(lambda: st.sampled_from(SIMPLE) | st.dictionaries(NAMES, SCHEMAS, max_size=3).map(require_some))
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3)
SIMPLE: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "boolean"},
    {"type": "string", "enum": ["北京", "</tool_call>"]},
    {"enum": [1, None, "1"]},
    {"type": "string", "examples": ["x\ny", '"']},
    {"type": "integer", "minimum": -2, "maximum": 2},
    {"type": "integer"},
    {"type": "array", "items": {"type": "string"}},
]


def require_some(properties: dict[str, Any]) -> dict[str, Any]:
    return schema(sorted(properties)[:2], **properties)


TOOL_SCHEMAS = st.dictionaries(NAMES, SCHEMAS, max_size=3).map(require_some)


@settings(deadline=None)
@given(st.dictionaries(NAMES.filter(str.strip), TOOL_SCHEMAS, max_size=3), st.integers(0, 4), st.integers(0, 99))
def test_every_move_over_any_tools_is_legal_and_can_be_written(
    offers: dict[str, dict[str, Any]], results: int, seed: int
):
    tools = {name: spec(name, parameters, ends=name < "b") for name, parameters in offers.items()}
    message = complete(RandomLegal(1), conversation(results), list(tools.values()), seed).message
    assert parse_message(render_message(message)) == (message, ())
    for call in message.tool_calls:
        require_supported(tools[call.name].parameters)
        assert check_arguments(tools[call.name].parameters, call.arguments) == (call.arguments, ())
        assert results > 0 if tools[call.name].ends else results < 3


# -- scripted models -------------------------------------------------------------------------------


def say(model: ChatModel, *texts: str) -> list[str]:
    return [complete(model, [Message("user", text)]).message.content for text in texts]


def test_a_script_is_said_in_order_and_runs_out():
    model = Scripted(["one", Message("assistant", "two")])
    assert say(model, "", "") == ["one", "two"]
    with pytest.raises(ModelError, match="nothing left to say after 2"):
        say(model, "")


def test_a_script_can_repeat_its_end():
    assert say(Scripted(["one", "two"], repeat=True), *"....") == ["one", "two", "two", "two"]


@pytest.mark.parametrize("repeat", [True, False])
def test_an_empty_script_has_nothing_to_say(repeat: bool):
    with pytest.raises(ModelError, match="nothing left to say"):
        say(Scripted([], repeat=repeat), "")


def test_texts_are_read_as_a_policys_are():
    done = complete(Scripted([f"<think>hm</think>{'<tool_call>' * 2}{{}}"]), [])
    assert done.message.reasoning == "hm" and done.message.tool_calls[0].error
    assert done.warnings


def test_a_function_sees_the_conversation():
    def script(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
        return f"{messages[-1].content} {tools[0].name} {sampling.seed}"

    model = Scripted(script, name="echo", usage=Usage(output_tok=3))
    done = complete(model, [Message("user", "hi")], [ASK], seed=7)
    assert done == Completion(Message("assistant", "hi ask 7"), "stop", Usage(output_tok=3), "echo")
