"""Samples to tensors, so that nothing is computed twice: a group's common prefix stands once in its row.

    row of a group      prefix | rest of sample 1 | rest of sample 2 | …
    position ids        0..p-1 | p, p+1, …        | p, p+1, …        | …
    attention           causal within prefix + own rest; rests do not see one another

The result equals the padded computation of each sample alone (tests/test_pack.py).
In: samples of one batch. Out: batches of rows with a block mask, and where each sampled token is predicted.
Source: project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from toolorchestra.types import Sample


@dataclass(frozen=True, slots=True)
class Pack:
    """One group in one row of `T` tokens, of which `N` are sampled ones.

    Attributes:
        ids_T: token ids.
        positions_T: position ids.
        segments_T: 0 for the prefix, else the number of the sample, from 1.
        predictors_N: index in the row whose output predicts each sampled token.
        targets_N: the sampled ids.
        logprobs_N: the sampler's log-probabilities.
        advantages_N: each token's advantage.
    """

    ids_T: torch.Tensor
    positions_T: torch.Tensor
    segments_T: torch.Tensor
    predictors_N: torch.Tensor
    targets_N: torch.Tensor
    logprobs_N: torch.Tensor
    advantages_N: torch.Tensor


def pack_groups(samples: Sequence[Sample]) -> list[Pack]:
    """Pack the samples, one row a group."""
    ordered = sorted(samples, key=lambda s: s.group)
    return [_pack(list(group)) for _, group in groupby(ordered, key=lambda s: s.group)]


def _pack(group: list[Sample]) -> Pack:
    shared = _common_prefix(group)
    ids = list(group[0].token_ids_T[:shared])
    positions, segments = list(range(shared)), [0] * shared
    predictors: list[int] = []
    targets: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    for number, sample in enumerate(group, 1):
        start = len(ids)
        ids += sample.token_ids_T[shared:]
        positions += range(shared, len(sample.token_ids_T))
        segments += [number] * (len(sample.token_ids_T) - shared)
        for t in range(shared, len(sample.token_ids_T)):
            if sample.mask_T[t]:
                predictors.append(shared - 1 if t == shared else start + t - shared - 1)
                targets.append(sample.token_ids_T[t])
                logprobs.append(sample.logprobs_T[t])
                advantages.append(sample.advantage)
    return Pack(
        torch.tensor(ids),
        torch.tensor(positions),
        torch.tensor(segments),
        torch.tensor(predictors, dtype=torch.long),
        torch.tensor(targets, dtype=torch.long),
        torch.tensor(logprobs),
        torch.tensor(advantages),
    )


def _common_prefix(group: Sequence[Sample]) -> int:
    """Length of the prefix that all share and that holds no sampled token."""
    first = group[0]
    shared = first.mask_T.index(True)
    for sample in group[1:]:
        limit = min(shared, sample.mask_T.index(True))
        same = (a == b for a, b in zip(sample.token_ids_T[:limit], first.token_ids_T[:limit], strict=True))
        shared = next((i for i, equal in enumerate(same) if not equal), limit)
    return shared


@dataclass(frozen=True, slots=True)
class PackBatch:
    """Rows of several groups, padded to the longest: ids and positions (B, T), mask (B, 1, T, T) to add to scores."""

    ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    mask_B1TT: torch.Tensor
    rows_N: torch.Tensor
    predictors_N: torch.Tensor
    targets_N: torch.Tensor
    logprobs_N: torch.Tensor
    advantages_N: torch.Tensor


def batch_packs(packs: Sequence[Pack], dtype: torch.dtype = torch.float32) -> PackBatch:
    """Stack packs; padding sees itself alone, so that no score row is empty."""
    width = max(len(p.ids_T) for p in packs)
    ids = torch.zeros(len(packs), width, dtype=torch.long)
    positions = torch.zeros(len(packs), width, dtype=torch.long)
    segments = torch.full((len(packs), width), -1, dtype=torch.long)
    for b, pack in enumerate(packs):
        ids[b, : len(pack.ids_T)] = pack.ids_T
        positions[b, : len(pack.ids_T)] = pack.positions_T
        segments[b, : len(pack.ids_T)] = pack.segments_T
    rows = torch.cat([torch.full_like(p.predictors_N, b) for b, p in enumerate(packs)])
    return PackBatch(
        ids,
        positions,
        _mask(segments, dtype),
        rows,
        torch.cat([p.predictors_N for p in packs]),
        torch.cat([p.targets_N for p in packs]),
        torch.cat([p.logprobs_N for p in packs]),
        torch.cat([p.advantages_N for p in packs]),
    )


def _mask(segments_BT: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    width = segments_BT.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    query, key = segments_BT[:, :, None], segments_BT[:, None, :]
    seen = causal & ((key == query) | (key == 0))
    mask = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype)
    return mask.masked_fill_(seen, 0.0)[:, None]


def token_logprobs(model: torch.nn.Module, batch: PackBatch) -> torch.Tensor:
    """Compute the log-probability of every sampled token, shape (N,); logits are made for those tokens alone."""
    hidden_BTD = model.base_model(  # type: ignore[operator]
        input_ids=batch.ids_BT, attention_mask=batch.mask_B1TT, position_ids=batch.positions_BT, use_cache=False
    ).last_hidden_state
    hidden_ND = hidden_BTD[batch.rows_N, batch.predictors_N]
    logits_NV = model.get_output_embeddings()(hidden_ND).float()  # type: ignore[operator]
    picked_N = logits_NV.gather(1, batch.targets_N[:, None]).squeeze(1)
    return picked_N - torch.logsumexp(logits_NV, dim=-1)
