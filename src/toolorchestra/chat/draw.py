"""Drawing tokens: logits to ids, and the log-probability of each at temperature 1.

An id is drawn by inverting the cumulative distribution at the row's own uniform number, so that what a conversation
draws depends on nobody else.
In: logits (B, V). Out: ids (B,) and log-probabilities (B,).
Source: project.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_BLOCK = 256
"""Sums are made by blocks of so many ids: running ones over a large vocabulary, in doubles, would cost a layer."""


def draw_ids(
    logits_BV: torch.Tensor, temperatures: Sequence[float], top_ps: Sequence[float], uniforms: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one id a row.

    Args:
        temperatures: 0 takes the likeliest id.
        top_ps: only the fewest ids with at least this probability can be drawn; 1 keeps all.
        uniforms: in [0, 1).
    """
    logits_BV = logits_BV.float()
    likeliest_B = logits_BV.argmax(dim=-1)
    temperature_B = torch.tensor(temperatures)
    ids_B = likeliest_B
    if any(temperatures):
        scaled = logits_BV if set(temperatures) == {1.0} else logits_BV / temperature_B.clamp(min=1e-6)[:, None]
        probs_BV = torch.softmax(scaled, dim=-1)
        if any(p < 1 for p in top_ps):
            probs_BV = _nucleus(probs_BV, torch.tensor(top_ps, dtype=torch.double))
        ids_B = torch.where(temperature_B > 0, _invert(probs_BV, uniforms), likeliest_B)
    return ids_B, logits_BV.gather(1, ids_B[:, None]).squeeze(1) - logits_BV.logsumexp(dim=-1)


def _invert(weights_BV: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """Find the id in whose share of the total each uniform number falls: first its block, then its place there."""
    count, width = weights_BV.shape
    if width % _BLOCK:
        weights_BV = torch.nn.functional.pad(weights_BV, (0, _BLOCK - width % _BLOCK))
    blocks = weights_BV.view(count, -1, _BLOCK)
    ends_BK = blocks.sum(dim=-1, dtype=torch.double).cumsum(dim=-1)
    point_B1 = torch.tensor(uniforms, dtype=torch.double)[:, None] * ends_BK[:, -1:]
    at_B1 = torch.searchsorted(ends_BK, point_B1, right=True).clamp(max=ends_BK.shape[1] - 1)
    before_B1 = torch.where(at_B1 > 0, ends_BK.gather(1, (at_B1 - 1).clamp(min=0)), 0.0)
    block_BW = blocks[torch.arange(count), at_B1[:, 0]].double()
    within_B1 = torch.searchsorted(block_BW.cumsum(dim=-1), point_B1 - before_B1, right=True)
    # Rounding may point behind the block's last weight; the last id that has one is meant.
    last_B1 = (_BLOCK - 1 - (block_BW > 0).flip(1).to(torch.uint8).argmax(dim=1))[:, None]
    return (at_B1 * _BLOCK + torch.minimum(within_B1, last_B1)).squeeze(1)


def _nucleus(probs_BV: torch.Tensor, top_p_B: torch.Tensor) -> torch.Tensor:
    ordered, where = probs_BV.double().sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p_B[:, None], 0.0)
    return torch.zeros_like(probs_BV).scatter(1, where, ordered.to(probs_BV.dtype))
