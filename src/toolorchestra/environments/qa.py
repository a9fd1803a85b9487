"""A question with a checked answer: the environment of single-question tasks.

In: a task, live tools, a scorer. Out: the opening conversation and an outcome.
Source: arXiv 2511.21689, sec. 3.1 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from toolorchestra.errors import JudgeError
from toolorchestra.prompts import SYSTEM
from toolorchestra.protocols import Tool
from toolorchestra.types import Message, Observation, Outcome, Task, Trajectory


class QuestionEnvironment:
    """Asks the task's question once and scores the answer.

    Args:
        task: what is asked.
        tools: what may be called.
        scorer: judges a non-empty answer; None when there is nothing to judge by.
    """

    def __init__(self, task: Task, tools: Sequence[Tool], scorer: Callable[[Task, str], Outcome] | None) -> None:
        self.opening = (Message("system", SYSTEM), Message("user", task.instruction))
        self.tools = tools
        self._task = task
        self._scorer = scorer

    async def reply(self, text: str) -> Observation | None:
        """Take any message as the final answer: nobody is there to talk to."""
        return None

    async def score(self, trajectory: Trajectory) -> Outcome:
        """Score the answer; an empty one is wrong without asking the scorer.

        Raises:
            JudgeError: the task has no reference, or the scorer failed.
        """
        if self._scorer is None:
            raise JudgeError("the task has no reference answer")
        if not trajectory.answer.strip():
            return Outcome(0.0, {"answered": 0.0}, "no answer")
        return self._scorer(self._task, trajectory.answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None
