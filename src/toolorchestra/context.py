"""Turns to messages: what the policy is shown of what happened.

The conversation grows: opening, then for each turn the policy's message and one message an observation.
In: observations. Out: messages, shortened to what fits.
Source: project.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolorchestra.types import Message, Observation

RECORD_CHARS = 20_000
"""Longest observation that is kept; experts are given what is kept."""


def observation_messages(observations: Iterable[Observation], limit: int) -> list[Message]:
    """Write observations as messages: an answered call's result for `tool`, anything else for `user`.

    Args:
        limit: most characters of one message; the policy pays for what it reads.
    """
    return [
        Message("tool" if o.call_id else "user", keep_head_and_tail(o.content, limit), tool_call_id=o.call_id)
        for o in observations
    ]


def keep_head_and_tail(text: str, limit: int) -> str:
    """Shorten text to at most `limit` characters, keeping head and tail around a marker."""
    if len(text) <= limit:
        return text
    marker = f"\n… {len(text) - limit} characters left out …\n"
    room = max(0, limit - len(marker))
    tail = room // 3
    return (text[: room - tail] + marker + text[len(text) - tail :])[:limit]
