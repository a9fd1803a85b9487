"""The decode loop: a batch of conversations, one cache, one token each per step.

Rows are continued from a cache that an earlier batch returned, or start fresh; equal fresh prompts are computed once.
Blocks of different lengths are padded on the left and the padding is masked, so a cache is never packed anew.
In: rows of ids with their sampling parameters and uniform random numbers. Out: drawn ids, their log-probabilities at
temperature 1, and the cache to continue from.
Source: project.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from toolorchestra.chat.cache import forward, new_cache, select_rows


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation's part in a batch.

    Attributes:
        new_ids: ids to read before drawing; a continued row begins with the id that it drew last.
        row: its row in the cache that is continued.
        past_tok: how many ids that row of the cache holds.
        temperature: 0 draws the likeliest id.
        top_p: nucleus mass; 1 keeps all ids.
        max_tokens: most ids to draw.
        uniforms: one number in [0, 1) for each id that may be drawn.
    """

    new_ids: Sequence[int]
    row: int
    past_tok: int
    temperature: float
    top_p: float
    max_tokens: int
    uniforms: np.ndarray


@dataclass(slots=True)
class Draw:
    """What was drawn for one row; `ended` when its last id is one that ends turns."""

    ids: list[int]
    logprobs: list[float]
    ended: bool = False


@dataclass(slots=True)
class Cache:
    """Keys and values of a batch with the mask of real positions, shape (rows, length)."""

    past: Any
    mask_BT: torch.Tensor


@torch.inference_mode()
def sample_batch(
    model: Any, rows: Sequence[Row], cache: Cache | None, end_ids: Collection[int]
) -> tuple[list[Draw], Cache]:
    """Draw one turn for every row; returns the draws and the cache that holds all rows, in order."""
    if cache is None:
        logits_BV, cache = _read_fresh(model, rows)
    else:
        cache = _select(cache, [r.row for r in rows])
        logits_BV = _read(model, cache, [r.new_ids for r in rows], [r.past_tok for r in rows])
    lengths = torch.tensor([r.past_tok + len(r.new_ids) for r in rows])
    draws = [Draw([], []) for _ in rows]
    active = torch.ones(len(rows), dtype=torch.bool)
    for step in range(max(r.max_tokens for r in rows)):
        ids_B, logprobs_B = _choose(logits_BV, rows, step)
        _record(draws, rows, active, ids_B, logprobs_B, end_ids)
        if not active.any():
            break
        # Rows that are done ride along, masked; a row's last id is read with its next turn.
        logits_BV = _forward(model, cache, ids_B[:, None], active[:, None], (lengths + step)[:, None])
    return draws, cache


def _record(
    draws: list[Draw],
    rows: Sequence[Row],
    active: torch.Tensor,
    ids_B: torch.Tensor,
    logprobs_B: torch.Tensor,
    end_ids: Collection[int],
) -> None:
    for i, draw in enumerate(draws):
        if not active[i]:
            continue
        draw.ids.append(int(ids_B[i]))
        draw.logprobs.append(float(logprobs_B[i]))
        draw.ended = draw.ids[-1] in end_ids
        if draw.ended or len(draw.ids) == rows[i].max_tokens:
            active[i] = False


def _read_fresh(model: Any, rows: Sequence[Row]) -> tuple[torch.Tensor, Cache]:
    prompts = list(dict.fromkeys(tuple(r.new_ids) for r in rows))
    cache = Cache(new_cache(model), torch.zeros(len(prompts), 0, dtype=torch.bool))
    logits_UV = _read(model, cache, prompts, [0] * len(prompts))
    order = {prompt: i for i, prompt in enumerate(prompts)}
    where = [order[tuple(r.new_ids)] for r in rows]
    return logits_UV[where], _select(cache, where)


def _select(cache: Cache, where: Sequence[int]) -> Cache:
    rows = torch.tensor(where)
    return Cache(select_rows(cache.past, rows), cache.mask_BT[rows])


def _read(model: Any, cache: Cache, blocks: Sequence[Sequence[int]], past_tok: Sequence[int]) -> torch.Tensor:
    width = max(len(b) for b in blocks)
    ids = torch.zeros(len(blocks), width, dtype=torch.long)
    real = torch.zeros(len(blocks), width, dtype=torch.bool)
    positions = torch.zeros(len(blocks), width, dtype=torch.long)
    for i, block in enumerate(blocks):
        ids[i, width - len(block) :] = torch.tensor(block)
        real[i, width - len(block) :] = True
        positions[i, width - len(block) :] = torch.arange(past_tok[i], past_tok[i] + len(block))
    return _forward(model, cache, ids, real, positions)


def _forward(
    model: Any, cache: Cache, ids_BT: torch.Tensor, real_BT: torch.Tensor, positions_BT: torch.Tensor
) -> torch.Tensor:
    cache.mask_BT = torch.cat([cache.mask_BT, real_BT], dim=1)
    output = forward(
        model,
        cache.past,
        input_ids=ids_BT,
        attention_mask=cache.mask_BT.long(),
        position_ids=positions_BT,
        logits_to_keep=1,
    )
    return output.logits[:, -1].float()


def _choose(logits_BV: torch.Tensor, rows: Sequence[Row], step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one id a row by inverting its cumulative distribution at the row's own uniform number."""
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    uniform = [float(r.uniforms[min(step, len(r.uniforms) - 1)]) for r in rows]
    temperature = torch.tensor([r.temperature for r in rows])
    scaled = logits_BV / temperature.clamp(min=1e-6)[:, None]
    probs_BV = torch.softmax(scaled, dim=-1).double()
    if any(r.top_p < 1 for r in rows):
        probs_BV = _nucleus(probs_BV, torch.tensor([r.top_p for r in rows], dtype=torch.double))
    total = probs_BV.cumsum(dim=-1)
    point = torch.tensor(uniform, dtype=torch.double)[:, None] * total[:, -1:]
    drawn = torch.searchsorted(total, point, right=True).squeeze(1).clamp(max=logits_BV.shape[-1] - 1)
    ids_B = torch.where(temperature > 0, drawn, logits_BV.argmax(dim=-1))
    return ids_B, logprobs_BV.gather(1, ids_B[:, None]).squeeze(1)


def _nucleus(probs_BV: torch.Tensor, top_p_B: torch.Tensor) -> torch.Tensor:
    ordered, where = probs_BV.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p_B[:, None], 0.0)
    return torch.zeros_like(probs_BV).scatter(1, where, ordered)
