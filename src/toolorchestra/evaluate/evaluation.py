"""Run contestants on the same tasks, seeds and limits, and keep one compact line of each rollout.

In: policies, tasks, a world. Out: scores, in an order that does not depend on timing. Work goes in waves of tasks: a
wave is handed over when it is complete, and one that was cut short is played again as a whole, so that what a batching
policy computes together, and with it every line, is the same after a kill as without one.
Source: project; the paper reports neither seeds nor error bars (arXiv 2511.21689, sec. 5).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, Protocol

from toolorchestra.configs import RolloutConfig
from toolorchestra.errors import ToolOrchestraError
from toolorchestra.evaluate.knn import KnnRouter, plan_rewards
from toolorchestra.evaluate.plans import Plan, PlannedPolicy, asks_expert, plans_for
from toolorchestra.orchestrator import Job, rollout, rollout_many
from toolorchestra.protocols import ChatModel, Environment
from toolorchestra.types import Task, Trajectory

ContestantRole = Literal["idle", "expert", "rule", "random", "warmup", "knn", "trained", "oracle"]

Key = tuple[str, int, str]
"""A score's place: policy, seed, task id."""

PLAN_TASKS = 16
"""Tasks whose plans are played at once; so few that none waits long for the interpreter."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who is compared.

    Attributes:
        name: what its scores carry as `policy`.
        role: what it stands for; the contestants of role `trained`, and those of `warmup`, are one row together.
        label: what the report calls it.
    """

    name: str
    role: ContestantRole
    label: str


@dataclass(frozen=True)
class Entrant:
    """A contestant that plays.

    Attributes:
        contestant: who it is.
        policy: how it plays.
        full_offer: show it every tool and expert, at the prices that the task drew, instead of the task's own offer.
    """

    contestant: Contestant
    policy: ChatModel
    full_offer: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """One rollout, as the report needs it.

    Attributes:
        policy: the contestant's name.
        seed: evaluation seed: the luck of simulated experts and the policy's sampling.
        task_id: the task.
        kind: the task's family.
        solved: None when the rollout is invalid (error, or scoring failed).
        cost_usd: US dollars, the policy's own tokens included.
        latency_s: seconds from question to answer.
        calls: calls by tool, without those of experts and without the one that ends the rollout.
        calls_by_model: calls by expert model.
        turns: turns of the policy.
        stop: why the rollout ended.
        simulated: an answer came from a simulated expert.
        well_formed_turns: turns without a broken call.
        unpriced: some price was unknown, so that `cost_usd` is "at least".
    """

    policy: str
    seed: int
    task_id: str
    kind: str
    solved: bool | None
    cost_usd: float
    latency_s: float
    calls: Mapping[str, int]
    calls_by_model: Mapping[str, int]
    turns: int
    stop: str
    simulated: bool
    well_formed_turns: int
    unpriced: bool = False

    @property
    def key(self) -> Key:
        """Its place among the scores of a run."""
        return self.policy, self.seed, self.task_id


def score_of(trajectory: Trajectory, seed: int, policy: str = "") -> Score:
    """Write a trajectory's line.

    Args:
        trajectory: its task carries the tools, by which an expert's alias is resolved to the model behind it.
        seed: the evaluation seed, which is not the seed of the policy's sampling.
        policy: the contestant's name; the trajectory's policy when left out.
    """
    usage = trajectory.usage
    tools, models = _count_calls(trajectory)
    return Score(
        policy=policy or trajectory.policy,
        seed=seed,
        task_id=trajectory.task.id,
        kind=trajectory.task.kind,
        solved=None if trajectory.outcome is None else trajectory.outcome.solved,
        cost_usd=usage.cost_usd,
        latency_s=usage.latency_s,
        calls=tools,
        calls_by_model=models,
        turns=len(trajectory.turns),
        stop=trajectory.stop,
        simulated=trajectory.simulated,
        well_formed_turns=sum(turn.is_well_formed for turn in trajectory.turns),
        unpriced=usage.unpriced,
    )


def _count_calls(trajectory: Trajectory) -> tuple[dict[str, int], dict[str, int]]:
    specs = trajectory.task.tools or ()
    models = {f"{spec.name}:{e.alias}": e.model for spec in specs for e in spec.experts}
    ending = {spec.name for spec in specs if spec.ends}
    by_tool: Counter[str] = Counter()
    by_model: Counter[str] = Counter()
    for source, count in sorted(trajectory.calls.items()):
        if source in models:
            by_model[models[source]] += count
        elif source not in ending:
            by_tool[source] += count
    return dict(by_tool), dict(by_model)


class World(Protocol):
    """Where contestants play; the embedded world is one."""

    def environments(self, luck: int = 0) -> Callable[[Task], Environment]:
        """Return the maker of environments; another `luck` draws simulated experts' successes anew, and only them."""
        ...

    def with_all_experts(self, task: Task) -> Task:
        """Return the task with every tool and expert on offer, at the prices that the task drew."""
        ...


Progress = Callable[[str, int, int], None]
"""Hears a contestant's name, and how many of how many rollouts are complete."""


def _ignore(*_: object) -> None:
    """Hear and do nothing."""


@dataclass(frozen=True)
class Ledger:
    """What is done already, and who hears of what is new.

    Attributes:
        done: scores of an earlier, cut-short evaluation; they are kept and their waves skipped.
        on_score: hears of every new score, in a fixed order; a caller writes it down.
        progress: hears how far it is.
    """

    done: Mapping[Key, Score] = field(default_factory=dict)
    on_score: Callable[[Score], None] = _ignore
    progress: Progress = _ignore

    def find(self, keys: Sequence[Key]) -> list[Score] | None:
        """Return the scores of a wave if all of them are done."""
        found = [self.done[key] for key in keys if key in self.done]
        return found if len(found) == len(keys) else None

    def settle(self, scores: Sequence[Score]) -> list[Score]:
        """Hand over the new scores of a wave; return all of them, as they were first written down."""
        for score in scores:
            if score.key not in self.done:
                self.on_score(score)
        return [self.done.get(score.key, score) for score in scores]


async def evaluate_policies(
    entrants: Sequence[Entrant],
    tasks: Sequence[Task],
    world: World,
    seeds: Sequence[int],
    limits: RolloutConfig,
    *,
    temperature: float = 0.0,
    at_once: int = 256,
    ledger: Ledger = Ledger(),
) -> list[Score]:
    """Run every entrant on every task with every seed.

    Args:
        temperature: of the policies' sampling; rules and plans have none.
        at_once: tasks in a wave.

    Raises:
        ToolOrchestraError: all rollouts of an entrant's first wave failed, which says that something is set up wrongly.
    """
    scores: list[Score] = []
    for entrant in entrants:
        table = _Table(entrant, world, limits, temperature, at_once, ledger)
        scores += await table.play(tasks, seeds)
    return scores


@dataclass
class _Table:
    """Where one entrant plays: its scores so far, and the terms."""

    entrant: Entrant
    world: World
    limits: RolloutConfig
    temperature: float
    at_once: int
    ledger: Ledger
    scores: list[Score] = field(default_factory=list)

    async def play(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Score]:
        shown = [self.world.with_all_experts(t) for t in tasks] if self.entrant.full_offer else tasks
        watch = _Counter(self.entrant.contestant.name, len(tasks) * len(seeds), self.ledger.progress)
        for seed in seeds:
            environments = self.world.environments(seed)
            for wave in _waves(shown, self.at_once):
                self.scores += await self._wave(wave, seed, environments, watch)
        return self.scores

    async def _wave(
        self, wave: Sequence[Task], seed: int, environments: Callable[[Task], Environment], watch: _Counter
    ) -> list[Score]:
        name = self.entrant.contestant.name
        found = self.ledger.find([(name, seed, task.id) for task in wave])
        if found is not None:
            watch.add(len(wave))
            return found
        jobs = [_job(name, seed, task, self.temperature) for task in wave]
        played = await rollout_many(
            jobs, self.entrant.policy, environments, self.limits, at_once=self.at_once, on_done=watch.one
        )
        self._refuse_all_failed(played)
        return self.ledger.settle([score_of(t, seed, name) for t in played])

    def _refuse_all_failed(self, played: Sequence[Trajectory]) -> None:
        """A rollout that fails is data; when all have failed so far, something is set up wrongly: write nothing."""
        if all(t.stop == "error" for t in played) and all(s.stop == "error" for s in self.scores):
            name = self.entrant.contestant.name
            raise ToolOrchestraError(f"every rollout of '{name}' failed; the first: {played[0].error}")


def _job(name: str, seed: int, task: Task, temperature: float) -> Job:
    digest = sha256(f"{seed}:{task.id}".encode()).digest()
    return Job(f"{name}-{seed}-{task.id}", task, int.from_bytes(digest[:6], "big"), temperature)


async def evaluate_oracle(
    contestant: Contestant,
    tasks: Sequence[Task],
    world: World,
    seeds: Sequence[int],
    limits: RolloutConfig,
    *,
    ledger: Ledger = Ledger(),
) -> list[Score]:
    """Choose, for every task and seed, the best plan of the task's own offer with hindsight.

    It sees the outcomes, so it is a bound for plans and no policy. A policy that takes longer ways can pass it.
    """
    name = contestant.name
    watch = _Counter(name, len(tasks) * len(seeds), ledger.progress)
    scores: list[Score] = []
    for wave in _waves(tasks, PLAN_TASKS):
        found = ledger.find([(name, seed, task.id) for seed in seeds for task in wave])
        if found is None:
            plays = await _play_seeds(wave, world, seeds, limits)
            best = [score_of(oracle_choice(list(plans.values())), seed, name) for seed, plans in plays if plans]
            found = ledger.settle(best)
        watch.add(len(found))
        scores += found
    return scores


async def _play_seeds(
    tasks: Sequence[Task], world: World, seeds: Sequence[int], limits: RolloutConfig
) -> list[tuple[int, dict[str, Trajectory]]]:
    """Play all plans of all tasks with all seeds; those that ask no expert are the same with every seed: once."""
    steady = await play_plans(tasks, world.environments(), limits, lambda plan: not asks_expert(plan))
    plays = []
    for seed in seeds:
        lucky = await play_plans(tasks, world.environments(seed), limits, asks_expert)
        plays += [(seed, a | b) for a, b in zip(lucky, steady, strict=True)]
    return plays


async def play_plans(
    tasks: Sequence[Task],
    environments: Callable[[Task], Environment],
    limits: RolloutConfig,
    wanted: Callable[[Plan], bool] = lambda _: True,
) -> list[dict[str, Trajectory]]:
    """Play the wanted plans of each task's offer; returns, for each task, the trajectories by plan name."""

    async def play(task: Task, plan: Plan) -> Trajectory:
        policy = PlannedPolicy(plan.name, lambda *_: plan)
        return await rollout(Job(f"{plan.name}-{task.id}", task, 0), policy, environments(task), limits)

    plans = [[plan for plan in plans_for(task.tools or ()) if wanted(plan)] for task in tasks]
    pairs = [(task, plan) for task, mine in zip(tasks, plans, strict=True) for plan in mine]
    played = iter(await asyncio.gather(*(play(task, plan) for task, plan in pairs)))
    return [{plan.name: next(played) for plan in mine} for mine in plans]


def oracle_choice(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Choose the cheapest trajectory that solves the task, else the cheapest; ties: the faster, then the first.

    Args:
        trajectories: what each plan did on ONE task; at least one.
    """
    return min(trajectories, key=lambda t: (not t.solved, t.outcome is None, t.usage.cost_usd, t.latency_s))


async def fit_knn(
    tasks: Sequence[Task],
    world: World,
    limits: RolloutConfig,
    neighbours: int,
    progress: Progress = _ignore,
) -> KnnRouter:
    """Fit the kNN router: play every plan on every training task, with all experts on offer.

    It is told more than the trained policy, which sees a part of the experts in each task.
    """
    environments = world.environments()
    rewards: list[dict[str, float]] = []
    for wave in _waves(tasks, PLAN_TASKS):
        plays = await play_plans([world.with_all_experts(t) for t in wave], environments, limits)
        rewards += [plan_rewards(play) for play in plays]
        progress("fitting the kNN router", len(rewards), len(tasks))
    return KnnRouter([task.instruction for task in tasks], rewards, neighbours)


class _Counter:
    """Counts a contestant's rollouts and tells how far it is."""

    def __init__(self, name: str, total: int, progress: Progress) -> None:
        self._name, self._total, self._progress = name, total, progress
        self._done = 0

    def one(self, trajectory: Trajectory) -> None:
        self.add(1)

    def add(self, count: int) -> None:
        self._done += count
        self._progress(self._name, self._done, self._total)


def _waves(tasks: Sequence[Task], size: int) -> Iterator[Sequence[Task]]:
    return (tasks[start : start + size] for start in range(0, len(tasks), size))
