"""The stubs that all sides of `benchmarks/rollouts.py` share, and how a side is measured.

It stands alone, since peers run in environments without `toolorchestra`. Delays are a table that is drawn before
anything is measured, so that every side waits equally long and the longest critical path is known beforehand. Memory is
the peak of the process above what it held before the trajectories began. Linux only.
In: how many trajectories of how many turns. Out: delays and texts; a report as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

POLICY_S = 0.02
LEAST_TOOL_S, MOST_TOOL_S, TAIL_SHAPE = 0.05, 3.0, 2.0
"""Delays of tools follow a Pareto distribution: some 100 ms on average, one in a hundred over 500 ms, none over 3 s."""
QUERY_CHARS, RESULT_CHARS = 100, 1000
SEED = 0
WARM_UP = 8


@dataclass(frozen=True)
class Stubs:
    """What policy and tools do: the policy takes `policy_s` a turn, and in the last turn it answers without a call.

    Attributes:
        tool_s: a row of delays for each trajectory, one for each turn but the last.
    """

    policy_s: float
    tool_s: Sequence[Sequence[float]]

    @property
    def trajectories(self) -> int:
        """How many trajectories there are."""
        return len(self.tool_s)

    @property
    def turns(self) -> int:
        """How often the policy speaks in each of them."""
        return len(self.tool_s[0]) + 1

    @property
    def critical_path_s(self) -> float:
        """Seconds that the longest trajectory waits for its own policy and tools."""
        return self.turns * self.policy_s + max(map(sum, self.tool_s))

    @property
    def text_bytes(self) -> int:
        """Bytes of what policy and tools say in one trajectory."""
        return (self.turns - 1) * (QUERY_CHARS + RESULT_CHARS)


def make_stubs(trajectories: int, turns: int, waiting: bool = True) -> Stubs:
    """Draw the table; its first rows are the same however many there are. Without `waiting`, all delays are 0."""
    luck = random.Random(SEED)
    rows = [[_tool_s(luck) * waiting for _ in range(turns - 1)] for _ in range(trajectories)]
    return Stubs(POLICY_S * waiting, rows)


def _tool_s(luck: random.Random) -> float:
    return min(MOST_TOOL_S, LEAST_TOOL_S * luck.paretovariate(TAIL_SHAPE))


def query(trajectory: int, turn: int) -> str:
    """Write what the policy asks the tool."""
    return f"{trajectory} {turn} ".ljust(QUERY_CHARS, "?")


def result(trajectory: int, turn: int) -> str:
    """Write what the tool answers."""
    return f"{trajectory} {turn} ".ljust(RESULT_CHARS, ".")


def place(asked: str) -> tuple[int, int]:
    """Read trajectory and turn off a query."""
    trajectory, turn, _ = asked.split(" ", 2)
    return int(trajectory), int(turn)


def measure(
    play: Callable[[Stubs], Coroutine[Any, Any, list[Any]]],
    turns_of: Callable[[Any], int],
    more: Callable[[Stubs, list[Any]], dict[str, Any]] = lambda *_: {},
) -> None:
    """Measure one side and print its report.

    Args:
        play: does all trajectories, and returns what a caller would keep of them.
        turns_of: how many turns one of them took; none may be missing.
        more: what else is to be reported, from the trajectories.
    """
    parser = argparse.ArgumentParser(description="Measure one side and print its report as a line of JSON.")
    parser.add_argument("--trajectories", type=int, required=True, help="trajectories at once")
    parser.add_argument("--turns", type=int, required=True, help="turns of each")
    parser.add_argument("--no-waiting", action="store_true", help="delays of 0 s, so that only own work is measured")
    options = parser.parse_args()
    asyncio.run(play(make_stubs(WARM_UP, 2, waiting=False)))  # what is imported or built once is not a trajectory's
    stubs = make_stubs(options.trajectories, options.turns, not options.no_waiting)
    report, done = _measured(play, stubs)
    if [turns_of(one) for one in done] != [stubs.turns] * stubs.trajectories:
        sys.exit("some trajectories did not take all their turns")
    print(json.dumps(report | more(stubs, done)))


def _measured(
    play: Callable[[Stubs], Coroutine[Any, Any, list[Any]]], stubs: Stubs
) -> tuple[dict[str, Any], list[Any]]:
    gc.collect()
    before_bytes, cpu_s, wall_s = _resident_bytes(), time.process_time(), time.perf_counter()
    done = asyncio.run(play(stubs))
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    report = {
        "trajectories": stubs.trajectories,
        "turns": stubs.turns,
        "critical_path_s": stubs.critical_path_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "growth_bytes": _peak_bytes() - before_bytes,
        "text_bytes": stubs.text_bytes * stubs.trajectories,
    }
    return report, done


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
