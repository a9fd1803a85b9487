"""The collapse alarm: is the policy stuck on one expert, on one move, or on noise?

In: the trajectories of a step. Out: figures and the names of alarms. A pure function.
Source: arXiv 2511.21689, sec. 2 (an untrained 8B policy sends 73 % of its calls to one expert).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from toolorchestra.configs import TrainConfig
from toolorchestra.types import Trajectory


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Turn counts into shares of their sum, largest first; empty when nothing was counted."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: count / total for name, count in ordered} if total else {}


def entropy(counts: Mapping[str, int]) -> float:
    """Compute the entropy of counts, in nats."""
    return -math.fsum(p * math.log(p) for p in shares(counts).values() if p > 0)


def calls_by_model(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """Count calls by tool, and for experts by the model behind the alias, which differs from task to task."""
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        models = {
            f"{spec.name}:{expert.alias}": expert.model
            for spec in trajectory.task.tools or ()
            for expert in spec.experts
        }
        for source, count in trajectory.calls.items():
            counts[models.get(source, source)] += count
    return counts


def collapse_alarms(
    expert_calls: Mapping[str, int], tool_calls: Mapping[str, int], invalid_share: float, config: TrainConfig
) -> list[str]:
    """Say what looks like collapse, each with its figure; an empty list when nothing does.

    Args:
        expert_calls: calls by expert model, 0 for those that were on offer and never called.
        tool_calls: calls by tool and expert model together, likewise.
        invalid_share: share of turns that were malformed.
    """
    alarms = []
    top = next(iter(shares(expert_calls).items()), None)
    if top and len(expert_calls) > 1 and top[1] > config.collapse_share:
        alarms.append(
            f"expert share: {top[0]} takes {top[1]:.0%} of expert calls (entropy {entropy(expert_calls):.2f})"
        )
    if len(tool_calls) > 1 and any(tool_calls.values()) and entropy(tool_calls) < config.collapse_entropy:
        alarms.append(f"entropy: choice of tool has {entropy(tool_calls):.2f} nats")
    if invalid_share > config.collapse_invalid:
        alarms.append(f"invalid: {invalid_share:.0%} of turns are malformed")
    return alarms


def first_moves(trajectories: Iterable[Trajectory]) -> dict[str, dict[str, dict[str, float]]]:
    """Say for every kind of task which tools are called first, how often, and how often that ends in a solved task.

    A tool may be dropped because it is no good or because it was never understood; this tells which.

    Returns:
        `share` (of the kind's rollouts) and `solved` (of those that began so), by kind, then by tool; `none` where the
        first turn calls nothing that can be read.
    """
    solved: dict[str, dict[str, list[bool]]] = {}
    for t in trajectories:
        calls = [c.name for turn in t.turns[:1] for c in turn.completion.message.tool_calls if not c.error]
        solved.setdefault(t.task.kind, {}).setdefault(next(iter(calls), "none"), []).append(t.solved)
    return {
        kind: {
            tool: {
                "share": len(tries) / sum(map(len, by_tool.values())),
                "solved": sum(tries) / len(tries),
            }
            for tool, tries in sorted(by_tool.items())
        }
        for kind, by_tool in sorted(solved.items())
    }


def step_figures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Average what matters over a step's trajectories; invalid ones are counted and left out of the means."""
    valid = [t for t in trajectories if t.outcome is not None]
    turns = [turn for t in trajectories for turn in t.turns]
    count = max(1, len(valid))
    return {
        "accuracy": sum(t.solved for t in valid) / count,
        "cost_usd": math.fsum(t.usage.cost_usd for t in valid) / count,
        "latency_s": math.fsum(t.latency_s for t in valid) / count,
        "turns": len(turns) / max(1, len(trajectories)),
        "invalid_rollouts": len(trajectories) - len(valid),
        "malformed_turns": sum(not turn.is_well_formed for turn in turns) / max(1, len(turns)),
        # A model that knows no tools chats: its turns are not malformed, and call nothing.
        "calling_turns": sum(turn.is_well_formed and bool(turn.completion.message.tool_calls) for turn in turns)
        / max(1, len(turns)),
    }
