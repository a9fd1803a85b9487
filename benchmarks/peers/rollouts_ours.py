"""Our rollout loop, `rollout_many`, with all trajectories at once; then their records, as the trainer appends them.

In: see `stubs`. Out: see `stubs`, and the CPU seconds and bytes of recording.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stubs import Stubs, measure, place, query, result

from toolorchestra.configs import RolloutConfig
from toolorchestra.environments.qa import QuestionEnvironment
from toolorchestra.orchestrator import Job, rollout_many
from toolorchestra.pricing import Usage
from toolorchestra.protocols import Sampling, View
from toolorchestra.records import AppendLog, to_json
from toolorchestra.types import Completion, Message, Observation, Outcome, Task, ToolCall, ToolSpec, Trajectory

_SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
    "additionalProperties": False,
}


class Policy:
    """The stub policy: waits, then calls the tool, or answers in the last turn."""

    name = "stub"

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Take the next turn; every turn adds two messages to the two of the opening."""
        await asyncio.sleep(self._stubs.policy_s)
        turn = len(messages) // 2 - 1
        return Completion(self._say(int(sampling.conversation), turn), "stop", Usage(), self.name)

    def _say(self, trajectory: int, turn: int) -> Message:
        if turn == self._stubs.turns - 1:
            return Message("assistant", "done")
        return Message("assistant", tool_calls=(ToolCall("", "look", {"query": query(trajectory, turn)}),))


class Look:
    """The stub tool: waits as long as the table says."""

    spec = ToolSpec("look", "looks something up", _SCHEMA)

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs

    async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
        """Answer a query."""
        trajectory, turn = place(arguments["query"])
        await asyncio.sleep(self._stubs.tool_s[trajectory][turn])
        return Observation("look", "text", result(trajectory, turn))


async def play(stubs: Stubs) -> list[Trajectory]:
    """Do all rollouts at once."""
    tools, limits = [Look(stubs)], RolloutConfig(turns=stubs.turns, observation_chars=10_000)
    jobs = [Job(str(n), Task(str(n), "stub", "Look it up.", {}), seed=n) for n in range(stubs.trajectories)]

    def environment(task: Task) -> QuestionEnvironment:
        return QuestionEnvironment(task, tools, lambda task, answer: Outcome(float(answer == "done")))

    return await rollout_many(jobs, Policy(stubs), environment, limits, at_once=len(jobs))


def _turns_of(trajectory: Trajectory) -> int:
    return len(trajectory.turns) if trajectory.solved else 0


def _recorded(_: Stubs, done: list[Trajectory]) -> dict[str, Any]:
    """Append the records in two steps, as of two steps of training."""
    half = len(done) // 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trajectories.jsonl"
        log = AppendLog(path)
        cpu_s = _append(log, done[:half])
        file, first = path.stat().st_ino, path.read_bytes()
        cpu_s += _append(log, done[half:])
        log.close()
        if path.stat().st_ino != file or not path.read_bytes().startswith(first):
            sys.exit("the file was rewritten, not appended to")
        return {"record_cpu_s": cpu_s, "record_bytes": path.stat().st_size}


def _append(log: AppendLog, trajectories: Sequence[Trajectory]) -> float:
    cpu_s = time.process_time()
    log.append(*(to_json(t) for t in trajectories))
    return time.process_time() - cpu_s


if __name__ == "__main__":
    measure(play, _turns_of, _recorded)
