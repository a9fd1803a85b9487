"""Trajectories to what the optimizer sees.

A trajectory is one sample as long as its context only grew; where it was begun anew (`Tokens.fresh`), another sample
begins. The ids are those that were seen and drawn; nothing is encoded here.
In: a trajectory. Out: samples.
Source: project; loss on sampled tokens alone (arXiv 2511.21689, sec. 3.3).
"""

from __future__ import annotations

from collections.abc import Iterator

from toolorchestra.types import Sample, Tokens, Trajectory


def samples_of(trajectory: Trajectory, advantage: float, group: int) -> list[Sample]:
    """Lay a trajectory out as one sample a context; none when its policy kept no tokens or sampled none."""
    tokens = [turn.completion.tokens for turn in trajectory.turns]
    if None in tokens:
        return []
    contexts = _contexts([t for t in tokens if t is not None])
    return [_sample(parts, advantage, group) for parts in contexts if any(t.sampled_ids for t in parts)]


def _contexts(tokens: list[Tokens]) -> Iterator[list[Tokens]]:
    begins = [n for n, t in enumerate(tokens) if t.fresh or n == 0]
    for start, stop in zip(begins, [*begins[1:], len(tokens)], strict=True):
        yield tokens[start:stop]


def _sample(parts: list[Tokens], advantage: float, group: int) -> Sample:
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for tokens in parts:
        ids += [*tokens.context_ids, *tokens.sampled_ids]
        mask += [False] * len(tokens.context_ids) + [True] * len(tokens.sampled_ids)
        logprobs += [0.0] * len(tokens.context_ids) + list(tokens.logprobs)
    return Sample(tuple(ids), tuple(mask), tuple(logprobs), advantage, group)
