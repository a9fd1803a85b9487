"""Means, differences and ratios with 95 % intervals, by bootstrap over seeds and tasks.

In: values of S seeds x T tasks; NaN where a rollout is invalid or missing. Out: an `Interval`.
A resample draws S seeds and T tasks, both with replacement. It is kept as how often each was drawn, so that its mean is
one product of matrices, w_S V w_T, over the weight of the valid values.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), ch. 13 (percentile interval).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""Coverage of every interval of this module."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the bounds of its 95 % interval; all NaN where there is nothing to average."""

    mean: float
    low: float
    high: float


def bootstrap_mean(values_ST: ArrayLike, resamples: int, seed: int) -> Interval:
    """Average over seeds and tasks.

    Args:
        values_ST: one row a seed, one column a task; NaN is left out.
        resamples: bootstrap resamples; a few thousand make the bounds steady.
        seed: of the resampling; the same seed draws the same tasks for every contestant.
    """
    values = _matrix(values_ST)
    return _interval(_mean(values), _resampled(values, resamples, seed, "left"))


def bootstrap_difference(minuend_ST: ArrayLike, subtrahend_ST: ArrayLike, resamples: int, seed: int) -> Interval:
    """Subtract two means over the same tasks; a resample draws the same tasks for both, and seeds for each.

    Raises:
        ValueError: the numbers of tasks differ.
    """
    left, right = _pair(minuend_ST, subtrahend_ST)
    drawn = _resampled(left, resamples, seed, "left") - _resampled(right, resamples, seed, "right")
    return _interval(_mean(left) - _mean(right), drawn)


def bootstrap_ratio(numerator_ST: ArrayLike, denominator_ST: ArrayLike, resamples: int, seed: int) -> Interval:
    """Divide two means over the same tasks; a resample draws the same tasks for both, and seeds for each.

    Returns:
        The ratio of means, not the mean of ratios; NaN where the denominator's mean is 0.

    Raises:
        ValueError: the numbers of tasks differ.
    """
    top, bottom = _pair(numerator_ST, denominator_ST)
    drawn = _divide(_resampled(top, resamples, seed, "left"), _resampled(bottom, resamples, seed, "right"))
    return _interval(float(_divide(np.array([_mean(top)]), np.array([_mean(bottom)]))[0]), drawn)


def _matrix(values_ST: ArrayLike) -> Array:
    values = np.asarray(values_ST, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"values must be seeds x tasks, not of shape {values.shape}")
    return values


def _pair(left_ST: ArrayLike, right_ST: ArrayLike) -> tuple[Array, Array]:
    left, right = _matrix(left_ST), _matrix(right_ST)
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"paired values need the same tasks, not {left.shape[1]} and {right.shape[1]}")
    return left, right


def _mean(values_ST: Array) -> float:
    valid = np.isfinite(values_ST)
    return float(values_ST[valid].mean()) if valid.any() else float("nan")


def _resampled(values_ST: Array, resamples: int, seed: int, side: str) -> Array:
    """Return one mean a resample. Tasks are drawn from `seed` alone, so that they agree between sides."""
    if not values_ST.size:
        return np.full(resamples, np.nan)
    seeds, tasks = values_ST.shape
    tasks_BT = _counts(seed, 0, tasks, resamples)
    seeds_BS = _counts(seed, 1 if side == "left" else 2, seeds, resamples)
    valid_ST = np.isfinite(values_ST)
    totals_B = (seeds_BS @ np.where(valid_ST, values_ST, 0.0) * tasks_BT).sum(axis=1)
    weights_B = (seeds_BS @ valid_ST.astype(np.float64) * tasks_BT).sum(axis=1)
    return _divide(totals_B, weights_B)


@lru_cache(maxsize=8)
def _counts(seed: int, stream: int, size: int, resamples: int) -> Array:
    """Draw `size` of `size` with replacement, and count how often each came up; a report asks for the same often."""
    generator = np.random.default_rng([seed, stream])
    counts = generator.multinomial(size, np.full(size, 1 / size), size=resamples).astype(np.float64)
    counts.flags.writeable = False
    return counts


def _divide(top: Array, bottom: Array) -> Array:
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom != 0)


def _interval(mean: float, drawn_B: Array) -> Interval:
    drawn = drawn_B[np.isfinite(drawn_B)]
    if not drawn.size or not np.isfinite(mean):
        return Interval(mean, float("nan"), float("nan"))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high))
