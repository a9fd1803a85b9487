"""The one place that chooses what the policy is shown: the growing history, or a digest written anew each turn.

A digest is fitted to a budget of tokens, so it is for policies that count them. One that is made of rules (a plan, a
random player) reads the history, from which it sees what it has done.
In: opening, turns, the limits of a rollout. Out: messages.
Source: project.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolorchestra.configs import RolloutConfig
from toolorchestra.context.digest import Count, digest
from toolorchestra.context.history import turn_messages
from toolorchestra.protocols import ChatModel, Counting
from toolorchestra.types import Message, Turn


class Shape:
    """What the policy is shown of one rollout; `count` counts tokens as the policy does, if it does.

    A turn of the history is written once, so that a late turn costs no more than an early one.
    """

    def __init__(self, opening: Sequence[Message], limits: RolloutConfig, count: Count | None) -> None:
        self._opening = opening
        self._limits = limits
        self._count = count
        self._history = list(opening)
        self._written = 0

    def shown(self, turns: Sequence[Turn]) -> Sequence[Message]:
        """Write what is shown before the next turn; `turns` go on from those of the call before."""
        limits = self._limits
        if limits.context == "digest" and self._count is not None:
            return digest(self._opening, turns, limits.observation_chars, limits.digest_tok, self._count)
        for turn in turns[self._written :]:
            self._history += turn_messages(turn, limits.observation_chars)
        self._written = len(turns)
        return tuple(self._history)


def shown(
    opening: Sequence[Message], turns: Sequence[Turn], limits: RolloutConfig, count: Count | None
) -> Sequence[Message]:
    """Write what the policy is shown after `turns`, at once."""
    return Shape(opening, limits, count).shown(turns)


def counter(policy: ChatModel) -> Count | None:
    """Take a policy's way to count tokens; None for one that counts none."""
    return policy.count_tok if isinstance(policy, Counting) else None
