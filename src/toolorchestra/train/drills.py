"""Drills: what a policy that starts from nothing learns before it plays, to copy and then to read offers.

Echoes are rows of random tokens, twice; from them a model learns to look up what followed a token before. Without them
it does not find whom a description calls strong, however many offers it sees.

Reading drills are short made-up offers, and moves of which only the names are learned:

    iris: 0.2/0.8 $/Mtok; 9 s; strong: logic (iris), primes (iris)
    heron: 0.1/0.1 $/Mtok; 4 s; strong: stories (heron); fair: logic
    <think>subject: logic; strong: logic (iris); logic; other (heron)</think> … "arguments": {"expert": "heron"}}

They teach to find names, to see that there is none, and to act on them, not whom to call: who is called is drawn at
random. Names, subjects, prices and their pairing are random too, so nothing can be learned by heart. The first ones are
short and leave out prices.
In: names, subjects, a seed. Out: samples to imitate.
Source: project; a language model that was trained on text knows how to copy and to read, and skips this stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from random import Random

from toolorchestra.chat.parse import render_call
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.pricing import Price
from toolorchestra.prompts import show_expert
from toolorchestra.types import Expert, Sample, ToolCall, ToolSpec, Trajectory

SHORT_DRILLS = 12_000
"""Over so many reading drills offers grow from two experts without prices to full ones."""

_EXPERT_TOOL = "ask"
_NOBODY = "nobody"
_ECHO_TOK = (8, 40)
_UNKNOWN_SUBJECTS = 2
"""Subjects in which nobody is strong that a short drill asks about."""


def explanations(subject: str, call: ToolCall, tools: Sequence[ToolSpec]) -> list[str]:
    """List what may truly be thought before a move: the subject, somebody whom the offer calls strong in it, the move.

    Examples: `subject: logic; strong: logic (iris); logic; ask`, which asks iris; `…; logic; other (heron)`, which asks
    somebody not called strong; `subject: logic; strong: logic (nobody); logic; search`. What the offer says stands
    before the choice, so that it can depend on it, and the subject directly before. Whether the move is good is not
    said. Nothing is thought before a tool that ends the rollout, and nothing is true of an expert who is not on offer.
    """
    tool = next(t for t in tools if t.name == call.name)
    if tool.ends:
        return [""]
    strong = [e.alias for t in tools for e in t.experts if is_strong(e, subject)]
    if not tool.experts:
        return [_thinking(subject, alias, tool.name) for alias in strong or [_NOBODY]]
    asked = next((e.alias for e in tool.experts if e.alias == call.arguments.get("expert")), None)
    if asked is None:
        return []
    if asked in strong:
        return [_thinking(subject, asked, tool.name)]
    return [_thinking(subject, alias, f"other ({asked})") for alias in strong or [_NOBODY]]


def _thinking(subject: str, strong: str, move: str) -> str:
    return f"subject: {subject}; strong: {subject} ({strong}); {subject}; {move}"


def true_moves(trajectories: Sequence[Trajectory]) -> float:
    """Compute the share of first turns whose thinking is a true account of their call: how well a policy reads.

    It is true when subject, names and strength are right and the call is the one that was thought of.
    """
    return sum(map(_is_true_move, trajectories)) / max(1, len(trajectories))


def _is_true_move(trajectory: Trajectory) -> bool:
    task, tools = trajectory.task, trajectory.task.tools or ()
    messages = [turn.completion.message for turn in trajectory.turns[:1]]
    calls = [call for message in messages for call in message.tool_calls]
    if len(calls) != 1 or calls[0].name not in {t.name for t in tools}:
        return False
    return messages[0].reasoning in explanations(task.kind, calls[0], tools)


def is_strong(expert: Expert, subject: str) -> bool:
    """Whether an expert's description calls it strong in a subject."""
    return f"{subject} ({expert.alias})" in expert.strengths


def echoes(vocabulary: int, seed: int) -> Iterator[Sample]:
    """Make rows of random tokens, each followed by itself, without end; the second halves are learned.

    Args:
        vocabulary: ids run from 0 to this, exclusive.
    """
    luck = Random(f"{seed}:echo")
    number = 0
    while True:
        half = luck.sample(range(vocabulary), luck.randint(*_ECHO_TOK))
        # The first token of the second half cannot be known.
        mask = [False] * (len(half) + 1) + [True] * (len(half) - 1)
        yield Sample((*half, *half), tuple(mask), (0.0,) * (2 * len(half)), 1.0, number)
        number += 1


def drills(template: ChatTemplate, aliases: Sequence[str], subjects: Sequence[str], seed: int) -> Iterator[Sample]:
    """Make reading drills without end; each is a group of its own."""
    number = 0
    while True:
        level = min(1.0, number / SHORT_DRILLS)
        yield _drill(template, aliases, sorted(subjects), level, Random(f"{seed}:drill:{number}"), number)
        number += 1


def alternate(often: Iterator[Sample], seldom: Iterator[Sample]) -> Iterator[Sample]:
    """Mix three of one kind with one of another, each a group of its own: what was learned first is not forgotten."""
    for number, rare in enumerate(seldom):
        for place, sample in enumerate((*islice(often, 3), rare)):
            yield replace(sample, group=4 * number + place)


def _drill(
    template: ChatTemplate, aliases: Sequence[str], subjects: Sequence[str], level: float, luck: Random, number: int
) -> Sample:
    """Make one reading drill.

    Args:
        level: 0 for the shortest offers, 1 for offers like those of tasks.
    """
    fewest, most = (3, 5) if level == 1 else (2, 2 + round(3 * min(1, 2 * level)))
    names = luck.sample(sorted(aliases), min(luck.randint(fewest, most), len(aliases)))
    experts = [_expert(name, subjects, level, luck) for name in names]
    shows_prices = luck.random() < 2 * level - 1
    lines = (show_expert(e) if shows_prices else f"{e.alias}: {e.strengths}" for e in experts)
    parts = [("".join(f"{line}\n" for line in lines), False)]
    offer = (ToolSpec(_EXPERT_TOOL, "", {}, tuple(experts)),)
    for subject in _asked(subjects, experts, level, luck):
        parts += _move(subject, offer, luck)
    return _sample(template, parts, number)


def _asked(subjects: Sequence[str], experts: Sequence[Expert], level: float, luck: Random) -> list[str]:
    """Choose the subjects of a drill: all of them; in a short one those with a strong expert, and a few more."""
    known = [s for s in subjects if any(is_strong(e, s) for e in experts)]
    others = [s for s in subjects if s not in known]
    some = others if level == 1 else luck.sample(others, min(_UNKNOWN_SUBJECTS, len(others)))
    return luck.sample(known, len(known)) + some


def _move(subject: str, offer: Sequence[ToolSpec], luck: Random) -> list[tuple[str, bool]]:
    """Lay out a random move as (text, is it learned): the names in the thinking, and the name in the call."""
    experts = offer[0].experts
    strong = [e for e in experts if is_strong(e, subject)]
    alias = luck.choice(strong if strong and luck.random() < 0.7 else experts).alias
    thinking = luck.choice(explanations(subject, ToolCall("", _EXPERT_TOOL, {"expert": alias}), offer))
    before, after = render_call(_EXPERT_TOOL, {"expert": alias}).split(alias)
    words = re.split(r"( \(\w+\))", f"<think>{thinking}</think>{before}")  # every other one is a name
    return [*((text, n % 2 == 1) for n, text in enumerate(words)), (alias, True), (after, False)]


def _expert(alias: str, subjects: Sequence[str], level: float, luck: Random) -> Expert:
    price = Price(round(luck.choice((0.1, 0.2, 0.9, 1.25)) * luck.uniform(0.5, 2), 3), round(luck.uniform(0.05, 20), 3))
    seconds = float(luck.choice((4, 6, 7, 9, 11, 13, 15, 27, 96)))
    return Expert(alias, "", price, _strengths(alias, subjects, level, luck), seconds)


def _strengths(alias: str, subjects: Sequence[str], level: float, luck: Random) -> str:
    named = luck.sample(subjects, min(len(subjects), luck.randint(1, 1 + round(3 * min(1, 2 * level)))))
    cut = luck.randint(1, len(named)) if level >= 0.5 else len(named)
    strong, fair = [f"{name} ({alias})" for name in sorted(named[:cut])], sorted(named[cut:])
    return f"strong: {', '.join(strong)}" + (f"; fair: {', '.join(fair)}" if fair else "")


def _sample(template: ChatTemplate, parts: Sequence[tuple[str, bool]], number: int) -> Sample:
    ids: list[int] = []
    mask: list[bool] = []
    for text, learned in parts:
        encoded = template.encode(text)
        ids += encoded
        mask += [learned] * len(encoded)
    return Sample(tuple(ids), tuple(mask), (0.0,) * len(ids), 1.0, number)
