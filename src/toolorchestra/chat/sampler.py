"""The decode loop: a batch of conversations, one cache, one token each per step.

Rows are continued from a cache that an earlier batch returned, or start fresh; equal fresh prompts are computed once.
Blocks of different lengths are padded on the left and the padding is masked, so a cache is never packed anew. Turns
differ in length: once half of the rows are done, the others go on in a cache of their own and then give back what they
added.
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

from toolorchestra.chat.cache import forward, new_cache, select_rows, take_over

_ROOM_TOK = 64
"""A cache grows by so many tokens at a time."""


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
    """What was drawn for one row; `ended` when its last id is one that ends turns, `done` then or at the limit."""

    ids: list[int]
    logprobs: list[float]
    ended: bool = False
    done: bool = False


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
    room_tok = min(_ROOM_TOK, max(r.max_tokens for r in rows))
    if cache is None:
        logits_BV, cache = _read_fresh(model, rows, room_tok)
    else:
        cache = _select(cache, [r.row for r in rows], room_tok + max(len(r.new_ids) for r in rows))
        logits_BV = _read(model, cache, [r.new_ids for r in rows], [r.past_tok for r in rows])
    draws = [Draw([], []) for _ in rows]
    _decode(model, cache, logits_BV, rows, draws, end_ids)
    return draws, cache


def _decode(
    model: Any,
    cache: Cache,
    logits_BV: torch.Tensor,
    rows: Sequence[Row],
    draws: Sequence[Draw],
    end_ids: Collection[int],
    step: int = 0,
) -> None:
    """Draw until every row is done. Rows that are done ride along, masked, while they are fewer than half."""
    lengths_B = torch.tensor([r.past_tok + len(r.new_ids) for r in rows])
    going = list(range(len(rows)))
    while True:
        ids_B, logprobs_B = _choose(logits_BV, rows, step)
        for i in going:
            _record(draws[i], rows[i], int(ids_B[i]), float(logprobs_B[i]), end_ids)
        going = [i for i in going if not draws[i].done]
        if 2 * len(going) <= len(rows):
            break
        active_B1 = torch.zeros(len(rows), 1, dtype=torch.bool)
        active_B1[going] = True
        # A row's last id is read with its next turn.
        logits_BV = _forward(model, cache, ids_B[:, None], active_B1, (lengths_B + step)[:, None])
        step += 1
    if going:
        part = _select(cache, going, _ROOM_TOK)
        real_B1 = torch.ones(len(going), 1, dtype=torch.bool)
        logits_BV = _forward(model, part, ids_B[going, None], real_B1, (lengths_B[going] + step)[:, None])
        _decode(model, part, logits_BV, [rows[i] for i in going], [draws[i] for i in going], end_ids, step + 1)
        _take_over(cache, part, going)


def _record(draw: Draw, row: Row, drawn: int, logprob: float, end_ids: Collection[int]) -> None:
    draw.ids.append(drawn)
    draw.logprobs.append(logprob)
    draw.ended = drawn in end_ids
    draw.done = draw.ended or len(draw.ids) == row.max_tokens


def _read_fresh(model: Any, rows: Sequence[Row], room_tok: int) -> tuple[torch.Tensor, Cache]:
    prompts = list(dict.fromkeys(tuple(r.new_ids) for r in rows))
    cache = Cache(new_cache(model), torch.zeros(len(prompts), 0, dtype=torch.bool))
    logits_UV = _read(model, cache, prompts, [0] * len(prompts))
    order = {prompt: i for i, prompt in enumerate(prompts)}
    where = [order[tuple(r.new_ids)] for r in rows]
    return logits_UV[where], _select(cache, where, room_tok)


def _select(cache: Cache, where: Sequence[int], room_tok: int) -> Cache:
    rows = torch.tensor(where)
    return Cache(select_rows(cache.past, rows, room_tok), cache.mask_BT[rows])


def _take_over(cache: Cache, part: Cache, where: Sequence[int]) -> None:
    """Append what a part of the rows has read by itself; the others have nothing there."""
    new_BT = part.mask_BT[:, cache.mask_BT.shape[1] :]
    take_over(cache.past, part.past, torch.tensor(where))
    block_BT = torch.zeros(cache.mask_BT.shape[0], new_BT.shape[1], dtype=torch.bool)
    block_BT[where] = new_BT
    cache.mask_BT = torch.cat([cache.mask_BT, block_BT], dim=1)


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
