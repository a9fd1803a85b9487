"""A router without a language model: do what worked best on the most similar training questions.

Fitted on training tasks alone, from what every plan earned there. It chooses among experts, programs, and search then
an expert, exactly the plans that the oracle has, so its terms are equal to the trained policy's.
In: questions, and the reward of each plan on each of them. Out: a plan for a new question.
Source: the kNN baseline of LLM routing, e.g. RouterBench (arXiv 2403.12031), sec. 4; the reward is this project's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from toolorchestra.errors import MissingExtraError
from toolorchestra.evaluate.plans import Plan, plans_for
from toolorchestra.rewards import features_of, group_rewards
from toolorchestra.types import ToolSpec, Trajectory


def plan_rewards(trajectories: Mapping[str, Trajectory]) -> dict[str, float]:
    """Reward the plans of one task as a group, by plan name; invalid trajectories are left out.

    Args:
        trajectories: what each plan did on the SAME task.
    """
    if not trajectories:
        return {}
    preference = next(iter(trajectories.values())).task.preference
    rewards = group_rewards([features_of(t) for t in trajectories.values()], preference)
    return {name: reward for name, reward in zip(trajectories, rewards, strict=True) if reward is not None}


class KnnRouter:
    """Chooses the plan with the best mean reward among the nearest training questions.

    Args:
        questions: the training questions.
        rewards: of each question, the reward of each plan by name; a plan may be missing where it was not on offer.
        neighbours: how many questions to average over.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        ValueError: there are no questions, or not as many rewards as questions.
    """

    def __init__(self, questions: Sequence[str], rewards: Sequence[Mapping[str, float]], neighbours: int) -> None:
        if not questions or len(questions) != len(rewards):
            raise ValueError(f"needs questions and one row of rewards each, not {len(questions)} and {len(rewards)}")
        self._vectorizer = _vectorizer()
        self._vectors = self._vectorizer.fit_transform(questions)
        self._rewards = rewards
        self._neighbours = neighbours
        self._overall = _means(rewards)
        self._known: dict[str, dict[str, float]] = {}

    def choose(self, question: str, tools: Sequence[ToolSpec]) -> Plan | None:
        """Choose among the plans that the offer allows; None when none of them was ever tried. Ties: the first."""
        means = self._means_near(question)
        known = [plan for plan in plans_for(tools) if plan.name in means]
        return max(known, key=lambda plan: means[plan.name], default=None)

    def _means_near(self, question: str) -> dict[str, float]:
        """Average near the question; a plan that no neighbour tried gets its mean over all training questions."""
        if question not in self._known:
            near = [self._rewards[i] for i in self._nearest(question)]
            self._known[question] = self._overall | _means(near)
        return self._known[question]

    def _nearest(self, question: str) -> list[int]:
        similarity = (self._vectors @ self._vectorizer.transform([question]).T).toarray().ravel()
        return np.argsort(-similarity, kind="stable")[: self._neighbours].tolist()


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: fmean(row[name] for row in rows if name in row) for name in names}


def _vectorizer() -> Any:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        raise MissingExtraError("the kNN router", "train") from None
    # One word or two; a number counts by its shape. Vectors have length 1, so a product is the cosine.
    return TfidfVectorizer(ngram_range=(1, 2), preprocessor=_normalise)


def _normalise(text: str) -> str:
    return re.sub(r"\d", "0", text.lower())
