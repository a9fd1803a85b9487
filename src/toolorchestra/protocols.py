"""The four seams. Whatever implements one of these can be used by the rollout, the trainer and the server alike.

`ChatModel` is behind policies, experts, judges and simulated users. The fakes that the tests use are shipped
implementations of these same protocols (`chat/scripted`), so that nothing is patched.
Source: project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from toolorchestra.types import Completion, Message, Observation, Outcome, Sample, Task, ToolSpec, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is drawn.

    Attributes:
        temperature: 0 takes the likeliest token; 1 samples from the model.
        top_p: keep the smallest set of tokens with at least this probability.
        max_tokens: most tokens to draw in this completion.
        seed: fixes the draw together with the conversation's content.
        attempt: how many earlier calls with the same content there were; a second try may differ from the first.
        conversation: a name for the conversation, so that an in-process model can keep its state between turns.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0
    attempt: int = 0
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What a tool may see of the rollout that calls it, read-only: the task, and the turns that are complete."""

    task: Task
    turns: tuple[Turn, ...] = ()

    @property
    def observations(self) -> tuple[Observation, ...]:
        """Everything that was observed so far, in order."""
        return tuple(o for t in self.turns for o in t.observations)


class ChatModel(Protocol):
    """Anything that answers a conversation."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Answer the conversation.

        Raises:
            ModelError: there is no completion.
        """
        ...


@runtime_checkable
class Seated(Protocol):
    """A `ChatModel` that keeps state between the turns of a conversation and batches conversations.

    A rollout holds a seat from its first turn to its last, so that the model knows who may still ask.
    """

    def seat(self, conversation: str) -> AbstractContextManager[None]:
        """Take a seat for `conversation` at once; leaving it frees what was kept."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A `ChatModel` that can count tokens as its model does, so that prompts can be fitted to a budget."""

    def count_tok(self, text: str) -> int:
        """Count the tokens of a text."""
        ...


class Tool(Protocol):
    """Anything that the policy can call."""

    @property
    def spec(self) -> ToolSpec:
        """What the policy sees."""
        ...

    async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
        """Do it. `arguments` were checked against the schema; `call_id` of the result is set by the caller.

        Raises:
            ToolError: becomes an observation that the policy can act on.
        """
        ...


class Environment(Protocol):
    """The world of one rollout: what is asked, with which tools, and whether it was solved. Single use."""

    @property
    def opening(self) -> Sequence[Message]:
        """The messages that open the conversation."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools on offer."""
        ...

    async def reply(self, text: str) -> Observation | None:
        """Answer a message that the policy addressed to the user; None when it was the final answer."""
        ...

    async def score(self, trajectory: Trajectory) -> Outcome:
        """Judge a finished trajectory.

        Raises:
            JudgeError: there is no outcome.
        """
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Engine(Protocol):
    """A trainable policy: where it samples from and how it learns."""

    @property
    def policy(self) -> ChatModel:
        """The policy as it stands after the latest update."""
        ...

    def update(self, samples: Sequence[Sample], lr: float) -> Mapping[str, float]:
        """Take one optimizer step on `samples`; return its metrics."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that an exact continuation needs."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        ...
