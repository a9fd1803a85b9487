"""Text cut to a length, so that its beginning and its end stay readable.

In: text. Out: text of at most so many characters; what is left out is said.
Source: project.
"""

from __future__ import annotations

RECORD_CHARS = 20_000
"""Longest observation that is kept; experts are given what is kept."""


def keep_head_and_tail(text: str, limit: int) -> str:
    """Shorten text to at most `limit` characters, keeping head and tail around a marker."""
    if len(text) <= limit:
        return text
    marker = f"\n… {len(text) - limit} characters left out …\n"
    room = max(0, limit - len(marker))
    tail = room // 3
    return (text[: room - tail] + marker + text[len(text) - tail :])[:limit]
