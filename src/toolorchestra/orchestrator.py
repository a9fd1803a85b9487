"""The rollout: a policy solves a task by calling tools. The loop that is trained is the loop that is served.

    opening messages -> policy -> calls, concurrently -> observations -> policy -> … -> answer -> outcome

In: a task, a policy, an environment. Out: a trajectory, always: a tool's error is told to the policy; any other error
ends the rollout and is kept on its trajectory.
Source: arXiv 2511.21689, sec. 3.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice

from toolorchestra.configs import RolloutConfig
from toolorchestra.context.cut import RECORD_CHARS, keep_head_and_tail
from toolorchestra.context.shape import Shape, counter
from toolorchestra.errors import ContextFullError, JudgeError, ToolError
from toolorchestra.prompts import NUDGE
from toolorchestra.protocols import ChatModel, Environment, Sampling, Seated, Tool, View
from toolorchestra.tools.arguments import check_arguments
from toolorchestra.types import Completion, Observation, StopReason, Task, ToolCall, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to do: its trajectory's id, its task, the seed of the policy's sampling, and how to sample."""

    id: str
    task: Task
    seed: int
    temperature: float = 1.0


class _Stop(Exception):
    """Ends a rollout for a named reason."""

    def __init__(self, reason: StopReason, answer: str = "") -> None:
        super().__init__(reason)
        self.reason: StopReason = reason
        self.answer = answer


class _Loop:
    """The state of one rollout while it runs; what was done stays here whatever ends it."""

    def __init__(self, job: Job, policy: ChatModel, environment: Environment, limits: RolloutConfig) -> None:
        self.job = job
        self.policy = policy
        self.environment = environment
        self.limits = limits
        self.tools: dict[str, Tool] = {tool.spec.name: tool for tool in environment.tools}
        self.shape = Shape(environment.opening, limits, counter(policy))
        self.turns: list[Turn] = []
        self.notices: list[str] = []
        self._unknown = 0
        self._repeats = 1
        self._nudged = False
        self._last_call: tuple[str, str, str] | None = None

    async def run(self) -> None:
        """Take turns until something raises `_Stop`."""
        for _ in range(self.limits.turns):
            await self._turn()
        raise _Stop("turn_limit")

    async def _turn(self) -> None:
        messages = self.shape.shown(self.turns)
        specs = [tool.spec for tool in self.tools.values()]
        completion = _with_ids(await self.policy.complete(messages, specs, self._sampling()))
        self.turns.append(Turn(completion))  # recorded before its calls run, so that a failure keeps it
        self.notices += completion.warnings
        if completion.message.tool_calls:
            await self._run_calls(completion.message.tool_calls)
        else:
            await self._speak(completion)

    def _sampling(self) -> Sampling:
        return Sampling(
            self.job.temperature, max_tokens=self.limits.turn_tok, seed=self.job.seed, conversation=self.job.id
        )

    async def _run_calls(self, calls: Sequence[ToolCall]) -> None:
        """Run a turn's calls concurrently; observations keep the model's order and are paired by position."""
        self._count_streaks(calls)
        view = View(self.job.task, tuple(self.turns[:-1]))
        observations = await asyncio.gather(*(self._call(call, view) for call in calls))
        self._observe(observations)
        for call, observation in zip(calls, observations, strict=True):
            if observation.kind != "error" and self.tools[call.name].spec.ends:
                raise _Stop("submitted", observation.content)
        if self._unknown >= self.limits.unknown_tool_streak:
            raise _Stop("unknown_tool")
        if self._repeats >= self.limits.repeated_call_streak:
            raise _Stop("repeated_call")

    def _observe(self, observations: Sequence[Observation]) -> None:
        self.turns[-1] = replace(self.turns[-1], observations=tuple(observations))

    async def _call(self, call: ToolCall, view: View) -> Observation:
        try:
            async with asyncio.timeout(self.limits.call_deadline_s):
                observation = await self._checked_call(call, view)
        except ToolError as error:
            observation = Observation(call.name or "system", "error", str(error))
        except TimeoutError:
            text = f"'{call.name}' gave no answer within {self.limits.call_deadline_s:g} s and was given up."
            observation = Observation(call.name, "error", text)
        content = keep_head_and_tail(observation.content, RECORD_CHARS)
        return replace(observation, call_id=call.id, content=content)

    async def _checked_call(self, call: ToolCall, view: View) -> Observation:
        if call.error:
            raise ToolError(call.error)
        tool = self.tools.get(call.name)
        if tool is None:
            raise ToolError(f"There is no tool '{call.name}'. The tools are: {', '.join(self.tools)}.")
        arguments, notes = check_arguments(tool.spec.parameters, call.arguments)
        self.notices += notes
        return await tool(arguments, view)

    def _count_streaks(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            unknown = not call.error and call.name not in self.tools
            self._unknown = self._unknown + 1 if unknown else 0
            this = (call.name, call.error, repr(sorted(call.arguments.items(), key=lambda item: item[0])))
            self._repeats = self._repeats + 1 if this == self._last_call else 1
            self._last_call = this

    async def _speak(self, completion: Completion) -> None:
        """Handle a turn without calls: cut short, empty, an answer, or a word to the user."""
        text = completion.message.content.strip()
        if completion.finish_reason == "length":
            cut = f"The turn was cut at {self.limits.turn_tok} tokens before it was complete. Be shorter."
            self._observe([Observation("system", "error", cut)])
        elif not text:
            if self._nudged:
                raise _Stop("no_progress")
            self._nudged = True
            self._observe([Observation("system", "error", NUDGE)])
        else:
            reply = await self.environment.reply(text)
            if reply is None:
                raise _Stop("answered", text)
            self._observe([reply])


def _with_ids(completion: Completion) -> Completion:
    """Number a turn's calls where some have no id or share one, for a result is told apart by its call's id."""
    ids = [call.id for call in completion.message.tool_calls]
    if all(ids) and len(set(ids)) == len(ids):
        return completion
    calls = tuple(replace(call, id=f"call_{n}") for n, call in enumerate(completion.message.tool_calls))
    return replace(completion, message=replace(completion.message, tool_calls=calls))


async def rollout(job: Job, policy: ChatModel, environment: Environment, limits: RolloutConfig) -> Trajectory:
    """Solve one task and score the result.

    Returns:
        The trajectory, whatever happened. Its `outcome` is None when an error or the judge left it without a score.
    """
    async with environment:
        loop = _Loop(job, policy, environment, limits)
        reason, answer, error = await _run_to_the_end(loop)
        trajectory = Trajectory(
            id=job.id,
            task=job.task,
            policy=policy.name,
            turns=tuple(loop.turns),
            answer=answer,
            stop=reason,
            error=error,
            seed=job.seed,
            notices=tuple(_preference_notices(job.task, loop.tools) + loop.notices),
        )
        return await _scored(trajectory, environment)


async def _run_to_the_end(loop: _Loop) -> tuple[StopReason, str, str]:
    try:
        async with asyncio.timeout(loop.limits.deadline_s):
            await loop.run()
    except _Stop as stop:
        return stop.reason, stop.answer, ""
    except TimeoutError:
        return "deadline", "", f"not finished within {loop.limits.deadline_s:g} s"
    except ContextFullError as error:
        return "token_limit", "", str(error)
    except Exception as error:  # the one place where a rollout's failure becomes data; its siblings go on
        return "error", "", f"{type(error).__name__}: {error}"
    raise AssertionError("a rollout ends by a named reason")


async def _scored(trajectory: Trajectory, environment: Environment) -> Trajectory:
    if trajectory.stop == "error":
        return trajectory
    try:
        return replace(trajectory, outcome=await environment.score(trajectory))
    except JudgeError as error:
        return replace(trajectory, error=f"not scored: {error}")


def _preference_notices(task: Task, tools: dict[str, Tool]) -> list[str]:
    names = set(tools) | {f"{name}:{e.alias}" for name, tool in tools.items() for e in tool.spec.experts}
    return [
        f"preference for '{name}' ignored: no such tool here" for name in task.preference.tools if name not in names
    ]


async def rollout_many(
    jobs: Sequence[Job],
    policy: ChatModel,
    environments: Callable[[Task], Environment],
    limits: RolloutConfig,
    *,
    at_once: int = 256,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Do many rollouts, at most `at_once` at a time; results are in the order of `jobs`.

    A rollout that ends hands its seat to the next job at once, before a batching policy can go on without it: so what
    such a policy computes together depends on the jobs alone.
    """
    done: dict[int, Trajectory] = {}
    seated = ((number, job, _take_seat(policy, job.id)) for number, job in enumerate(jobs))

    async def work(number: int, job: Job, seat: AbstractContextManager[None]) -> None:
        while True:
            with seat:
                done[number] = await rollout(job, policy, environments(job.task), limits)
            on_done(done[number])
            if (following := next(seated, None)) is None:
                return
            number, job, seat = following

    workers = [asyncio.create_task(work(*first)) for first in islice(seated, at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [done[number] for number in range(len(jobs))]


async def ask(
    task: Task, policy: ChatModel, environment: Environment, limits: RolloutConfig, seed: int = 0
) -> Trajectory:
    """Answer one question with the likeliest choices of the policy."""
    job = Job("ask", task, seed, temperature=0.0)
    with _take_seat(policy, job.id):
        return await rollout(job, policy, environment, limits)


def _take_seat(policy: ChatModel, conversation: str) -> AbstractContextManager[None]:
    """Take the conversation's seat now, so that a batching policy knows of it before any sibling asks."""
    return policy.seat(conversation) if isinstance(policy, Seated) else nullcontext()
