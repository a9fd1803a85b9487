"""The nouns: what passes between rooms. Plain frozen dataclasses; units are in the names.

A `Trajectory` is the only thing that one room hands to another. Nothing here does work beyond sums over its parts.
Source: project; the words are those of docs/architecture.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, Literal

from toolorchestra.preferences import Preference
from toolorchestra.pricing import Price, Usage

Role = Literal["system", "user", "assistant", "tool"]
ObservationKind = Literal["text", "document", "code", "answer", "user", "error"]
FinishReason = Literal["stop", "length"]
StopReason = Literal[
    "answered",  # the policy gave a final answer
    "submitted",  # a tool that ends the rollout was called
    "turn_limit",
    "token_limit",  # the context is full
    "no_progress",  # turns with neither call nor text, after one nudge
    "unknown_tool",  # a streak of calls to tools that do not exist
    "repeated_call",  # a streak of identical calls
    "deadline",
    "error",
]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the policy wrote it. `error` is set when it could not be read; such a call never runs."""

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `reasoning` is the thinking that preceded `content`."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Expert:
    """A language model offered as a tool. What is shown is what is billed: one object does both.

    Attributes:
        alias: the name by which the task's policy calls it.
        model: the model behind it; never shown to the policy.
        price: None when unknown.
        strengths: what it is good at, as shown.
        typical_latency_s: seconds of a typical call, as shown.
        simulated: reports and receipts say so.
    """

    alias: str
    model: str
    price: Price | None
    strengths: str
    typical_latency_s: float
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the policy sees it.

    Attributes:
        name: what the policy calls.
        description: one or two sentences; price and latency are added by `prompts`, from the fields below.
        parameters: JSON Schema of the arguments object.
        experts: the experts that this tool can reach, if it is the door to experts.
        price: what a call costs, apart from experts; None when unknown.
        typical_latency_s: seconds of a typical call.
        mutates: a call changes the environment, so that it may not be repeated or shared.
        ends: a successful call ends the rollout, and its observation is the answer.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    experts: tuple[Expert, ...] = ()
    price: Price | None = Price()
    typical_latency_s: float = 0.0
    mutates: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What came back from a tool, the user or the environment.

    Attributes:
        source: the tool's name, or `tool:alias` for an expert, or `user`, or `system`.
        kind: what the content is.
        content: text for the policy.
        call_id: the call that it answers; empty when it answers none.
        usage: tokens, US dollars and seconds of this call.
        simulated: it comes from a simulated expert.
        failed: the call ran and failed, such as a program that raised; there is something to read, but no result.
    """

    source: str
    kind: ObservationKind
    content: str
    call_id: str = ""
    usage: Usage = Usage()
    simulated: bool = False
    failed: bool = False

    @property
    def is_result(self) -> bool:
        """Whether the call ran and did what it was asked to."""
        return self.kind != "error" and not self.failed


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of one completion, exactly as the sampler saw and drew them.

    Attributes:
        context_ids: ids that were added since the end of the previous completion (for the first: the whole prompt).
        sampled_ids: ids drawn by the policy, the end-of-turn id included where it was drawn.
        logprobs: natural log-probability of each sampled id under the sampling distribution at temperature 1.
        fresh: `context_ids` are the whole context, and what came before them is no longer seen.
    """

    context_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a chat model. `warnings` says what was odd in its text; `tokens` is set by in-process models."""

    message: Message
    finish_reason: FinishReason
    usage: Usage
    model: str
    policy_version: int = 0
    tokens: Tokens | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A completion of the policy and what it led to."""

    completion: Completion
    observations: tuple[Observation, ...] = ()

    @property
    def usage(self) -> Usage:
        """Everything that this turn used; its latency is the policy's plus that of its slowest call."""
        parts = [o.usage for o in self.observations]
        total = reduce(add, parts, self.completion.usage)
        waited_s = max((u.latency_s for u in parts), default=0.0)
        return Usage(
            total.input_tok,
            total.cached_tok,
            total.output_tok,
            total.cost_usd,
            self.completion.usage.latency_s + waited_s,
            total.estimated,
            total.unpriced,
        )

    @property
    def is_well_formed(self) -> bool:
        """Whether the completion ended by itself and every call in it could be read and names a tool's schema."""
        message = self.completion.message
        spoke = bool(message.tool_calls or message.content.strip())
        broken = any(c.error for c in message.tool_calls) or any(o.kind == "error" for o in self.observations)
        return spoke and not broken and self.completion.finish_reason == "stop"


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with a machine-checked answer.

    Attributes:
        id: unique in the run.
        kind: the family it belongs to.
        instruction: what the policy is asked.
        reference: what the scorer needs (gold answer, evidence, …); never shown to the policy.
        difficulty: 0 (easy) to 1 (hard).
        tools: its own tool specs with prices; None means the environment's.
        preference: what its user wants.
        domain: the world that it belongs to, if any.
    """

    id: str
    kind: str
    instruction: str
    reference: Mapping[str, Any]
    difficulty: float = 0.0
    tools: tuple[ToolSpec, ...] | None = None
    preference: Preference = Preference()
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scorer said: `score` in [0, 1], solved at 1. `usage` is the judge's own and never the policy's."""

    score: float
    checks: Mapping[str, float] = field(default_factory=dict)
    explanation: str = ""
    usage: Usage = Usage()

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:  # also refuses NaN
            raise ValueError(f"an outcome's score must lie in [0, 1], not {self.score}")

    @property
    def solved(self) -> bool:
        """Whether the task counts as solved."""
        return self.score >= 1.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one rollout.

    Attributes:
        outcome: None when scoring failed or was never reached; then there is no reward.
        error: the cause, when `stop` is `error` or scoring failed.
        seed: the seed of the policy's sampling.
        notices: things worth telling the user that changed nothing else.
    """

    id: str
    task: Task
    policy: str
    turns: tuple[Turn, ...]
    answer: str
    stop: StopReason
    outcome: Outcome | None = None
    error: str = ""
    seed: int = 0
    notices: tuple[str, ...] = ()

    @property
    def usage(self) -> Usage:
        """Everything that the policy and its tools used; turns follow one another, so latencies add."""
        return reduce(add, (t.usage for t in self.turns), Usage())

    @property
    def latency_s(self) -> float:
        """Seconds from question to answer."""
        return self.usage.latency_s

    @property
    def solved(self) -> bool:
        """Whether an outcome is there and says solved."""
        return self.outcome is not None and self.outcome.solved

    @property
    def calls(self) -> Counter[str]:
        """How often each tool was called, by `Observation.source`; calls that were refused count for no tool."""
        return Counter(o.source for t in self.turns for o in t.observations if o.call_id and o.kind != "error")

    @property
    def simulated(self) -> bool:
        """Whether any answer in it came from a simulated expert."""
        return any(o.simulated for t in self.turns for o in t.observations)


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task with their rewards and advantages; None where a trajectory is invalid."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    rewards_G: tuple[float | None, ...]
    advantages_G: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One context of a trajectory as the optimizer sees it: the whole trajectory where the context only grew.

    Attributes:
        token_ids_T: all ids of the context, in order.
        mask_T: True where the policy sampled the id; only there is a loss.
        logprobs_T: the sampler's log-probability where `mask_T`, else 0.
        advantage: the same for every sampled token.
        group: index of its group in the batch; samples of one group share their prompt.
    """

    token_ids_T: tuple[int, ...]
    mask_T: tuple[bool, ...]
    logprobs_T: tuple[float, ...]
    advantage: float
    group: int = 0
