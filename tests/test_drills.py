"""Reading drills: what they ask is in the offer, and only answers are learned."""

from itertools import islice
from pathlib import Path

import pytest

from toolorchestra.chat.local import load_model
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.pricing import Price
from toolorchestra.train.drills import drills, thought
from toolorchestra.types import Expert

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
