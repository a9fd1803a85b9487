"""Reading drills: what they ask is in the offer, and only answers are learned."""

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from toolorchestra.chat.local import load_model
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.pricing import Price
from toolorchestra.train.drills import SHORT_DRILLS, drills, read_offer, thought
from toolorchestra.types import Expert, Sample, ToolSpec

ALIASES = ("iris", "heron", "flint", "amber", "basil", "cedar")
SUBJECTS = ("logic", "primes", "stories", "kinship", "bases", "letters")


def expert(alias: str, strengths: str) -> Expert:
    return Expert(alias, "m", Price(1, 1), strengths, 9.0)


def test_a_reading_names_everybody_who_is_strong_and_nobody_else():
    experts = [
        expert("iris", "strong: logic (iris), primes (iris)"),
        expert("flint", "strong: bases (flint); fair: logic"),
    ]
    assert thought("logic", experts) == "subject: logic (iris)"
    assert thought("primes", [*experts, expert("amber", "strong: primes (amber)")]) == (
        "subject: primes (iris), primes (amber)"
    )
    assert thought("stories", experts) == "subject: stories (none)"


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    import toolorchestra.assets

    folder = Path(toolorchestra.assets.__file__).parent / "nano"
    return ChatTemplate(load_model(folder)[1], "nano")


def test_a_drill_learns_its_answers_and_never_its_questions(template: ChatTemplate):
    for sample in islice(drills(template, ALIASES, SUBJECTS, 0), 20):
        learned = template.tokenizer.decode([i for i, m in zip(sample.token_ids_T, sample.mask_T, strict=True) if m])
        given = template.tokenizer.decode([i for i, m in zip(sample.token_ids_T, sample.mask_T, strict=True) if not m])
        assert learned.count("</think>") == 5 and '"expert": "' in learned
        assert given.count("<think>subject:") == 5 and "strong:" not in learned


def test_drills_are_a_function_of_the_seed(template: ChatTemplate):
    first, again, other = (list(islice(drills(template, ALIASES, SUBJECTS, seed), 5)) for seed in (0, 0, 1))
    assert first == again != other


def test_the_bundled_policy_calls_in_about_ten_tokens(template: ChatTemplate):
    from toolorchestra.chat.parse import render_call

    assert len(template.encode(render_call("ask", {"expert": "iris"}))) <= 6


def test_an_offer_is_read_across_all_of_its_tools():
    iris, heron = expert("iris", "strong: logic (iris)"), expert("heron", "strong: logic (heron)")
    specs = [ToolSpec("ask", "", {}, experts=(iris,)), ToolSpec("python", "", {}), ToolSpec("b", "", {}, (heron,))]
    assert read_offer("logic", specs) == "subject: logic (iris), logic (heron)"
    assert read_offer("logic", specs[1:2]) == "subject: logic (none)"


def runs(template: ChatTemplate, sample: Sample) -> list[tuple[bool, str]]:
    """Split a sample where its mask changes: whether a stretch is learned, and its text."""
    parts: list[tuple[bool, list[int]]] = []
    for token, learned in zip(sample.token_ids_T, sample.mask_T, strict=True):
        if not parts or parts[-1][0] != learned:
            parts.append((learned, []))
        parts[-1][1].append(token)
    return [(learned, template.tokenizer.decode(ids)) for learned, ids in parts]


def test_exactly_the_names_and_the_call_are_learned(template: ChatTemplate):
    """What is learned after a subject is worked out anew from the lines of the offer, as a reader would."""
    for sample in islice(drills(template, ALIASES, SUBJECTS, 0), 30):
        parts = runs(template, sample)
        offer = dict(line.split(": strong: ", 1) for line in parts[0][1].partition("<think>")[0].splitlines())
        asked = [text.rpartition("<think>subject: ")[2] for learned, text in parts if not learned]
        answers = [text for learned, text in parts if learned]
        call = answers[-1].partition("</think>")[2]
        assert len(set(asked)) == len(answers) == 5
        for subject, answer in zip(asked, answers, strict=True):
            strong = [name for name, text in offer.items() if f"{subject} ({name})" in text] or ["none"]
            named = answer.partition("</think>")[0]
            assert subject + named == ", ".join(f"{subject} ({name})" for name in strong)
        (body,) = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", call, re.DOTALL)
        assert json.loads(body)["name"] == "ask" and json.loads(body)["arguments"]["expert"] in offer


def test_a_drill_is_laid_out_for_imitation(template: ChatTemplate):
    for number, sample in enumerate(islice(drills(template, ALIASES, SUBJECTS, 0), 10)):
        assert len(sample.token_ids_T) == len(sample.mask_T) == len(sample.logprobs_T)
        assert sample.group == number and sample.advantage == 1.0 and set(sample.logprobs_T) == {0.0}


def test_prices_come_in_only_later(template: ChatTemplate):
    some = drills(template, ALIASES, SUBJECTS, 0)
    early = [template.tokenizer.decode(s.token_ids_T) for s in islice(some, 10)]
    assert SHORT_DRILLS > 10 and not any("$/Mtok" in text for text in early)


def test_an_expert_is_called_at_random(template: ChatTemplate):
    """The call must teach no preference: over many drills everybody is called."""
    texts = (template.tokenizer.decode(s.token_ids_T) for s in islice(drills(template, ALIASES, SUBJECTS, 0), 60))
    assert {name for text in texts for name in re.findall(r'"expert": "(\w+)"', text)} == set(ALIASES)
