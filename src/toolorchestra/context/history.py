"""The growing conversation: opening, then for each turn the policy's message and one message an observation.

In: turns. Out: messages, shortened to what fits.
Source: project.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolorchestra.context.cut import keep_head_and_tail
from toolorchestra.types import Message, Observation, Turn


def history(opening: Sequence[Message], turns: Iterable[Turn], limit: int) -> list[Message]:
    """Write the conversation so far; `limit` is the most characters of an observation."""
    messages = list(opening)
    for turn in turns:
        messages += [turn.completion.message, *observation_messages(turn.observations, limit)]
    return messages


def observation_messages(observations: Iterable[Observation], limit: int) -> list[Message]:
    """Write observations as messages: an answered call's result for `tool`, anything else for `user`.

    Args:
        limit: most characters of one message; the policy pays for what it reads.
    """
    return [
        Message("tool" if o.call_id else "user", keep_head_and_tail(o.content, limit), tool_call_id=o.call_id)
        for o in observations
    ]
