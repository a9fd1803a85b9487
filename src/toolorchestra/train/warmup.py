"""Warm-up: teach a policy to read offers and the form of turns, by imitation.

The demonstrations are rollouts of a policy that plays random legal moves, so they show how to call, not what to call.
In: demonstration trajectories. Out: samples, and an engine that imitated them.
Source: project; the paper starts from a model that already knows the form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from toolorchestra.chat.template import ChatTemplate
from toolorchestra.configs import WarmupConfig
from toolorchestra.context import observation_messages
from toolorchestra.train.engine import TorchEngine
from toolorchestra.types import Message, Sample, Trajectory

OnStep = Callable[[int, int, Mapping[str, float]], None]
"""Hears how many steps are done, of how many, and the latest figures."""


def demonstration(
    trajectory: Trajectory, opening: Sequence[Message], template: ChatTemplate, observation_chars: int, group: int
) -> Sample:
    """Lay a trajectory out as the policy itself would have sampled it."""
    specs = trajectory.task.tools or ()
    ids = template.opening(opening, specs)
    mask = [False] * len(ids)
    for number, turn in enumerate(trajectory.turns):
        if number:
            seen = observation_messages(trajectory.turns[number - 1].observations, observation_chars)
            between = template.extension(seen, ended=True)
            ids += between
            mask += [False] * len(between)
        said = template.encode_turn(turn.completion.message)
        ids += said
        mask += [True] * len(said)
    return Sample(tuple(ids), tuple(mask), (0.0,) * len(ids), 1.0, group)


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
