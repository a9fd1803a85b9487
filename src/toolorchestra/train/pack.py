"""Samples to packed tokens, so that what rollouts of a group have in common is computed once, forward and backward.

    prompt    what all samples of the group begin with, before the place where the first sampled token is predicted
    branches  what follows, as trees: samples that go on alike for a while share that stretch too

A micro-batch reads the prompts of its groups, for their keys and values alone, then their branches, in chunks that
bound the memory: the gradients of the prompts' keys and values are gathered over the chunks and go back through the
prompts once. Nothing is padded; logits are made where a sampled token is predicted, and nowhere else. The result equals
that of each sample computed alone (tests/test_pack.py).
In: samples of one batch. Out: micro-batches, and the log-probability of every sampled token.
Source: project.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import torch

from toolorchestra.chat.attention import Block, Kind, attend_blocks, run_packed
from toolorchestra.train.loss import picked_logprobs
from toolorchestra.types import Sample

_LEAST_SHARED_TOK = 16
"""Samples share a stretch within a branch when it is so long; a shorter one costs less than its bookkeeping."""


@dataclass(slots=True)
class Branch:
    """A tree of samples below their prompt, laid out in a row.

    Attributes:
        ids: of all stretches, one after the other; a stretch stands before those that continue it.
        depths: each id's place in its sample, counted from the end of the prompt.
        blocks: who looks at whom within the row.
        predicted_at: for each sampled token, where in the row it is predicted.
        targets: its id.
        logprobs: its log-probability when it was sampled.
        advantages: its trajectory's advantage.
    """

    ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    predicted_at: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pack:
    """One group: its prompt, and what follows."""

    prompt: tuple[int, ...]
    branches: tuple[Branch, ...]

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(len(b.targets) for b in self.branches)

    @property
    def tokens(self) -> int:
        """Number of tokens to compute."""
        return len(self.prompt) + sum(len(b.ids) for b in self.branches)


def pack_groups(samples: Sequence[Sample]) -> list[Pack]:
    """Gather samples by group. Each must hold a sampled token, and another before it."""
    ordered = sorted(samples, key=lambda s: s.group)
    return [_pack(tuple(group)) for _, group in groupby(ordered, key=lambda s: s.group)]


def _pack(group: Sequence[Sample]) -> Pack:
    prompt_tok = _common(group, 0, min(s.mask_T.index(True) for s in group) - 1)
    branches = [_branch(part, prompt_tok) for part in _parts(group, prompt_tok)]
    return Pack(tuple(group[0].token_ids_T[:prompt_tok]), tuple(branches))


def _stop(sample: Sample) -> int:
    """Where a sample's last token stands that is sampled: it is predicted, but what it leads to is not."""
    return len(sample.mask_T) - 1 - sample.mask_T[::-1].index(True)


def _common(samples: Sequence[Sample], start: int, stop: int) -> int:
    """Find how far samples agree from `start` on; returns where they part, at most `stop`."""
    first = samples[0].token_ids_T
    for place in range(start, stop):
        if any(s.token_ids_T[place] != first[place] for s in samples[1:]):
            return place
    return stop


def _parts(samples: Sequence[Sample], start: int) -> list[list[Sample]]:
    """Gather the samples that agree for long enough after `start`; the others stand alone."""
    parts: list[list[Sample]] = []
    for sample in samples:
        stop = start + _LEAST_SHARED_TOK
        for part in parts:
            if min(_stop(sample), _stop(part[0])) >= stop and _common([sample, part[0]], start, stop) == stop:
                part.append(sample)
                break
        else:
            parts.append([sample])
    return parts


def _branch(samples: Sequence[Sample], prompt_tok: int) -> Branch:
    branch = Branch()
    _grow(branch, samples, prompt_tok, prompt_tok, {id(s): [] for s in samples})
    return branch


def _grow(branch: Branch, samples: Sequence[Sample], start: int, prompt_tok: int, places: dict[int, list[int]]) -> None:
    """Lay out the stretch that samples share from `start` on, then what follows it.

    Args:
        places: where each sample's tokens after the prompt stand in the row, so far.
    """
    stop = _common(samples, start, min(_stop(s) for s in samples))
    first, after = len(branch.ids), len(branch.ids) + stop - start
    branch.ids += samples[0].token_ids_T[start:stop]
    branch.depths += range(start - prompt_tok, stop - prompt_tok)
    if stop > start:
        branch.blocks.append(Block((first, after), (first, after), causal=True))
    for sample in samples:
        places[id(sample)] += range(first, after)
        if _stop(sample) == stop:
            _target(branch, sample, prompt_tok, places[id(sample)])
    for part in _parts([s for s in samples if _stop(s) > stop], stop):
        _grow(branch, part, stop, prompt_tok, places)
    if stop > start and len(branch.ids) > after:
        branch.blocks.append(Block((after, len(branch.ids)), (first, after)))


def _target(branch: Branch, sample: Sample, prompt_tok: int, places: Sequence[int]) -> None:
    """Note a sample's sampled tokens, once all of it is laid out."""
    for t, sampled in enumerate(sample.mask_T):
        if sampled:
            branch.predicted_at.append(places[t - prompt_tok - 1])
            branch.targets.append(sample.token_ids_T[t])
            branch.logprobs.append(sample.logprobs_T[t])
            branch.advantages.append(sample.advantage)


# -- micro-batches ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """Branches of some groups as tensors: R packed tokens, N sampled ones.

    Attributes:
        ids_R: the packed ids; `positions_R` their places in their conversations.
        blocks: who looks at whom, at the prompts' tokens too.
        predicted_at_N: where each sampled token is predicted.
        targets_N: its id.
        logprobs_N: its log-probability when it was sampled.
        advantages_N: its trajectory's advantage.
    """

    ids_R: torch.Tensor
    positions_R: torch.Tensor
    blocks: tuple[Block, ...]
    predicted_at_N: torch.Tensor
    targets_N: torch.Tensor
    logprobs_N: torch.Tensor
    advantages_N: torch.Tensor


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The prompts of some groups, and their branches in chunks."""

    prompts: tuple[tuple[int, ...], ...]
    chunks: tuple[Chunk, ...]


def micro_batches(packs: Sequence[Pack], most_tok: int) -> list[MicroBatch]:
    """Split groups into micro-batches of at most `most_tok` tokens at once.

    A group that is larger is a micro-batch of its own, whose branches come in chunks; a branch is never split.
    """
    parts: list[list[Pack]] = []
    for pack in packs:
        if parts and sum(p.tokens for p in parts[-1]) + pack.tokens <= most_tok:
            parts[-1].append(pack)
        else:
            parts.append([pack])
    return [_micro_batch(part, most_tok) for part in parts]


def _micro_batch(packs: Sequence[Pack], most_tok: int) -> MicroBatch:
    prompts = tuple(p.prompt for p in packs)
    room_tok = most_tok - sum(map(len, prompts))
    chunks: list[list[tuple[int, Branch]]] = [[]]
    for owner, pack in enumerate(packs):
        for branch in pack.branches:
            if chunks[-1] and sum(len(b.ids) for _, b in chunks[-1]) + len(branch.ids) > room_tok:
                chunks.append([])
            chunks[-1].append((owner, branch))
    return MicroBatch(prompts, tuple(_chunk(prompts, chunk) for chunk in chunks))


def _chunk(prompts: Sequence[Sequence[int]], owned: Sequence[tuple[int, Branch]]) -> Chunk:
    ids: list[int] = []
    positions: list[int] = []
    blocks: list[Block] = []
    predicted_at: list[int] = []
    for owner, branch in owned:
        start = len(ids)
        ids += branch.ids
        positions += [len(prompts[owner]) + depth for depth in branch.depths]
        blocks += [_moved(b, start) for b in branch.blocks]
        predicted_at += [start + place for place in branch.predicted_at]
    branches = [b for _, b in owned]
    return Chunk(
        torch.tensor(ids),
        torch.tensor(positions),
        (*_at_prompts(prompts, owned), *blocks),
        torch.tensor(predicted_at),
        torch.tensor(_all(b.targets for b in branches)),
        torch.tensor(_all(b.logprobs for b in branches)),
        torch.tensor(_all(b.advantages for b in branches)),
    )


def _moved(b: Block, by: int) -> Block:
    return Block((b.queries[0] + by, b.queries[1] + by), (b.keys[0] + by, b.keys[1] + by), b.causal)


def _at_prompts(prompts: Sequence[Sequence[int]], owned: Sequence[tuple[int, Branch]]) -> list[Block]:
    """Let all branches of a group look at their prompt, as one block."""
    stretches = _stretches(prompts)
    blocks, start = [], 0
    for owner, branches in groupby(owned, key=lambda one: one[0]):
        stop = start + sum(len(b.ids) for _, b in branches)
        if prompts[owner]:
            blocks.append(Block((start, stop), stretches[owner], earlier=True))
        start = stop
    return blocks


def _stretches(rows: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Where each row starts and stops when they stand one after the other."""
    stretches, start = [], 0
    for row in rows:
        stretches.append((start, start + len(row)))
        start += len(row)
    return stretches


def _all(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


# -- computing --------------------------------------------------------------------------------------------------------


class Prompts:
    """The computed prompts of a micro-batch: the keys and values of every layer, of M tokens.

    Args:
        model: a causal model with our attention (`attention.install`).
        prompts: their ids.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        self._layers = model.config.get_text_config().num_hidden_layers
        self._blocks = [Block(s, s, causal=True) for s in _stretches(prompts) if s[1] > s[0]]
        self.positions_M = torch.tensor(_all(list(range(len(p))) for p in prompts))
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        with suppress(_AllKept):
            if self._blocks:
                run_packed(model.base_model, torch.tensor(_all(list(p) for p in prompts)), self.positions_M, self)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: Kind) -> torch.Tensor:
        """See `attention.Layout`."""
        self.kept.append((k, v))
        if len(self.kept) == self._layers:
            raise _AllKept
        return attend_blocks(q, k, v, None, self._blocks, kind, (self.positions_M, self.positions_M))

    def cut(self) -> None:
        """Let chunks gather their gradients here, for `backward` to send on."""
        self._computed = self.kept
        self.kept = [(k.detach().requires_grad_(), v.detach().requires_grad_()) for k, v in self.kept]

    def backward(self) -> None:
        """Send the gathered gradients back through the prompts."""
        computed, gathered = (_all(list(pair) for pair in pairs) for pairs in (self._computed, self.kept))
        pairs = [(t, g.grad) for t, g in zip(computed, gathered, strict=True) if t.requires_grad]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])


class _AllKept(Exception):
    """Ends the reading of prompts in the last layer, of which only keys and values are asked."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """The layout of a chunk."""

    prompts: Prompts
    chunk: Chunk

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: Kind) -> torch.Tensor:
        earlier = self.prompts.kept[layer] if self.prompts.kept else None
        positions = (self.chunk.positions_R, self.prompts.positions_M)
        return attend_blocks(q, k, v, earlier, self.chunk.blocks, kind, positions)


def token_logprobs(model: Any, prompts: Prompts, chunk: Chunk) -> torch.Tensor:
    """Compute the log-probability of every sampled token of a chunk, shape (N,)."""
    places, where_N = chunk.predicted_at_N.unique(return_inverse=True)  # samples that go on alike share their logits
    read = run_packed(model, chunk.ids_R, chunk.positions_R, _Rest(prompts, chunk), logits_to_keep=places)
    return picked_logprobs(read.logits[0], where_N, chunk.targets_N)
