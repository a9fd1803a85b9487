"""A lock-step loop with a pool of two: all trajectories take a turn together, the way of the released research code.

The policy samples all of them in one batch; then two workers go through the turn's tool calls; the next turn begins
when the last call is done. So time grows with the number of trajectories, and what it takes can be computed from the
table of delays: for those that were played, where it must agree with the clock, and for more.
In: see `stubs`. Out: see `stubs`, and the computed seconds of both.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stubs import Stubs, make_stubs, measure, query, result

WORKERS = 2
MORE = 1000


async def play(stubs: Stubs) -> list[list[str]]:
    """Play all trajectories in lock step; nothing else runs meanwhile."""
    said: list[list[str]] = [[] for _ in stubs.tool_s]
    with ThreadPoolExecutor(WORKERS) as pool:
        for turn in range(stubs.turns):
            time.sleep(stubs.policy_s)
            asked = [query(trajectory, turn) for trajectory in range(stubs.trajectories)]
            last = turn == stubs.turns - 1
            told = (
                [""] * len(asked) if last else list(pool.map(lambda i, t=turn: _call(stubs, i, t), range(len(asked))))
            )
            for words, question, answer in zip(said, asked, told, strict=True):
                words += [question, answer]
    return said


def _call(stubs: Stubs, trajectory: int, turn: int) -> str:
    time.sleep(stubs.tool_s[trajectory][turn])
    return result(trajectory, turn)


def computed_s(stubs: Stubs) -> float:
    """Compute the seconds it takes: two workers take the calls of a turn in order, each when it is free."""
    return stubs.turns * stubs.policy_s + sum(map(_turn_s, zip(*stubs.tool_s, strict=True)))


def _turn_s(delays_s: Sequence[float]) -> float:
    free_at = [0.0] * WORKERS
    for delay_s in delays_s:
        heapq.heappush(free_at, heapq.heappop(free_at) + delay_s)
    return max(free_at)


def _computed(stubs: Stubs, _: list[Any]) -> dict[str, Any]:
    more = make_stubs(MORE, stubs.turns)
    return {
        "computed_s": computed_s(stubs),
        "more": {"trajectories": MORE, "computed_s": computed_s(more), "critical_path_s": more.critical_path_s},
    }


if __name__ == "__main__":
    measure(play, turns_of=lambda said: len(said) // 2, more=_computed)
