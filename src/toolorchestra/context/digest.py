"""One prompt a turn, written anew: the problem, what was found, what was run, who answered what, and what failed.

A call and its result are one entry, so that none stands without the other. Entries are cut to one common length, the
longest that keeps the whole within its budget; where even short entries are too many, the oldest results go first, then
the oldest failures, and a line says how many. The problem is cut only where it takes more than half.
In: opening and turns. Out: the opening's system messages and one message of the user.
Source: project; the released code of arXiv 2511.21689 shows its policy a summary and leaves out what failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from toolorchestra.context.cut import keep_head_and_tail
from toolorchestra.prompts import show_sections
from toolorchestra.types import Message, Observation, ToolCall, Turn

Count = Callable[[str], int]
"""Counts the tokens of a text."""

_LEAST_CHARS = 80
"""Entries are not cut shorter than this; rather, old ones are left out."""

_PROBLEM, _FAILED = "Problem", "Failed calls"
_TITLES = {"document": "Documents found", "code": "Code run", "answer": "Answers of experts", "user": "Conversation"}
_OTHER = "Other results"
_ORDER = (*_TITLES.values(), _OTHER, _FAILED)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What was done and what came of it, under a section's title."""

    title: str
    done: str
    came: str

    def shown(self, limit: int) -> str:
        return f"{keep_head_and_tail(self.done, limit)}\n{keep_head_and_tail(self.came, limit)}"


def digest(
    opening: Sequence[Message], turns: Sequence[Turn], longest_chars: int, budget_tok: int, count: Count
) -> list[Message]:
    """Write what happened so far as one prompt.

    Args:
        longest_chars: most characters of an observation, whatever the budget.
        budget_tok: most tokens of the prompt, without the system's.
        count: counts tokens, or estimates them.
    """
    whole = "\n\n".join(m.content for m in opening if m.role != "system")
    entries = [entry for turn in turns for entry in _entries(turn)]
    share_tok = budget_tok // 2 if entries else budget_tok  # of the problem, so that it never crowds out the rest

    def within(budget_tok: int, problem: str, entries: Sequence[_Entry], chars: int, keep: int) -> bool:
        return count(_write(problem, entries, chars, keep)) <= budget_tok

    size = _largest(1, len(whole), lambda n: within(share_tok, keep_head_and_tail(whole, n), (), 0, 0))
    problem, every = keep_head_and_tail(whole, size), len(entries)
    chars = _largest(_LEAST_CHARS, longest_chars, lambda n: within(budget_tok, problem, entries, n, every))
    keep = _largest(0, every, lambda n: within(budget_tok, problem, entries, chars, n))
    text = _write(problem, entries, chars, keep)
    return [*(m for m in opening if m.role == "system"), Message("user", text)]


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Find the largest number that fits, or `low` if none does; what fits, fits when smaller too."""
    if high <= low or fits(high):
        return max(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _entries(turn: Turn) -> Iterator[_Entry]:
    """Pair observations with calls, by position."""
    message = turn.completion.message
    if not message.tool_calls:
        yield from (_Entry(_title(o), f"You said: {message.content.strip()}", o.content) for o in turn.observations)
        return
    for call, observation in zip(message.tool_calls, turn.observations, strict=False):
        yield _Entry(_title(observation), _call(call), observation.content)


def _title(observation: Observation) -> str:
    return _TITLES.get(observation.kind, _OTHER) if observation.is_result else _FAILED


def _call(call: ToolCall) -> str:
    if call.error and not call.name:
        return "- a call that could not be read"
    return f"- {call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"


def _write(problem: str, entries: Sequence[_Entry], chars: int, keep: int) -> str:
    """Write the digest with entries of at most `chars` a part, the first to go left out until `keep` are left."""
    by_worth = sorted(range(len(entries)), key=lambda n: (entries[n].title == _FAILED, n))
    gone = set(by_worth[: len(entries) - keep])
    kept = [entry for n, entry in enumerate(entries) if n not in gone]
    sections = [(title, [e.shown(chars) for e in kept if e.title == title]) for title in _ORDER]
    note = [f"… {len(gone)} earlier calls and their results left out …"] if gone else []
    return show_sections([(_PROBLEM, [problem]), ("Left out", note), *sections])
