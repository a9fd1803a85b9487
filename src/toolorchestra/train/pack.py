"""Samples to tensors, so that a group's common prompt is computed once, forward and backward.

    prefixes  (U, P)  one row a group, padded on the left      read first; its keys and values are kept
    rests     (B, R)  one row a sample, padded on the right    read after its group's prefix

Gradients flow from the rests into the shared keys and values. Logits are made for sampled tokens alone. The result
equals that of each sample computed alone (tests/test_pack.py).
In: samples of one batch. Out: batches, and the log-probability of every sampled token.
Source: project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from toolorchestra.chat.cache import forward, new_cache, select_rows
from toolorchestra.types import Sample


@dataclass(frozen=True, slots=True)
class Pack:
    """The samples of one group, and how many of their first tokens are shared and not sampled."""

    samples: tuple[Sample, ...]
    shared: int

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(sum(s.mask_T) for s in self.samples)

    @property
    def rest(self) -> int:
        """Length of the longest rest."""
        return max(len(s.token_ids_T) for s in self.samples) - self.shared


def pack_groups(samples: Sequence[Sample]) -> list[Pack]:
    """Gather samples by group."""
    ordered = sorted(samples, key=lambda s: s.group)
    groups = [tuple(group) for _, group in groupby(ordered, key=lambda s: s.group)]
    return [Pack(group, _shared_prefix(group)) for group in groups]


def _shared_prefix(group: Sequence[Sample]) -> int:
    """Length of the prefix that all samples share and that holds no sampled token."""
    first = group[0]
    shared = first.mask_T.index(True)
    for sample in group[1:]:
        limit = min(shared, sample.mask_T.index(True))
        same = (a == b for a, b in zip(sample.token_ids_T[:limit], first.token_ids_T[:limit], strict=True))
        shared = next((i for i, equal in enumerate(same) if not equal), limit)
    return shared


@dataclass(frozen=True, slots=True)
class PackBatch:
    """Several groups as tensors: U prefixes, B rests, N sampled tokens.

    Attributes:
        prefix_UP: ids of the prefixes; `prefix_mask_UP` is 1 on real ones.
        rest_BR: ids of the rests; `rest_mask_BR` is 1 on real ones.
        owner_B: each rest's prefix.
        rows_N: each sampled token's rest.
        places_N: its place in the rest.
        targets_N: its id.
        logprobs_N: its log-probability when it was sampled.
        advantages_N: its trajectory's advantage.
    """

    prefix_UP: torch.Tensor
    prefix_mask_UP: torch.Tensor
    rest_BR: torch.Tensor
    rest_mask_BR: torch.Tensor
    owner_B: torch.Tensor
    rows_N: torch.Tensor
    places_N: torch.Tensor
    targets_N: torch.Tensor
    logprobs_N: torch.Tensor
    advantages_N: torch.Tensor


def batch_packs(packs: Sequence[Pack]) -> PackBatch:
    """Stack groups into tensors."""
    prefix_UP, prefix_mask_UP = _pad([p.samples[0].token_ids_T[: p.shared] for p in packs], left=True)
    rests = [(u, p.shared, s) for u, p in enumerate(packs) for s in p.samples]
    rest_BR, rest_mask_BR = _pad([s.token_ids_T[shared:] for _, shared, s in rests], left=False)
    sampled = [
        (b, t - shared, s.token_ids_T[t], s.logprobs_T[t], s.advantage)
        for b, (_, shared, s) in enumerate(rests)
        for t in range(shared, len(s.token_ids_T))
        if s.mask_T[t]
    ]
    rows, places, targets, logprobs, advantages = zip(*sampled, strict=True)
    return PackBatch(
        prefix_UP,
        prefix_mask_UP,
        rest_BR,
        rest_mask_BR,
        torch.tensor([u for u, _, _ in rests]),
        torch.tensor(rows),
        torch.tensor(places),
        torch.tensor(targets),
        torch.tensor(logprobs),
        torch.tensor(advantages),
    )


def _pad(rows: Sequence[Sequence[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = 1
    return ids, mask


def token_logprobs(model: Any, batch: PackBatch) -> torch.Tensor:
    """Compute the log-probability of every sampled token under a Hugging Face causal model, shape (N,)."""
    lengths_U = batch.prefix_mask_UP.sum(dim=1)
    cache = new_cache(model)
    prefix = forward(
        model.base_model,
        cache,
        input_ids=batch.prefix_UP,
        attention_mask=batch.prefix_mask_UP,
        position_ids=(batch.prefix_mask_UP.cumsum(dim=1) - 1).clamp(min=0),
    )
    owner_B = batch.owner_B
    rest = forward(
        model.base_model,
        select_rows(cache, owner_B),
        input_ids=batch.rest_BR,
        attention_mask=torch.cat([batch.prefix_mask_UP[owner_B], batch.rest_mask_BR], dim=1),
        position_ids=lengths_U[owner_B, None] + torch.arange(batch.rest_BR.shape[1]),
    )
    # The first token of a rest is predicted where its prefix ends, every other one where its predecessor stands.
    ends_B1D = prefix.last_hidden_state[owner_B, -1:]
    hidden_BRD = torch.cat([ends_B1D, rest.last_hidden_state[:, :-1]], dim=1)
    logits_NV = model.get_output_embeddings()(hidden_BRD[batch.rows_N, batch.places_N]).float()
    picked_N = logits_NV.gather(1, batch.targets_N[:, None]).squeeze(1)
    return picked_N - torch.logsumexp(logits_NV, dim=-1)
