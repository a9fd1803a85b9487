"""Warm-up: teach a policy to read offers and the form of turns, by imitation.

The demonstrations are rollouts of a policy that plays random legal moves, so they show how to call, not what to call.
In: demonstration trajectories. Out: samples, and an engine that imitated them.
Source: project; the paper starts from a model that already knows the form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from toolorchestra.chat.samples import samples_of
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.chat.transcript import Transcript
from toolorchestra.configs import RolloutConfig, WarmupConfig
from toolorchestra.context.shape import shown
from toolorchestra.train.engine import TorchEngine
from toolorchestra.types import Message, Sample, Tokens, Trajectory

OnStep = Callable[[int, int, Mapping[str, float]], None]
"""Hears how many steps are done, of how many, and the latest figures."""


def demonstration(
    trajectory: Trajectory, opening: Sequence[Message], template: ChatTemplate, limits: RolloutConfig, group: int
) -> list[Sample]:
    """Lay a trajectory out as the policy itself would have sampled it."""
    transcript, turns = Transcript(template), []
    for number, turn in enumerate(trajectory.turns):
        messages = shown(opening, trajectory.turns[:number], limits, template.count_tok)
        prompt = transcript.prompt(messages, trajectory.task.tools or ())
        said = template.encode_turn(turn.completion.message)
        transcript.begin(prompt)
        transcript.end(turn.completion.message, said)
        tokens = Tokens(tuple(prompt.new_ids), tuple(said), (0.0,) * len(said), prompt.fresh)
        turns.append(replace(turn, completion=replace(turn.completion, tokens=tokens)))
    return samples_of(replace(trajectory, turns=tuple(turns)), 1.0, group)


def drill(
    engine: TorchEngine,
    samples: Iterator[Sample],
    steps: int,
    config: WarmupConfig,
    on_step: OnStep = lambda *_: None,
) -> None:
    """Imitate drills that come without end."""
    for number in range(steps):
        figures = engine.imitate(list(islice(samples, config.drill_batch)), config.lr * ramp(number, steps))
        on_step(number + 1, steps, figures)


def warm_up(
    engine: TorchEngine,
    samples: Sequence[Sample],
    config: WarmupConfig,
    seed: int,
    on_step: OnStep = lambda *_: None,
) -> None:
    """Imitate the samples; a step takes `batch_tasks` groups, in an order fixed by the seed."""
    steps = list(_batches(samples, config, seed))
    for number, batch in enumerate(steps):
        figures = engine.imitate(batch, config.lr * ramp(number, len(steps)))
        on_step(number + 1, len(steps), figures)


def _batches(samples: Sequence[Sample], config: WarmupConfig, seed: int) -> Iterator[list[Sample]]:
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    for epoch in range(config.epochs):
        order = np.random.default_rng([seed, epoch, 1]).permutation(sorted(groups))
        for start in range(0, len(order), config.batch_tasks):
            yield [s for group in order[start : start + config.batch_tasks] for s in groups[int(group)]]


def ramp(step: int, steps: int, rise: float = 0.05, floor: float = 0.1) -> float:
    """Shape the learning rate: rise over the first steps, then fall along a cosine to `floor`."""
    rising = max(1, round(steps * rise))
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))
