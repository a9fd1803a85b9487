"""Bootstrap figures, worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolorchestra.evaluate.stats import Interval, bootstrap_difference, bootstrap_mean, bootstrap_ratio


def test_a_value_that_never_varies_has_an_interval_without_width():
    assert bootstrap_mean([[0.25] * 4] * 3, 50, 0) == Interval(0.25, 0.25, 0.25)


def test_two_tasks_draw_three_means():
    # Two draws of {0, 1}: the mean is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4, so both ends pass 2.5 %.
    assert bootstrap_mean([[0, 1]], 400, 0) == Interval(0.5, 0.0, 1.0)


def test_the_width_for_many_tasks_is_that_of_the_normal_law():
    # 400 tasks, half of them solved: standard error sqrt(0.25 / 400) = 0.025, 1.96 of them on either side.
    interval = bootstrap_mean([[0, 1] * 200], 4000, 1)
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.5 - 0.049, abs=0.004)
    assert interval.high == pytest.approx(0.5 + 0.049, abs=0.004)


def test_seeds_are_resampled_as_well_as_tasks():
    # Tasks agree, seeds do not: half of the resamples of two seeds draw one of them twice.
    assert bootstrap_mean([[0.0] * 50, [1.0] * 50], 400, 0) == Interval(0.5, 0.0, 1.0)


def test_what_is_invalid_is_left_out():
    nan = math.nan
    assert bootstrap_mean([[1, nan, 1], [nan, nan, 1]], 100, 0) == Interval(1.0, 1.0, 1.0)
    assert bootstrap_mean([[0, 0, nan, 4]], 100, 0).mean == pytest.approx(4 / 3)


@pytest.mark.parametrize("values", [[[math.nan, math.nan]], [[]], np.zeros((0, 3))])
def test_nothing_to_average_is_nan_and_no_error(values):
    assert math.isnan(bootstrap_mean(values, 20, 0).mean)
    assert math.isnan(bootstrap_mean(values, 20, 0).low)


def test_a_ratio_is_one_of_means_and_not_a_mean_of_ratios():
    # (1 + 3) / (1 + 6) = 4/7, while the mean of 1/1 and 3/6 is 3/4.
    assert bootstrap_ratio([[1, 3]], [[1, 6]], 200, 0).mean == pytest.approx(4 / 7)


def test_a_ratio_draws_the_same_tasks_above_and_below():
    costs = [[1, 5, 20, 100]]
    interval = bootstrap_ratio(np.multiply(costs, 0.3), costs, 500, 0)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.3, 0.3, 0.3))


def test_a_ratio_pools_rows_of_different_number():
    interval = bootstrap_ratio([[1, 1], [3, 3]], [[4, 4]], 400, 0)
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.25, 0.75)


def test_a_ratio_to_nothing_is_nan():
    assert math.isnan(bootstrap_ratio([[1, 2]], [[0, 0]], 20, 0).mean)


def test_a_difference_draws_the_same_tasks_on_both_sides():
    hard = [[0, 10, 50, 90]]
    interval = bootstrap_difference(np.add(hard, 7), hard, 500, 0)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((7, 7, 7))


def test_paired_values_need_the_same_tasks():
    with pytest.raises(ValueError, match="2 and 3"):
        bootstrap_ratio([[1, 2]], [[1, 2, 3]], 20, 0)
    with pytest.raises(ValueError, match="seeds x tasks"):
        bootstrap_mean([1, 2], 20, 0)


def test_the_same_seed_draws_the_same_interval():
    values = np.arange(30).reshape(3, 10)
    assert bootstrap_mean(values, 100, 5) == bootstrap_mean(values, 100, 5)
    assert bootstrap_mean(values, 100, 5) != bootstrap_mean(values, 100, 6)


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=3), st.integers(0, 5))
def test_an_interval_lies_within_the_values(rows, seed):
    interval = bootstrap_mean(rows, 40, seed)
    low, high = np.min(rows) - 1e-9, np.max(rows) + 1e-9
    assert low <= interval.low <= interval.high <= high
    assert low <= interval.mean <= high
