"""The report, from scores that were written by hand."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolorchestra.errors import DataError
from toolorchestra.evaluate.evaluation import Contestant, Score
from toolorchestra.evaluate.plots import pareto_front, save_plots
from toolorchestra.evaluate.report import Header, build_report, render_markdown

HEADER = Header("toolorchestra evaluate recipe.toml", (0, 1), 1_234_567, resamples=200)
IDLE = Contestant("idle", "idle", "does nothing")
BIG = Contestant("expert big", "expert", "big alone")
SMALL = Contestant("expert small", "expert", "small alone")
RANDOM = Contestant("random", "random", "random legal play")
TRAINED = [Contestant(f"trained (seed {n})", "trained", f"trained (seed {n})") for n in (0, 1)]
ORACLE = Contestant("oracle", "oracle", "oracle")
ALL = [ORACLE, *TRAINED, RANDOM, BIG, SMALL, IDLE]


def score(
    contestant, task, solved: bool | None = True, cost_usd=0.01, latency_s=10.0, tools=(), experts=(), seed=0, **more
):
    return Score(
        policy=contestant.name,
        seed=seed,
        task_id=f"t{task}",
        kind="even" if task % 2 == 0 else "odd",
        solved=solved,
        cost_usd=cost_usd,
        latency_s=latency_s,
        calls={tool: 1 for tool in tools},
        calls_by_model={model: 1 for model in experts},
        turns=2,
        stop=more.pop("stop", "submitted"),
        simulated=bool(experts),
        well_formed_turns=2,
        **more,
    )


def good_scores():
    """Four tasks: the trained policies solve three by program and one by the small expert, at a tenth of the cost."""
    scores = [score(IDLE, t, False, 0, 0, stop="answered") for t in range(4)]
    scores += [score(BIG, t, t < 2, experts=["big"]) for t in range(4)]
    scores += [score(SMALL, t, t < 1, 0.002, 2, experts=["small"]) for t in range(4)]
    scores += [score(RANDOM, t, t == 2, 0.004, 5, experts=["big"]) for t in range(4)]
    for who in (*TRAINED, ORACLE):
        scores += [score(who, t, True, 0.001, 1, tools=["python"]) for t in range(3)]
        scores += [score(who, 3, True, 0.001, 1, tools=["search"], experts=["small"])]
    return scores


def report_of(scores, contestants=ALL, header=HEADER):
    return build_report(contestants, scores, header)


def row(report, label):
    return next(r for r in report["rows"] if r["label"] == label)


def claim(report, start):
    return next(c for c in report["claims"] if c["claim"].startswith(start))


def test_rows_stand_in_order_and_training_seeds_are_pooled():
    report = report_of(good_scores())
    labels = [r["label"] for r in report["rows"]]
    assert labels == ["does nothing", "big alone", "small alone", "random legal play", "trained policy", "oracle"]
    assert row(report, "trained policy")["rollouts"] == 8
    assert [r["label"] for r in report["by_training_seed"]] == ["trained (seed 0)", "trained (seed 1)"]


def test_the_interval_of_pooled_policies_spans_the_training_seeds():
    """One policy solves everything, one nothing, in each of three evaluation seeds: a third might do either."""
    good, bad = TRAINED
    scores = [score(good, t, True, seed=n) for t in range(4) for n in range(3)]
    scores += [score(bad, t, False, seed=n) for t in range(4) for n in range(3)]
    pooled = row(report_of(scores), "trained policy")
    assert pooled["accuracy_percent"] == pytest.approx({"mean": 50, "low": 0, "high": 100})
    assert pooled["rollouts"] == 24 and pooled["missing"] == 0


def test_evaluation_seeds_of_a_pooled_policy_are_averaged_where_they_are_valid():
    solved = {0: [True, False], 1: [True, None]}  # by training seed, over two evaluation seeds
    scores = [score(TRAINED[p], 0, s, seed=n) for p, values in solved.items() for n, s in enumerate(values)]
    assert row(report_of(scores), "trained policy")["accuracy_percent"]["mean"] == pytest.approx(75)


def test_figures_are_percent_cents_and_seconds():
    big = row(report_of(good_scores()), "big alone")
    assert big["accuracy_percent"]["mean"] == pytest.approx(50)
    assert big["cost_cents"] == pytest.approx({"mean": 1, "low": 1, "high": 1})
    assert big["latency_s"] == pytest.approx({"mean": 10, "low": 10, "high": 10})
    assert big["accuracy_percent"]["low"] < 50 < big["accuracy_percent"]["high"]


def test_ratios_are_to_the_most_accurate_expert():
    report = report_of(good_scores())
    assert report["best_expert"] == "big alone"
    assert row(report, "trained policy")["cost_ratio"] == pytest.approx({"mean": 0.1, "low": 0.1, "high": 0.1})
    assert row(report, "small alone")["latency_ratio"]["mean"] == pytest.approx(0.2)
    assert row(report, "big alone")["cost_ratio"]["mean"] == 1


def test_of_equally_accurate_experts_the_cheaper_is_the_best():
    scores = [score(BIG, t, experts=["big"]) for t in range(3)]
    scores += [score(SMALL, t, cost_usd=0.001, experts=["small"]) for t in range(3)]
    assert report_of(scores)["best_expert"] == "small alone"


def test_an_invalid_rollout_is_counted_and_left_out_of_means():
    scores = [score(BIG, 0, True, 0.01), score(BIG, 1, None, 5.0, stop="error"), score(BIG, 2, False, 0.03)]
    big = row(report_of(scores), "big alone")
    assert (big["invalid"], big["missing"], big["stops"]) == (1, 0, {"error": 1, "submitted": 2})
    assert big["accuracy_percent"]["mean"] == pytest.approx(50)
    assert big["cost_cents"]["mean"] == pytest.approx(2)


def test_a_missing_rollout_is_said():
    scores = [score(BIG, t) for t in range(4)] + [score(SMALL, t) for t in range(3)]
    report = report_of(scores)
    assert [row(report, f"{who} alone")["missing"] for who in ("big", "small")] == [0, 1]
    assert "0 + 1 missing" in render_markdown(report)


def test_all_claims_hold_where_they_do():
    report = report_of(good_scores())
    assert [c["holds"] for c in report["claims"]] == [True] * 7
    # The trained policies solve 4 of 4, the best expert 2 of 4.
    assert claim(report, "accuracy")["measured"]["mean"] == pytest.approx(50)
    assert claim(report, "share of rollouts that call python")["measured"] == {"mean": 1.0, "rollouts": 6}
    # One call of five goes to the small expert; of the calls to experts all do, and so do the oracle's.
    assert claim(report, "largest single expert's share of all calls (small)")["measured"]["mean"] == pytest.approx(0.2)


def test_a_share_as_high_as_the_oracles_is_allowed():
    report = report_of(good_scores())
    of_experts = claim(report, "largest single expert's share of expert calls")
    assert (of_experts["measured"]["mean"], of_experts["target"], of_experts["holds"]) == (
        1.0,
        "<= 1.00 (the oracle's)",
        True,
    )


def test_claims_that_fail_say_so():
    scores = [s for s in good_scores() if not s.policy.startswith("trained")]
    for who in TRAINED:
        scores += [score(who, t, t < 1, 0.006, 9, experts=["big"]) for t in range(4)]
    report = report_of(scores)
    assert [c["holds"] for c in report["claims"]] == [False] * 6 + [True]
    assert claim(report, "accuracy")["measured"]["mean"] == pytest.approx(-25)
    assert claim(report, "cost")["measured"]["mean"] == pytest.approx(0.6)
    assert render_markdown(report).count("**no**") == 6


def test_a_gain_within_noise_is_marked():
    scores = [score(BIG, t, t < 5, experts=["big"]) for t in range(10)]
    scores += [score(TRAINED[0], t, t > 3, 0.001, 1, tools=["python"]) for t in range(10)]
    report = report_of(scores)
    gain = claim(report, "accuracy")
    assert gain["measured"]["low"] < 0 < gain["measured"]["mean"]
    assert (gain["holds"], gain["certain"]) == (True, False)
    assert "yes, within noise" in render_markdown(report)


def test_a_claim_without_a_measurement_neither_holds_nor_fails():
    scores = [score(TRAINED[0], t, False, 0, 0, stop="answered") for t in range(3)]
    scores += [score(ORACLE, t, True, experts=["big"]) for t in range(3)]
    report = report_of(scores)
    assert all(c["holds"] is None and c["measured"] is None for c in report["claims"])
    assert "not measured" in render_markdown(report)
    assert report_of([score(BIG, 0)])["claims"] == []


def test_kinds_show_who_is_right_and_what_is_used():
    even, odd = report_of(good_scores())["kinds"]
    assert (even["kind"], even["tasks"], even["trained"], even["best_expert"]) == ("even", 2, 100, 50)
    assert even["trained_most_used"] == ("python", 1.0)
    assert odd["oracle_most_used"] == ("python", pytest.approx(1 / 3))


def test_shares_of_calls_add_up_to_one():
    calls = report_of(good_scores())["calls"]
    assert calls["trained policy"] == pytest.approx({"python": 0.6, "search": 0.2, "small": 0.2})
    assert calls["does nothing"] == {}


def test_a_rollout_that_was_scored_twice_is_refused():
    with pytest.raises(DataError, match="'expert big', seed 0, task 't0' was scored twice"):
        report_of([score(BIG, 0), score(BIG, 0, False)])
    with pytest.raises(DataError, match="no scores"):
        report_of([])


def test_the_text_says_what_a_reader_must_know():
    text = render_markdown(report_of(good_scores()))
    for fact in ("SIMULATED", "virtual", "Tasks: 4", "Evaluation seeds: 0", "Training seeds: 0, 1", "1,234,567"):
        assert fact in text
    assert "`toolorchestra evaluate recipe.toml`" in text
    assert "| **trained policy** | 100.0 [100.0, 100.0] | 0.100 [0.100, 0.100] | 1.0 [1.0, 1.0] |" in text


def test_what_is_real_is_not_called_simulated():
    scores = [replace(s, simulated=False) for s in good_scores()]
    assert "SIMULATED" not in render_markdown(report_of(scores))


def test_an_unknown_price_is_at_least():
    scores = [*good_scores()[:-1], replace(good_scores()[-1], unpriced=True)]
    assert "at least" in render_markdown(report_of(scores))
    assert "at least" not in render_markdown(report_of(good_scores()))


def test_the_report_is_the_same_for_scores_in_any_order_and_is_plain_json():
    scores = [*good_scores(), score(TRAINED[0], 0, None, seed=1)]
    report = report_of(scores)
    assert report_of(scores[::-1]) == report
    assert json.loads(json.dumps(report, allow_nan=False))["rows"][0]["label"] == "does nothing"


@pytest.mark.parametrize("solved", [True, False, None])
def test_a_report_of_a_single_rollout_is_written(solved):
    for contestant in ALL:
        text = render_markdown(report_of([score(contestant, 0, solved)]))
        assert "nan" not in text


# -- plots -----------------------------------------------------------------------------------------------------------


def test_the_front_holds_what_nobody_beats():
    points = [(3, 50), (1, 20), (2, 40), (2, 45), (5, 45), (6, 60), (0, 0)]
    assert pareto_front(points) == [(0, 0), (1, 20), (2, 45), (3, 50), (6, 60)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_nobody_beats_the_front(points):
    front = pareto_front(points)
    for cost, accuracy in points:
        assert any(c <= cost and a >= accuracy for c, a in front)
        if (cost, accuracy) in front:
            assert not any(c <= cost and a >= accuracy and (c, a) != (cost, accuracy) for c, a in points)


def curves():
    rows = [{"step": n, "reward": n / 9, "accuracy": 0.5, "cost_usd": 0.01, "latency_s": 4} for n in range(1, 9)]
    rows[-1] |= {"dev_accuracy": 0.6, "dev_cost_usd": 0.005}
    return {"seed 0": rows}


def test_pictures_are_written_and_are_the_same_each_time(tmp_path):
    report = report_of(good_scores())
    once, twice = (save_plots(report, curves(), tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in once] == [
        f"{n}.{e}" for n in ("accuracy_cost", "learning", "calls") for e in ("png", "svg")
    ]
    assert [p.read_bytes() for p in once] == [p.read_bytes() for p in twice]
    svg = (tmp_path / "a" / "accuracy_cost.svg").read_text()
    assert "simulated experts" in svg and "trained policy" in svg


def test_a_picture_without_data_is_left_out(tmp_path):
    report = report_of([score(IDLE, t, False, 0, 0) for t in range(2)])
    assert save_plots(report, {"seed 0": []}, tmp_path) == []
