"""The pool, what a task is offered of it, and how simulated experts answer."""

import asyncio
from pathlib import Path

import pytest

from toolorchestra.chat.simulated import UNKNOWN, SimulatedExpert, support
from toolorchestra.environments.embedded.pool import ExpertProfile, Spread, draw_offer, load_pool
from toolorchestra.errors import ConfigError
from toolorchestra.pricing import Price, bill
from toolorchestra.prompts import expert_messages, show_price
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Observation, Task

KINDS = ("logic", "geography", "stories")
GOOD = """[[expert]]
model = "m"
price = { input_usd_per_mtok = 1.0, output_usd_per_mtok = 2.0 }
reading = 0.9
latency = { median = 2.0, spread = 0.1 }
output = { median = 100.0, spread = 0.1 }
skill = { default = [0.5, 0.1] }
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("reading = 0.9", "reading = 1.9", "reading = 1.9"),
        ("reading = 0.9", "raeding = 0.9", "reading"),
        ("price = { input", "prize = { input", "price"),
        ("default = [0.5, 0.1]", "logic = [0.5, 0.1]", "skill.default"),
        ("default = [0.5, 0.1]", "default = [0.5, 7]", "7"),
        ('model = "m"', 'model = " "', "empty"),
        ("median = 2.0", "median = 0.0", "median"),
        ("input_usd_per_mtok = 1.0", "input_usd_per_mtok = 0.0000011", "per million"),
    ],
)
def test_a_faulty_pool_is_refused_with_the_place(tmp_path: Path, old: str, new: str, said: str):
    path = tmp_path / "pool.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=said) as caught:
        load_pool(path)
    assert str(path) in str(caught.value)


def test_an_expert_declared_twice_is_refused(tmp_path: Path):
    path = tmp_path / "pool.toml"
    path.write_text(GOOD + GOOD)
    with pytest.raises(ConfigError, match="twice"):
        load_pool(path)


def test_the_bundled_pool_has_six_experts_and_calls_them_simulated():
    pool = load_pool()
    assert len(pool) >= 6 and all(p.model.startswith("sim-") for p in pool)


def test_an_expert_has_the_same_alias_and_price_in_part_and_whole():
    pool = load_pool()
    for n in range(50):
        part = draw_offer(pool, f"t{n}", 0, KINDS, (3, 5))
        whole = {e.model: e for e in draw_offer(pool, f"t{n}", 0, KINDS, (3, 5), full=True)}
        assert 3 <= len(part) <= 5 and len(whole) == len(pool)
        assert all(whole[e.model] == e for e in part)
        assert len({e.alias for e in whole.values()}) == len(pool)
        assert part == draw_offer(pool, f"t{n}", 0, KINDS, (3, 5))


def test_tasks_differ_in_aliases_and_prices():
    pool = load_pool()
    drawn = [{e.model: e for e in draw_offer(pool, f"t{n}", 0, KINDS, (3, 5), full=True)} for n in range(30)]
    assert len({d["sim-frontier"].alias for d in drawn}) > 10
    assert len({d["sim-frontier"].price for d in drawn}) == 5


def test_the_price_that_is_shown_is_the_price_that_is_billed():
    for expert in draw_offer(load_pool(), "t", 3, KINDS, (3, 5), full=True):
        shown_in, shown_out = map(float, show_price(expert.price).split()[0].split("/"))
        assert bill(expert.price, 1_000_000, 1_000_000).cost_usd == pytest.approx(shown_in + shown_out)


PROFILE = ExpertProfile("m", Price(1, 1), {"default": (0.6, 0.2)}, 0.9, Spread(5, 0.2), Spread(100, 0.2))
TASKS = {
    f"q{n}": Task(f"t{n}", "logic", f"q{n}", {"gold": "right", "wrong": ["w1", "w2", "w3"]}, difficulty=(n % 3) / 2)
    for n in range(1500)
}


def ask(question: str, attempt: int = 0, gathered: tuple[Observation, ...] = (), seed: int = 0) -> Completion:
    model = SimulatedExpert(PROFILE, TASKS, seed)
    return asyncio.run(model.complete(expert_messages(question, gathered), (), Sampling(attempt=attempt)))


def test_answers_are_deterministic_and_a_second_attempt_draws_anew():
    first = [ask(q).message.content for q in list(TASKS)[:60]]
    assert first == [ask(q).message.content for q in list(TASKS)[:60]]
    assert first != [ask(q, attempt=1).message.content for q in list(TASKS)[:60]]
    assert first != [ask(q, seed=1).message.content for q in list(TASKS)[:60]]


def test_it_is_right_as_often_as_its_skill_says():
    """Mean skill over difficulties 0, .5, 1 is 0.4; 1,500 draws have a standard error of 0.013."""
    right = sum(ask(q).message.content == "right" for q in TASKS) / len(TASKS)
    assert right == pytest.approx(0.4, abs=0.04)
    assert {ask(q).message.content for q in list(TASKS)[:200]} == {"right", "w1", "w2", "w3"}


def test_material_raises_the_chance_towards_reading_and_never_lowers_it():
    model = SimulatedExpert(PROFILE, TASKS, 0)
    hop2 = Task("f", "facts", "?", {"gold": "x", "wrong": ["y"], "evidence": ["d1", "d2"]}, difficulty=1.0)
    assert model.chance(hop2, "") == pytest.approx(0.2)
    assert model.chance(hop2, "[d1] a: b") == pytest.approx(0.55)
    assert model.chance(hop2, "[d1] a: b\n[d2] c: d") == pytest.approx(0.9)
    assert support(TASKS["q0"], "## python\nright") == 1.0
    assert support(TASKS["q0"], "## search\nright") == 0.0
    for q in list(TASKS)[:60]:
        helped = ask(q, gathered=(Observation("python", "code", "right"),)).message.content
        assert helped == "right" or ask(q).message.content != "right"


def test_a_question_from_elsewhere_is_answered_honestly():
    assert ask("Who are you?").message.content == UNKNOWN


def test_usage_has_tokens_and_seconds_and_leaves_the_bill_to_the_caller():
    usage = ask("q1").usage
    assert usage.input_tok > 10 and usage.output_tok > 10 and usage.latency_s > 1
    assert usage.unpriced and usage.cost_usd == 0
