"""The one place that chooses what the policy is shown: the growing history, or a digest written anew each turn.

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

_BYTES_PER_TOK = 3
"""An estimate on the safe side: tokenizers of language models average four bytes of English."""


def shown(opening: Sequence[Message], turns: Sequence[Turn], limits: RolloutConfig, count: Count) -> list[Message]:
    """Write what the policy is shown before its next turn."""
    if limits.context == "digest":
        return digest(opening, turns, limits.observation_chars, limits.digest_tok, count)
    return history(opening, turns, limits.observation_chars)


def counter(model: ChatModel) -> Count:
    """Take a model's own count of tokens, or an estimate where it has none."""
    return model.count_tok if isinstance(model, Counting) else estimate_tok


def estimate_tok(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOK)
