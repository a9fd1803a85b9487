"""The reward maths, with numbers worked by hand and the laws that hold for any group."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolorchestra.preferences import Preference
from toolorchestra.rewards import Features, group_advantages, group_rewards

P = Preference(accuracy=1.0, cost=0.3, latency=0.2, tools={"search": 0.5})


def test_rewards_of_a_group_worked_by_hand():
    """Four rollouts: solved dear, solved cheap, failed for free, solved in the middle with two searches.

    Costs 0.04, 0.01, 0, 0.02 -> cheapness 0, .75, 1, .5. Seconds 20, 10, 0, 40 -> speed .5, .75, 1, 0.
    Searches 0, 1, 0, 2 -> 0, .5, 0, 1. Outcome range 0..1.
    """
    group = [
        Features(True, 0.04, 20, {}),
        Features(True, 0.01, 10, {"search": 1}),
        Features(False, 0.0, 0, {}),
        Features(True, 0.02, 40, {"search": 2, "ask:amber": 1}),
    ]
    expected = [1 + 0.0 + 0.1, 1 + 0.225 + 0.15 + 0.25, 0.0, 1 + 0.15 + 0.0 + 0.5]
    assert group_rewards(group, P) == pytest.approx(expected)


def test_an_all_solved_group_still_tells_cheap_from_dear():
    """The outcome's range is 0, so only cost and latency speak: cheapness 1, 0; speed 0, 1."""
    assert group_rewards([Features(True, 1, 9), Features(True, 2, 3)], P) == pytest.approx([0.3, 0.2])


def test_an_invalid_rollout_has_no_reward_and_sets_no_range():
    group = [Features(True, 1, 1), Features(None, 100, 100), Features(False, 2, 2)]
    assert group_rewards(group, P) == [pytest.approx(1.5), None, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_cost_that_is_no_number_invalidates_that_rollout_alone(bad: float):
    assert group_rewards([Features(True, bad, 1), Features(True, 1, 1), Features(False, 1, 1)], P) == [None, 1.0, 0.0]


def test_a_group_of_invalid_rollouts_is_all_none():
    assert group_rewards([Features(None, 1, 1)] * 4, P) == [None] * 4


def test_nearly_equal_costs_do_not_explode():
    low, high = group_rewards([Features(True, 1e-9, 1), Features(True, 1.0000001e-9, 1)], P)
    assert (low, high) == (pytest.approx(0.3), 0.0)


def test_advantages_worked_by_hand():
    """Rewards 0, 1, 1, 2: mean 1, population variance 0.5."""
    assert group_advantages([0, 1, 1, 2]) == pytest.approx([-math.sqrt(2), 0, 0, math.sqrt(2)])


def test_an_advantage_is_clipped():
    """One 1 among sixteen 0: mean 1/17, std sqrt(16)/17, so A = 16/4 = 4, clipped to 3."""
    advantages = group_advantages([1.0] + [0.0] * 16)
    assert advantages is not None and advantages[0] == 3.0 and advantages[1] == pytest.approx(-0.25)


@pytest.mark.parametrize(
    "rewards",
    [
        [0.5] * 4,
        [0.5, 0.5 + 1e-9, 0.5, 0.5 - 1e-9],
        [1.0],
        [],
        [None] * 4,
        [None, None, 1.0],
        [math.nan] * 3,
        [0.5, 0.65, 0.5, 0.65],  # std 0.075 < 0.1: the homogeneity filter
    ],
)
def test_groups_without_signal(rewards: list[float | None]):
    assert group_advantages(rewards) is None


def test_without_a_filter_noise_is_still_no_signal():
    assert group_advantages([0.5, 0.5 + 1e-9], min_std=0.0) is None


def test_an_invalid_rollout_leaves_mean_and_std():
    assert group_advantages([0.0, None, 2.0]) == [-1.0, None, 1.0]
    assert group_advantages([0.0, math.nan, 2.0]) == [-1.0, None, 1.0]


amounts = st.floats(0, 1e6, allow_nan=False)
rows = st.builds(
    Features, st.booleans(), amounts, amounts, st.dictionaries(st.sampled_from(["search", "python"]), st.integers(0, 9))
)
weights = st.floats(0, 1)
preferences = st.builds(
    Preference, weights, weights, weights, st.dictionaries(st.sampled_from(["search", "python", "absent"]), weights)
)


@given(st.lists(rows, min_size=1, max_size=9), preferences)
@settings(deadline=None)
def test_a_reward_lies_between_zero_and_the_sum_of_the_weights(group: list[Features], preference: Preference):
    top = preference.accuracy + preference.cost + preference.latency + sum(preference.tools.values())
    assert all(r is not None and 0 <= r <= top + 1e-9 for r in group_rewards(group, preference))


@given(st.lists(rows, min_size=2, max_size=9), preferences, st.randoms())
@settings(deadline=None)
def test_the_order_of_rollouts_does_not_matter(group: list[Features], preference: Preference, random):
    order = list(range(len(group)))
    random.shuffle(order)
    rewards = group_rewards(group, preference)
    assert group_rewards([group[i] for i in order], preference) == [rewards[i] for i in order]


@given(st.lists(rows, min_size=1, max_size=6), rows, amounts, preferences)
@settings(deadline=None)
def test_cheaper_never_scores_below_dearer_when_all_else_is_equal(others, row, other_cost, preference):
    twin = Features(row.solved, other_cost, row.latency_s, row.calls)
    *_, first, second = group_rewards([*others, row, twin], preference)
    cheaper, dearer = (first, second) if row.cost_usd <= other_cost else (second, first)
    assert cheaper is not None and dearer is not None and cheaper >= dearer


@given(st.lists(rows, min_size=2, max_size=9), preferences)
@settings(deadline=None)
def test_solved_never_scores_below_unsolved(group: list[Features], preference: Preference):
    rewards = group_rewards(group, preference)
    solved = [r for r, f in zip(rewards, group, strict=True) if f.solved and r is not None]
    unsolved = [r for r, f in zip(rewards, group, strict=True) if not f.solved and r is not None]
    assert not solved or not unsolved or min(solved) >= max(unsolved)
