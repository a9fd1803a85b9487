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
from toolorchestra.context.history import history
from toolorchestra.protocols import ChatModel, Counting
from toolorchestra.types import Message, Turn


def shown(
    opening: Sequence[Message], turns: Sequence[Turn], limits: RolloutConfig, count: Count | None
) -> list[Message]:
    """Write what the policy is shown before its next turn; `count` counts tokens as the policy does, if it does."""
    if limits.context == "digest" and count is not None:
        return digest(opening, turns, limits.observation_chars, limits.digest_tok, count)
    return history(opening, turns, limits.observation_chars)


def counter(policy: ChatModel) -> Count | None:
    """Take a policy's way to count tokens; None for one that counts none."""
    return policy.count_tok if isinstance(policy, Counting) else None
