"""Rewards and advantages of a group: pure functions on plain numbers.

In: for every rollout of one task, whether it was solved, its US dollars, its seconds, and its calls per tool.
Out: a reward in [0, sum of the weights], None for an invalid rollout; then an advantage.

    Mn[k] = (M[k] - min_G M[k]) / (max_G M[k] - min_G M[k]), 0 where max = min; min and max run over ALL rollouts
    R     = sum over k of Mn[k] P[k] if solved, else 0
    A     = (R - mean_G R) / std_G R, clipped

Source: arXiv 2511.21689, eq. 1-3 and sec. 3.2-3.3; docs/paper.md lists the test of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toolorchestra.preferences import Preference
from toolorchestra.types import Trajectory


@dataclass(frozen=True, slots=True)
class Features:
    """The measured row M of one rollout; `solved` is None when the rollout is invalid (its judge failed)."""

    solved: bool | None
    cost_usd: float
    latency_s: float
    calls: Mapping[str, int] = field(default_factory=dict)


def features_of(trajectory: Trajectory) -> Features:
    """Read the features off a trajectory: every call counts, the policy's own tokens included."""
    usage = trajectory.usage
    solved = None if trajectory.outcome is None else trajectory.outcome.solved
    return Features(solved, usage.cost_usd, usage.latency_s, dict(trajectory.calls))


def group_rewards(features_G: Sequence[Features], preference: Preference) -> list[float | None]:
    """Reward every rollout of a group.

    Invalid rollouts get None and take no part in the ranges. A non-finite cost or latency makes a rollout invalid.

    Args:
        features_G: the rollouts of ONE task, all with the same tools.
        preference: the weights; those of tools that no rollout called add nothing.
    """
    valid = [f for f in features_G if _is_valid(f)]
    if not valid:
        return [None] * len(features_G)
    accuracy_N = _normalise([float(bool(f.solved)) for f in valid])
    cheapness_N = _normalise([-f.cost_usd for f in valid])
    speed_N = _normalise([-f.latency_s for f in valid])
    tools = sorted(preference.tools)
    use_KN = [_normalise([float(f.calls.get(tool, 0)) for f in valid]) for tool in tools]
    rewards = []
    for n, row in enumerate(valid):
        terms = [
            preference.accuracy * accuracy_N[n],
            preference.cost * cheapness_N[n],
            preference.latency * speed_N[n],
            *(preference.tools[tool] * use_N[n] for tool, use_N in zip(tools, use_KN, strict=True)),
        ]
        rewards.append(math.fsum(terms) if row.solved else 0.0)
    queue = iter(rewards)
    return [next(queue) if _is_valid(f) else None for f in features_G]


def _is_valid(row: Features) -> bool:
    return row.solved is not None and math.isfinite(row.cost_usd) and math.isfinite(row.latency_s)


def _normalise(values: Sequence[float]) -> list[float]:
    """Map values to [0, 1] by their range; all to 0 when they are equal."""
    low, high = min(values), max(values)
    span = high - low
    if span <= 0:
        return [0.0] * len(values)
    return [(value - low) / span for value in values]


def group_advantages(
    rewards_G: Sequence[float | None], min_std: float = 0.1, clip: float = 3.0
) -> list[float | None] | None:
    """Turn a group's rewards into advantages.

    Args:
        rewards_G: as `group_rewards` gave them.
        min_std: the homogeneity filter: a group whose reward's standard deviation lies below has no signal.
        clip: bound on the absolute advantage.

    Returns:
        One advantage a rollout, None for invalid ones; or None for a group without signal: fewer than two valid
        rollouts, or nearly equal rewards.
    """
    valid = [r for r in rewards_G if r is not None and math.isfinite(r)]
    if len(valid) < 2:
        return None
    mean = math.fsum(valid) / len(valid)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in valid) / len(valid))
    if std < max(min_std, 1e-6):
        return None
    return [None if r is None or not math.isfinite(r) else max(-clip, min(clip, (r - mean) / std)) for r in rewards_G]
