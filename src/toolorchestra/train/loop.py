"""The training run: warm-up, then GRPO steps, in a folder from which it continues exactly.

    step = draw tasks -> G rollouts of each -> rewards -> advantages -> filters -> update -> log -> checkpoint

What a step does is a function of the recipe, the seed and the step's number, so a run that was killed and resumed
writes the bytes of an undisturbed one.
In: a recipe and live objects. Out: start.json, checkpoints, trajectories.jsonl, metrics.jsonl, timing.jsonl.
Source: arXiv 2511.21689, sec. 3.2-3.3.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Protocol

import numpy as np

from toolorchestra.chat.legal import RandomLegal
from toolorchestra.chat.samples import samples_of
from toolorchestra.configs import Recipe
from toolorchestra.errors import ToolOrchestraError
from toolorchestra.orchestrator import Job, rollout_many
from toolorchestra.protocols import Environment
from toolorchestra.records import AppendLog, RunFolder, checkpoints, latest_checkpoint, step_of, to_json
from toolorchestra.rewards import features_of, group_advantages, group_rewards
from toolorchestra.train.drills import alternate, drills, echoes, explanations, true_moves
from toolorchestra.train.engine import TorchEngine
from toolorchestra.train.monitor import calls_by_model, collapse_alarms, entropy, first_moves, shares, step_figures
from toolorchestra.train.warmup import demonstration, drill, ramp, warm_up
from toolorchestra.types import Group, Message, Sample, Task, ToolCall, ToolSpec, Trajectory


class Watcher(Protocol):
    """Who is told how far a run is."""

    def __call__(self, stage: str, done: int, total: int, figures: Mapping[str, object], /) -> None:
        """Hear that `done` of `total` steps of `stage` are complete, with the latest figures."""
        ...


@dataclass
class Trainer:
    """One training run.

    Attributes:
        recipe: its knobs.
        seed: fixes order of tasks, sampling and demonstrations.
        folder: entered (locked) by the caller.
        engine: the policy that learns, as it is before warm-up.
        train_tasks: what is trained on.
        dev_tasks: what is watched.
        environments: makes the environment of one rollout.
        watch: told about progress.
    """

    recipe: Recipe
    seed: int
    folder: RunFolder
    engine: TorchEngine
    train_tasks: Sequence[Task]
    dev_tasks: Sequence[Task]
    environments: Callable[[Task], Environment]
    watch: Watcher

    async def run(self) -> None:
        """Train to the end, from the latest checkpoint if there is one."""
        start = self._restore()
        if start is None:
            await self._warm_up()
            start = 0
        if self.recipe.train.kl:
            self.engine.hold_to(self._checkpoint(0))
        logs = {name: self.folder.log(name) for name in ("trajectories", "metrics", "timing")}
        try:
            for name, length in self._log_lengths(start).items():
                logs[name].cut(length)
            for step in range(start, self.recipe.train.steps):
                await self._step(step, logs)
        finally:
            for log in logs.values():
                log.close()

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _restore(self) -> int | None:
        """Load the latest checkpoint; returns how many steps it has seen, None when warm-up is still to do."""
        latest = latest_checkpoint(self.folder.path)
        if latest is None:
            return None
        self.engine.load(latest)
        return step_of(latest)

    def _log_lengths(self, step: int) -> dict[str, int]:
        state = self._checkpoint(step) / "state.json"
        lengths = json.loads(state.read_text())["log_bytes"]
        return {name: int(lengths[name]) for name in ("trajectories", "metrics")}

    def _checkpoint(self, step: int) -> Path:
        return self.folder.checkpoints / f"step-{step:06d}"

    def _save(self, step: int, log_bytes: Mapping[str, int]) -> None:
        """Write a checkpoint under another name, then rename it: a reader finds it whole or not at all."""
        target = self._checkpoint(step)
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        self.engine.save(part)
        state = {"step": step, "seed": self.seed, "log_bytes": dict(log_bytes)}
        (part / "state.json").write_text(json.dumps(state, sort_keys=True))
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
        for old in checkpoints(self.folder.path)[1:-2]:  # keep the start model and the latest two
            shutil.rmtree(old)

    # -- warm-up -------------------------------------------------------------------------------------------------

    async def _warm_up(self) -> None:
        config = self.recipe.warmup
        if config.echo_steps:
            drill(self.engine, self._echoes(), config.echo_steps, config, partial(self.watch, "copying drills"))
        if config.drill_steps:
            both = alternate(self._drills(), self._echoes())
            drill(self.engine, both, config.drill_steps, config, partial(self.watch, "reading drills"))
        if config.tasks and config.epochs:
            demos = await self._demonstrations()
            warm_up(self.engine, demos, config, self.seed, partial(self.watch, "warm-up"))
        if self.recipe.train.dev_every:
            await self._look_at_start()
        self._save(0, {"trajectories": 0, "metrics": 0})

    async def _look_at_start(self) -> None:
        """Measure the policy before RL on the dev tasks, as it is sampled in training; kept in `start.json`."""
        jobs = [Job(f"start-{task.id}", task, stable_seed(self.seed, "start", task.id)) for task in self.dev_tasks]
        trajectories = await rollout_many(jobs, self.engine.policy, self.environments, self.recipe.rollout)
        figures = {**step_figures(trajectories), "true_moves": true_moves(trajectories)}
        self.folder.write_json("start.json", figures)
        self.watch("before RL", 1, 1, figures)

    def _echoes(self) -> Iterator[Sample]:
        return echoes(self.engine.policy.model.config.vocab_size, self.seed)

    def _drills(self) -> Iterator[Sample]:
        return drills(self.engine.policy.template, *self._names(), self.seed)

    def _names(self) -> tuple[list[str], list[str]]:
        """List the experts' names and the subjects of the training tasks."""
        aliases = {e.alias for task in self.train_tasks for spec in task.tools or () for e in spec.experts}
        return sorted(aliases), sorted({task.kind for task in self.train_tasks})

    async def _demonstrations(self) -> list[Sample]:
        config = self.recipe.warmup
        subjects = {task.instruction: task.kind for task in self.train_tasks}

        def think(messages: Sequence[Message], tools: Sequence[ToolSpec], call: ToolCall, luck: Random) -> str:
            question = next(m.content for m in messages if m.role == "user")
            return luck.choice(explanations(subjects[question], call, tools))

        player = RandomLegal(self.seed, think=think if config.explain else None)
        tasks = [self.train_tasks[i] for i in _order(self.seed, 0, len(self.train_tasks))[: config.tasks]]
        jobs = [
            Job(f"demo-{n}-{g}", task, stable_seed(self.seed, "demo", task.id, g))
            for n, task in enumerate(tasks)
            for g in range(config.demos)
        ]
        done: list[Trajectory] = []

        def count(trajectory: Trajectory) -> None:
            done.append(trajectory)
            if len(done) % 64 == 0 or len(done) == len(jobs):
                self.watch("demonstrations", len(done), len(jobs), {})

        trajectories = await rollout_many(jobs, player, self.environments, self.recipe.rollout, on_done=count)
        _refuse_all_failed(trajectories)
        template, limits = self.engine.policy.template, self.recipe.rollout
        return [
            sample
            for n, t in enumerate(even_demonstrations(trajectories))
            for sample in demonstration(t, self.environments(t.task).opening, template, limits, group=n)
        ]

    # -- one step ------------------------------------------------------------------------------------------------

    async def _step(self, step: int, logs: Mapping[str, AppendLog]) -> None:
        began = time.monotonic()
        groups = await self._rollouts(step)
        sampled = time.monotonic()
        figures = {"step": step + 1, **self._figures(groups), **self._learn(step, groups)}
        updated = time.monotonic()
        if self._is_due(step, self.recipe.train.dev_every):
            figures |= await self._look_at_dev(step)
        logs["trajectories"].append(*(to_json(t) for g in groups for t in g.trajectories))
        logs["metrics"].append(json.dumps(figures, sort_keys=True))
        seconds = {"step": step + 1, "rollout_s": sampled - began, "update_s": updated - sampled}
        logs["timing"].append(json.dumps(seconds | {"total_s": time.monotonic() - began}))
        if self._is_due(step, self.recipe.train.checkpoint_every):
            self._save(step + 1, {name: log.length for name, log in logs.items()})
        self.watch("training", step + 1, self.recipe.train.steps, figures)

    def _is_due(self, step: int, every: int) -> bool:
        return bool(every) and ((step + 1) % every == 0 or step + 1 == self.recipe.train.steps)

    async def _rollouts(self, step: int) -> list[Group]:
        config = self.recipe.train
        self.engine.policy.version = step  # set, not counted, so that a resumed run records the same
        tasks = self._batch(step)
        jobs = [
            Job(
                f"step{step + 1}-{task.id}-{g}",
                task,
                stable_seed(self.seed, "train", step, task.id, g),
                self.recipe.rollout.temperature,
            )
            for task in tasks
            for g in range(config.group)
        ]
        at_once = config.batch_tasks * config.group
        trajectories = await rollout_many(
            jobs, self.engine.policy, self.environments, self.recipe.rollout, at_once=at_once
        )
        _refuse_all_failed(trajectories)
        size = config.group
        return [self._judge(tuple(trajectories[i : i + size])) for i in range(0, len(trajectories), size)]

    def _batch(self, step: int) -> list[Task]:
        """Take the step's tasks: a pass over all tasks in random order, then another pass."""
        size, count = self.recipe.train.batch_tasks, len(self.train_tasks)
        places = range(step * size, (step + 1) * size)
        return [self.train_tasks[_order(self.seed, 1 + p // count, count)[p % count]] for p in places]

    def _judge(self, trajectories: tuple[Trajectory, ...]) -> Group:
        config = self.recipe.train
        if any(t.task.tools != trajectories[0].task.tools for t in trajectories):
            raise ToolOrchestraError(f"the rollouts of task {trajectories[0].task.id} were given different tools")
        task = trajectories[0].task
        rewards = group_rewards([features_of(t) for t in trajectories], task.preference)
        kept = [r if self._is_trained_on(t) else None for r, t in zip(rewards, trajectories, strict=True)]
        advantages = group_advantages(kept, config.min_std, config.advantage_clip)
        return Group(task, trajectories, tuple(rewards), tuple(advantages or [None] * len(rewards)))

    def _is_trained_on(self, trajectory: Trajectory) -> bool:
        """Apply the format filter and the invalid-output filter.

        A call that can be read but names nobody is no format error: its reward of 0 is what teaches to name somebody.
        """
        config = self.recipe.train
        unreadable = any(
            turn.completion.finish_reason == "length" or any(c.error for c in turn.completion.message.tool_calls)
            for turn in trajectory.turns
        )
        silent = not any(
            turn.completion.message.content.strip() or any(not c.error for c in turn.completion.message.tool_calls)
            for turn in trajectory.turns
        )
        return not (config.format_filter and unreadable) and not (config.output_filter and silent)

    def _learn(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        config = self.recipe.train
        samples = [
            sample
            for number, group in enumerate(groups)
            for trajectory, advantage in zip(group.trajectories, group.advantages_G, strict=True)
            if advantage is not None
            for sample in samples_of(trajectory, advantage, number)
        ]
        if not samples:
            return {"samples": 0, "loss": 0.0}
        lr = config.lr * ramp(step, config.steps)
        updates = [self.engine.update(part, lr) for part in _split_by_group(samples, config.minibatches)]
        means = {key: math.fsum(u[key] for u in updates) / len(updates) for key in updates[0]}
        return {"samples": len(samples), "lr": lr, **means}

    def _figures(self, groups: Sequence[Group]) -> dict[str, object]:
        trajectories = [t for g in groups for t in g.trajectories]
        rewards = [r for g in groups for r in g.rewards_G if r is not None]
        tool_calls = calls_by_model(trajectories)
        experts = {e.model for t in trajectories for spec in t.task.tools or () for e in spec.experts}
        basic = {s.name for t in trajectories for s in t.task.tools or () if not s.experts}
        # What was on offer and never called counts as 0: being stuck on one choice is the collapse to be seen.
        expert_calls = {name: tool_calls.get(name, 0) for name in sorted(experts)}
        all_calls = {name: tool_calls.get(name, 0) for name in sorted(experts | basic)}
        figures = step_figures(trajectories)
        return {
            "reward": math.fsum(rewards) / max(1, len(rewards)),
            **figures,
            "groups_with_signal": sum(any(a is not None for a in g.advantages_G) for g in groups),
            "filtered": sum(not self._is_trained_on(t) for t in trajectories),
            "entropy": entropy(tool_calls),
            "call_share": shares(tool_calls),
            "first_moves": first_moves(trajectories),
            "alarms": collapse_alarms(expert_calls, all_calls, figures["malformed_turns"], self.recipe.train),
        }

    async def _look_at_dev(self, step: int) -> dict[str, float]:
        jobs = [Job(f"dev{step + 1}-{task.id}", task, 0, temperature=0.0) for task in self.dev_tasks]
        trajectories = await rollout_many(jobs, self.engine.policy, self.environments, self.recipe.rollout)
        return {f"dev_{name}": value for name, value in step_figures(trajectories).items()}


def _refuse_all_failed(trajectories: Sequence[Trajectory]) -> None:
    """A rollout that fails is data; when all fail alike, something is set up wrongly."""
    if trajectories and all(t.stop == "error" for t in trajectories):
        raise ToolOrchestraError(f"every rollout of the step failed; the first: {trajectories[0].error}")


def even_demonstrations(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Choose what is imitated: no failed call, and every tool equally often as the first move.

    A failed call does not show the form. Most random programs fail, so what is left would show programs seldom: what is
    rare is repeated, what is frequent is cut. Whether an answer is right is not looked at.
    """
    by_tool: dict[str, list[Trajectory]] = {}
    for trajectory in filter(_went_through, trajectories):
        by_tool.setdefault(trajectory.turns[0].completion.message.tool_calls[0].name, []).append(trajectory)
    each = sum(map(len, by_tool.values())) // max(1, len(by_tool))
    return [t for same_tool in by_tool.values() for t in islice(cycle(same_tool), each)]


def _went_through(trajectory: Trajectory) -> bool:
    observations = [o for turn in trajectory.turns for o in turn.observations]
    return trajectory.stop != "error" and bool(observations) and all(o.is_result for o in observations)


def _split_by_group(samples: Sequence[Sample], parts: int) -> list[list[Sample]]:
    numbers = sorted({s.group for s in samples})
    size = math.ceil(len(numbers) / min(parts, len(numbers)))
    chunks = [set(numbers[i : i + size]) for i in range(0, len(numbers), size)]
    return [[s for s in samples if s.group in chunk] for chunk in chunks]


def _order(seed: int, epoch: int, count: int) -> list[int]:
    return np.random.default_rng([seed, epoch]).permutation(count).tolist()


def stable_seed(*parts: object) -> int:
    """Derive a seed from names and numbers, the same in every process."""
    return int.from_bytes(sha256(":".join(map(str, parts)).encode()).digest()[:8], "big") >> 1
