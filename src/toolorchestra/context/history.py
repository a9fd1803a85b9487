"""The growing conversation: for each turn the policy's message and one message an observation.

In: a turn. Out: messages, shortened to what fits.
Source: project.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolorchestra.context.cut import keep_head_and_tail
from toolorchestra.types import Message, Observation, Turn


def turn_messages(turn: Turn, limit: int) -> list[Message]:
    """Write a turn that is complete; `limit` is the most characters of an observation."""
    return [turn.completion.message, *observation_messages(turn.observations, limit)]


def observation_messages(observations: Iterable[Observation], limit: int) -> list[Message]:
    """Write observations as messages: an answered call's result for `tool`, anything else for `user`.

    Args:
        limit: most characters of one message; the policy pays for what it reads.
    """
    return [
        Message("tool" if o.call_id else "user", keep_head_and_tail(o.content, limit), tool_call_id=o.call_id)
        for o in observations
    ]
