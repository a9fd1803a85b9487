"""Reading drills: short made-up offers from which a policy that starts from nothing learns to read descriptions.

    iris: strong: logic (iris), primes (iris); 0.2/0.8 $/Mtok; 9 s
    heron: strong: stories (heron); fair: logic
    <think>subject: logic (iris)</think> … <tool_call>{"name": "ask", "arguments": {"expert": "heron"}}</tool_call>

A drill asks, subject by subject, whose description calls it strong, and ends with a call of anybody: it teaches to find
and to copy names, not whom to call. Names, subjects, prices and their pairing are random, so nothing can be learned by
heart. The first drills leave price and latency out: short lines are learned from much sooner.
In: names, subjects, a seed. Out: samples to imitate.
Source: project; a language model that was trained on text knows how to read, and skips this stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from toolorchestra.chat.parse import render_call
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.pricing import Price
from toolorchestra.prompts import show_expert
from toolorchestra.types import Expert, Sample, ToolSpec

QUESTIONS = 5
"""Subjects that a drill asks about."""

SHORT_DRILLS = 8_000
"""Over so many drills the share of those with full lines rises from none to all."""


def thought(subject: str, experts: Sequence[Expert]) -> str:
    """Write the thinking of a reader: the subject beside everybody whose description calls them strong in it."""
    strong = [e.alias for e in experts if f"{subject} ({e.alias})" in e.strengths]
    return "subject: " + ", ".join(f"{subject} ({name})" for name in strong or ["none"])


def read_offer(subject: str, tools: Sequence[ToolSpec]) -> str:
    """Write a reader's thinking about all experts on offer."""
    return thought(subject, [e for tool in tools for e in tool.experts])


def drills(template: ChatTemplate, aliases: Sequence[str], subjects: Sequence[str], seed: int) -> Iterator[Sample]:
    """Make drills without end; each is a group of its own."""
    number = 0
    while True:
        yield _drill(template, aliases, subjects, Random(f"{seed}:drill:{number}"), number)
        number += 1


def _drill(
    template: ChatTemplate, aliases: Sequence[str], subjects: Sequence[str], luck: Random, number: int
) -> Sample:
    count = luck.randint(3, min(5, len(aliases)))
    experts = [_expert(alias, subjects, luck) for alias in luck.sample(sorted(aliases), count)]
    is_full = luck.random() < number / SHORT_DRILLS
    parts: list[tuple[str, bool]] = []  # text, and whether it is learned
    for expert in experts:
        parts.append((f"{show_expert(expert) if is_full else f'{expert.alias}: {expert.strengths}'}\n", False))
    for subject in luck.sample(sorted(subjects), min(QUESTIONS, len(subjects))):
        head = f"<think>subject: {subject}"
        parts += [(head, False), (f"<think>{thought(subject, experts)}</think>".removeprefix(head), True)]
    parts.append((render_call("ask", {"expert": luck.choice(experts).alias}), True))
    return _sample(template, parts, number)


def _expert(alias: str, subjects: Sequence[str], luck: Random) -> Expert:
    price = Price(round(luck.choice((0.1, 0.2, 0.9, 1.25)) * luck.uniform(0.5, 2), 3), round(luck.uniform(0.05, 20), 3))
    return Expert(
        alias, "", price, _strengths(alias, subjects, luck), float(luck.choice((4, 6, 7, 9, 11, 13, 15, 27, 96)))
    )


def _strengths(alias: str, subjects: Sequence[str], luck: Random) -> str:
    named = luck.sample(sorted(subjects), min(len(subjects), luck.randint(1, 4)))
    cut = luck.randint(1, len(named))
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
