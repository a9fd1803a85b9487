"""Measure the rollout loop on stubs that only wait, together with `verifiers` and a lock-step loop, in one run.

The stub policy takes 20 ms a turn; the stub tools take some 100 ms with a heavy tail, from one table for all sides.
Each measurement is a process of its own, so that its peak memory is its own; the sides take turns, so that a busy
machine slows all of them alike. Then, without waiting: what a turn costs in longer conversations, of the loop alone,
and of the text of an in-process policy.
In: nothing. Out: a table, and `benchmarks/results/rollouts.json`.
Source: project; the peer is verifiers (https://pypi.org/project/verifiers), installed by `make bench-rollouts` beside
this file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
VERIFIERS_PYTHON = HERE / ".venv-verifiers" / "bin" / "python"
LOCK_STEP_TRAJECTORIES = 50  # a thousand would take minutes
TURNS = 6
GROWTH_TURNS = (10, 20, 40, 80)
LOOP_TURNS, TEXT_TURNS = 8000, 320  # in all, however long the conversations are, so that as many objects are alive
DEADLINE_S = 1800.0
MISSING = "verifiers is not installed, so it is not compared: run `make bench-rollouts`"

Report = dict[str, Any]


@dataclass
class Side:
    """A loop, how much it is given to do, and what it has reported."""

    name: str
    script: str
    trajectories: int
    python: str = sys.executable
    reports: list[Report] = field(default_factory=list)

    def measure(self) -> None:
        """Play everything once."""
        count = ["--trajectories", str(self.trajectories), "--turns", str(TURNS)]
        self.reports.append(run(self.python, self.script, count))

    def figures(self) -> dict[str, float]:
        """Middle of all rounds: wall time against the longest critical path, own CPU and memory beyond the text."""
        turns = self.trajectories * TURNS
        return {
            "wall_ratio": median(r["wall_s"] / r["critical_path_s"] for r in self.reports),
            "cpu_ms_a_turn": 1e3 * median(r["cpu_s"] for r in self.reports) / turns,
            "memory_kb": 1e-3 * median(r["growth_bytes"] - r["text_bytes"] for r in self.reports) / self.trajectories,
        }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side; the middle one counts")
    parser.add_argument("--trajectories", type=int, default=1000, help="trajectories at once")
    parser.add_argument("--many", type=int, default=10_000, help="trajectories at once that only have to finish")
    options = parser.parse_args()
    sides, many = make_sides(options.trajectories), Side("ours, many", "rollouts_ours.py", options.many)
    for number in range(options.rounds):
        for side in sides:
            print(f"round {number + 1}/{options.rounds}: {side.name}    ", end="\r", file=sys.stderr)
            side.measure()
    many.measure()
    result = {
        "turns": TURNS,
        "sides": {
            s.name: {"trajectories": s.trajectories, **s.figures(), "reports": s.reports} for s in [*sides, many]
        },
        "recording": recording(sides[0].reports),
        "growth": growth(options.rounds),
    }
    show(result)
    target = HERE / "results" / "rollouts.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written: {target.relative_to(HERE.parent)}")


def make_sides(trajectories: int) -> list[Side]:
    """List the sides, ours first; a missing peer is said."""
    sides = [
        Side("ours", "rollouts_ours.py", trajectories),
        Side("bare sleeps", "rollouts_bare.py", trajectories),
        Side("lock step", "rollouts_lockstep.py", LOCK_STEP_TRAJECTORIES),
    ]
    if VERIFIERS_PYTHON.exists():
        return [*sides, Side("verifiers", "rollouts_verifiers.py", trajectories, str(VERIFIERS_PYTHON))]
    print(MISSING, file=sys.stderr)
    return sides


def run(python: str, script: str, arguments: Sequence[str]) -> Report:
    """Run a measurement in a process of its own, with a home of its own, so that nobody's settings play a part."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [python, script, *arguments],
            cwd=HERE / "peers",
            env={**os.environ, "HOME": home},
            stdout=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        )
    if done.returncode:
        raise SystemExit(f"{script} ended with exit code {done.returncode}; its last words are above")
    return json.loads(done.stdout)


def recording(reports: Sequence[Report]) -> dict[str, float]:
    """Compare the CPU seconds of recording with those of the loop, and with the seconds that the loop takes."""
    return {
        "share_of_wall": median(r["record_cpu_s"] / r["wall_s"] for r in reports),
        "share_of_cpu": median(r["record_cpu_s"] / r["cpu_s"] for r in reports),
    }


def growth(rounds: int) -> Report:
    """Measure what a turn costs in longer conversations."""
    loop: dict[int, list[Report]] = {turns: [] for turns in GROWTH_TURNS}
    text: dict[int, list[Report]] = {turns: [] for turns in GROWTH_TURNS}
    for turns in GROWTH_TURNS * rounds:
        length = ["--turns", str(turns)]
        count = ["--trajectories", str(LOOP_TURNS // turns), "--no-waiting"]
        loop[turns].append(run(sys.executable, "rollouts_ours.py", length + count))
        count = ["--conversations", str(TEXT_TURNS // turns)]
        text[turns].append(run(sys.executable, "rollouts_tokens.py", length + count))
    return {
        "loop_ms_a_turn": {t: 1e3 * median(r["cpu_s"] for r in rs) / LOOP_TURNS for t, rs in loop.items()},
        "text_ms_a_turn": {t: 1e3 * median(r["cpu_s"] for r in rs) / TEXT_TURNS for t, rs in text.items()},
        "chars_of_last_turn": {t: rs[0]["chars_of_last_turn"] for t, rs in text.items()},
        "new_tok_of_last_turn": {t: rs[0]["new_tok_of_last_turn"] for t, rs in text.items()},
    }


def order(cost_a_turn: Mapping[int, float]) -> float:
    """Find the power of its turns with which a trajectory's cost grows: 1 is linear, 2 quadratic."""
    few, many = min(cost_a_turn), max(cost_a_turn)
    return 1 + math.log(cost_a_turn[many] / cost_a_turn[few]) / math.log(many / few)


def show(result: Report) -> None:
    """Print the tables."""
    sides = result["sides"]
    print(f"\n{'side':14s}{'trajectories':>14s}{'wall/critical':>15s}{'CPU ms a turn':>15s}{'kB beyond text':>16s}")
    for name, side in sides.items():
        figures = f"{side['wall_ratio']:15.2f}{side['cpu_ms_a_turn']:15.3f}{side['memory_kb']:16.1f}"
        print(f"{name:14s}{side['trajectories']:14,d}{figures}")
    if "verifiers" not in sides:
        print(MISSING)
    show_lock_step(sides["lock step"]["reports"][0])
    show_goals(sides["ours"], result["recording"], result["growth"])
    show_growth(result["growth"])


def show_lock_step(report: Report) -> None:
    """Say what lock step would take with more trajectories, and how well that is computed."""
    more, agrees = report["more"], report["computed_s"] / report["wall_s"]
    print(
        f"\nlock step, computed: {more['computed_s']:.0f} s for {more['trajectories']:,d} trajectories, "
        f"{more['computed_s'] / more['critical_path_s']:.1f} times the critical path; "
        f"what was played is computed as {agrees:.3f} times what the clock said"
    )


def show_goals(ours: Report, recording: Report, growth: Report) -> None:
    """Print what is asked of our loop."""
    rows = [
        ("wall time / longest critical path", f"{ours['wall_ratio']:.2f}", "at most 1.25"),
        ("own CPU, ms a turn", f"{ours['cpu_ms_a_turn']:.3f}", "at most 1"),
        ("memory beyond text, kB a trajectory", f"{ours['memory_kb']:.1f}", "at most 60"),
        ("recording / wall time of the loop, %", f"{100 * recording['share_of_wall']:.1f}", "under 5"),
        ("recording / CPU of the loop, %", f"{100 * recording['share_of_cpu']:.1f}", "under 5"),
        ("growth of the loop with turns, power", f"{order(growth['loop_ms_a_turn']):.2f}", "1, linear"),
        ("growth of text with turns, power", f"{order(growth['text_ms_a_turn']):.2f}", "1, linear"),
    ]
    print(f"\n{'ours':38s}{'is':>8s}   should be")
    for what, figure, goal in rows:
        print(f"{what:38s}{figure:>8s}   {goal}")


def show_growth(growth: Report) -> None:
    """Print what a turn costs in conversations of so many turns, without waiting."""
    rows = [
        ("CPU ms a turn, loop", "loop_ms_a_turn", ".3f"),
        ("CPU ms a turn, text", "text_ms_a_turn", ".3f"),
        ("characters tokenised in the last turn", "chars_of_last_turn", ",d"),
        ("tokens added in the last turn", "new_tok_of_last_turn", ",d"),
    ]
    print(f"\n{'turns':38s}" + "".join(f"{turns:8d}" for turns in GROWTH_TURNS))
    for what, key, style in rows:
        print(f"{what:38s}" + "".join(f"{growth[key][turns]:8{style}}" for turns in GROWTH_TURNS))


if __name__ == "__main__":
    main()
