"""Drills: what they ask is in the offer, and only names are learned."""

import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from toolorchestra.chat.template import ChatTemplate
from toolorchestra.models.load import load_model
from toolorchestra.pricing import Price, Usage
from toolorchestra.train import drills as drills_module
from toolorchestra.train.drills import SHORT_DRILLS, alternate, drills, echoes, explanations, true_moves
from toolorchestra.types import Completion, Expert, Message, Sample, Task, ToolCall, ToolSpec, Trajectory, Turn

ALIASES = ("iris", "heron", "flint", "amber", "basil", "cedar")
SUBJECTS = ("logic", "primes", "stories", "kinship", "bases", "letters")


def expert(alias: str, strengths: str) -> Expert:
    return Expert(alias, "m", Price(1, 1), strengths, 9.0)


EXPERTS = (
    expert("iris", "strong: logic (iris), primes (iris)"),
    expert("flint", "strong: bases (flint); fair: logic"),
    expert("amber", "strong: primes (amber)"),
)
OFFER = (ToolSpec("ask", "", {}, EXPERTS), ToolSpec("python", "", {}), ToolSpec("submit", "", {}, ends=True))


@pytest.mark.parametrize(
    ("subject", "name", "arguments", "thinking"),
    [
        ("logic", "ask", {"expert": "iris"}, ["subject: logic; strong: logic (iris); logic; ask"]),
        ("primes", "ask", {"expert": "amber"}, ["subject: primes; strong: primes (amber); primes; ask"]),
        ("logic", "ask", {"expert": "flint"}, ["subject: logic; strong: logic (iris); logic; other (flint)"]),
        ("kinship", "ask", {"expert": "flint"}, ["subject: kinship; strong: kinship (nobody); kinship; other (flint)"]),
        ("logic", "python", {"code": "1"}, ["subject: logic; strong: logic (iris); logic; python"]),
        (
            "primes",
            "python",
            {"code": "1"},
            [
                "subject: primes; strong: primes (iris); primes; python",
                "subject: primes; strong: primes (amber); primes; python",
            ],
        ),
        ("kinship", "python", {"code": "1"}, ["subject: kinship; strong: kinship (nobody); kinship; python"]),
        ("logic", "ask", {"expert": "nobody"}, []),
        ("logic", "submit", {}, [""]),
    ],
)
def test_a_move_is_explained_by_what_the_offer_says(
    subject: str, name: str, arguments: dict[str, str], thinking: list[str]
):
    assert explanations(subject, ToolCall("", name, arguments), OFFER) == thinking


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    import toolorchestra.assets

    folder = Path(toolorchestra.assets.__file__).parent / "nano"
    return ChatTemplate(load_model(folder)[1], "nano")


def test_a_first_move_is_true_when_thinking_and_call_agree_with_the_offer():
    def played(thinking: str, *calls: ToolCall) -> Trajectory:
        completion = Completion(Message("assistant", "", thinking, calls), "stop", Usage(), "m")
        return Trajectory("t", Task("t", "logic", "?", {}, tools=OFFER), "m", (Turn(completion),), "", "submitted")

    iris, flint, nobody = (ToolCall("", "ask", {"expert": name}) for name in ("iris", "flint", "nobody"))
    strong = "subject: logic; strong: logic (iris); logic"
    true = [
        played(f"{strong}; ask", iris),
        played(f"{strong}; python", ToolCall("", "python", {"code": "1"})),
    ]
    false = [
        played("subject: primes; strong: primes (iris); primes; ask", iris),  # another subject
        played("subject: logic; strong: logic (flint); logic; ask", flint),  # only fair
        played(f"{strong}; ask", flint),  # thought of somebody else
        played(f"{strong}; other (nobody)", nobody),
        played(f"{strong}; magic", ToolCall("", "magic")),
        played(f"{strong}; ask"),
        replace(true[0], turns=()),
    ]
    assert true_moves(true) == 1 and true_moves(false) == 0 and true_moves([]) == 0
    assert true_moves([*true, *false]) == 2 / 9


def test_an_echo_is_learned_from_its_second_token_on():
    for sample in islice(echoes(50, 0), 30):
        ids, half = sample.token_ids_T, len(sample.token_ids_T) // 2
        assert ids[:half] == ids[half:] and set(ids) <= set(range(50)) and 8 <= half <= 40
        assert len(set(ids)) == half  # what follows a token is never in doubt
        assert sample.mask_T == (False,) * (half + 1) + (True,) * (half - 1)
    assert list(islice(echoes(50, 1), 3)) != list(islice(echoes(50, 0), 3)) == list(islice(echoes(50, 0), 3))


def test_reading_drills_are_mixed_with_echoes(template: ChatTemplate):
    given = list(islice(alternate(drills(template, ALIASES, SUBJECTS, 0), echoes(50, 0)), 8))
    assert [s.group for s in given] == list(range(8))
    seldom = [s.token_ids_T for s in islice(echoes(50, 0), 2)]
    often = [s.token_ids_T for s in islice(drills(template, ALIASES, SUBJECTS, 0), 6)]
    ids = [s.token_ids_T for s in given]
    assert [ids[3], ids[7]] == seldom and [*ids[:3], *ids[4:7]] == often


def test_drills_are_a_function_of_the_seed(template: ChatTemplate):
    first, again, other = (list(islice(drills(template, ALIASES, SUBJECTS, seed), 5)) for seed in (0, 0, 1))
    assert first == again != other


def test_the_bundled_policy_calls_in_about_ten_tokens(template: ChatTemplate):
    from toolorchestra.chat.parse import render_call

    assert len(template.encode(render_call("ask", {"expert": "iris"}))) <= 6


def runs(template: ChatTemplate, sample: Sample) -> list[tuple[bool, str]]:
    """Split a sample where its mask changes: whether a stretch is learned, and its text."""
    parts: list[tuple[bool, list[int]]] = []
    for token, learned in zip(sample.token_ids_T, sample.mask_T, strict=True):
        if not parts or parts[-1][0] != learned:
            parts.append((learned, []))
        parts[-1][1].append(token)
    return [(learned, template.tokenizer.decode(ids)) for learned, ids in parts]


def late(template: ChatTemplate, count: int) -> list[Sample]:
    """Take drills from a seed's full-sized ones, without making those before them."""
    return [drills_module._drill(template, ALIASES, sorted(SUBJECTS), 1.0, Random(n), n) for n in range(count)]


@pytest.mark.parametrize("is_late", [False, True])
def test_exactly_the_names_are_learned_and_what_is_said_about_them_is_true(template: ChatTemplate, is_late: bool):
    """Whether somebody is strong is worked out anew from the lines of the offer, as a reader would."""
    some = late(template, 20) if is_late else list(islice(drills(template, ALIASES, SUBJECTS, 0), 20))
    labels: set[str] = set()
    for sample in some:
        parts = runs(template, sample)
        lines = parts[0][1].partition("<think>")[0].splitlines()
        offer = {line.partition(":")[0]: line.partition("strong: ")[2].partition(";")[0] for line in lines}
        text = template.tokenizer.decode(sample.token_ids_T)
        pattern = (
            r"<think>subject: (\w+); strong: (\w+) ?\((\w+)\); (\w+); (.*?)</think><tool_call>\s*(.*?)\s*</tool_call>"
        )
        moves = re.findall(pattern, text)
        expected: list[str] = []
        for subject, again, named, once_more, move, call in moves:
            assert subject == again == once_more
            strong = {alias for alias, strengths in offer.items() if f"{subject} ({alias})" in strengths}
            assert named in (strong or {"nobody"})
            alias = named if move == "ask" else re.fullmatch(r"other ?\((\w+)\)", move)[1]  # type: ignore[index]
            assert (alias in strong) == (move == "ask")
            assert json.loads(call) == {"name": "ask", "arguments": {"expert": alias}}
            expected += [f" ({named})", *([] if move == "ask" else [f" ({alias})"]), alias]
            labels |= {move.partition(" ")[0], "nobody" if named == "nobody" else "somebody"}
        learned = [text for is_learned, text in parts if is_learned]
        assert len(moves) >= 2 and learned == expected
    assert labels == {"ask", "other", "nobody", "somebody"}


def test_a_drill_is_laid_out_for_imitation(template: ChatTemplate):
    for number, sample in enumerate(islice(drills(template, ALIASES, SUBJECTS, 0), 10)):
        assert len(sample.token_ids_T) == len(sample.mask_T) == len(sample.logprobs_T)
        assert sample.group == number and sample.advantage == 1.0 and set(sample.logprobs_T) == {0.0}


def test_prices_come_in_only_later(template: ChatTemplate):
    some = drills(template, ALIASES, SUBJECTS, 0)
    early = [template.tokenizer.decode(s.token_ids_T) for s in islice(some, 10)]
    assert SHORT_DRILLS > 10 and not any("$/Mtok" in text for text in early)
    assert all("$/Mtok" in template.tokenizer.decode(s.token_ids_T) for s in late(template, 10))


def test_an_expert_is_called_at_random(template: ChatTemplate):
    """The call must teach no preference: over many drills everybody is called."""
    texts = (template.tokenizer.decode(s.token_ids_T) for s in islice(drills(template, ALIASES, SUBJECTS, 0), 60))
    assert {name for text in texts for name in re.findall(r'"expert": "(\w+)"', text)} == set(ALIASES)
