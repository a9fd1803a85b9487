"""A simulated expert: a chat model that knows the answers and gives them as often as its skill says.

It finds the task by the question's text, so it sees what a real expert would be sent and nothing else of the rollout.
Right or wrong is a function of (seed, task, model, attempt). Nothing sleeps: latency is a figure, charged on a virtual
clock. Everything it says is marked "simulated" in receipts and reports.
In: an expert's messages. Out: a completion with tokens and latency; the caller bills it.
Source: project.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from statistics import NormalDist
from typing import Protocol

from toolorchestra.errors import ModelError
from toolorchestra.pricing import Usage
from toolorchestra.prompts import read_expert_message
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Message, Task, ToolSpec

UNKNOWN = "I am a simulated expert and can only answer the questions of the embedded world."
_CHARS_PER_TOK = 4


class _Quantity(Protocol):
    @property
    def median(self) -> float: ...
    @property
    def spread(self) -> float: ...


class Profile(Protocol):
    """What is simulated; see `environments.embedded.pool.ExpertProfile`."""

    @property
    def model(self) -> str:
        """Its name."""
        ...

    @property
    def reading(self) -> float:
        """Probability of a right answer given all the material that is needed."""
        ...

    @property
    def latency(self) -> _Quantity:
        """Seconds of a call."""
        ...

    @property
    def output(self) -> _Quantity:
        """Output tokens of a call."""
        ...

    def skill_at(self, kind: str, difficulty: float) -> float:
        """Probability of a right answer from memory."""
        ...


class SimulatedExpert:
    """Answers the tasks of an answer key.

    Args:
        profile: how good, slow and wordy it is.
        answer_key: tasks by their question; each reference holds `gold`, `wrong`, and for facts `evidence`.
        seed: of its luck.
    """

    def __init__(self, profile: Profile, answer_key: Mapping[str, Task], seed: int) -> None:
        self.name = profile.model
        self._profile = profile
        self._answer_key = answer_key
        self._seed = seed

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Answer the question in the latest user message.

        Raises:
            ModelError: there is none.
        """
        asked = next((m.content for m in reversed(messages) if m.role == "user"), None)
        if asked is None:
            raise ModelError(f"{self.name} was asked nothing")
        question, material = read_expert_message(asked)
        task = self._answer_key.get(question)
        text = UNKNOWN if task is None else self._answer(task, material, sampling.attempt)
        usage = self._usage(messages, task.id if task else question, sampling.attempt)
        return Completion(Message("assistant", text), "stop", usage, self.name)

    def _answer(self, task: Task, material: str, attempt: int) -> str:
        luck = self._uniform("right", task.id, attempt)
        if luck < self.chance(task, material):
            return str(task.reference["gold"])
        wrong = task.reference["wrong"]
        return str(wrong[int(self._uniform("wrong", task.id, attempt) * len(wrong))])

    def chance(self, task: Task, material: str) -> float:
        """Compute the probability of a right answer: memory, raised towards `reading` by the material's share."""
        memory = self._profile.skill_at(task.kind, task.difficulty)
        return memory + support(task, material) * max(0.0, self._profile.reading - memory)

    def _usage(self, messages: Sequence[Message], name: str, attempt: int) -> Usage:
        read = math.ceil(sum(len(m.content) for m in messages) / _CHARS_PER_TOK)
        wrote = max(1, round(self._lognormal(self._profile.output, "output", name, attempt)))
        seconds = round(self._lognormal(self._profile.latency, "latency", name, attempt), 3)
        return Usage(read, 0, wrote, 0.0, seconds, unpriced=True)

    def _uniform(self, *names: object) -> float:
        text = ":".join(map(str, (self._seed, self.name, *names)))
        return int.from_bytes(sha256(text.encode()).digest()[:8], "big") / 2**64

    def _lognormal(self, quantity: _Quantity, *names: object) -> float:
        uniform = min(max(self._uniform(*names), 1e-6), 1 - 1e-6)
        return quantity.median * math.exp(quantity.spread * NormalDist().inv_cdf(uniform))


def support(task: Task, material: str) -> float:
    """Measure how much of what the task needs is in the material, 0 to 1.

    Facts need their evidence documents, shown by search as `[id]` at the start of a line. Puzzles need a program whose
    whole output is the answer.
    """
    blocks = re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", material, re.MULTILINE | re.DOTALL)
    evidence = task.reference.get("evidence")
    if evidence:
        found = "\n".join(text for source, text in blocks if source == "search")
        shown = set(re.findall(r"^\[(\w+)\]", found, re.MULTILINE))
        return sum(document in shown for document in evidence) / len(evidence)
    gold = str(task.reference["gold"]).strip()
    return float(any(source == "python" and text.strip() == gold for source, text in blocks))
