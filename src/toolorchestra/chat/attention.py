"""Attention over packed tokens: one row of tokens of many conversations, no padding, common prefixes once.

A model's own attention is replaced by a call to a `Layout`, which knows who may look at whom. Layouts are made of
blocks: some queries look at some keys, at all of them or causally. A query that has several blocks gets the softmax
over all of their keys: each block's part is weighed by its logarithmic sum of exponentials.

    q (1, H, N, D)   k, v (1, K, M, D)   H heads share K key-value heads   lse (1, H, N)

In: a `transformers` model. Out: the same model, to be called with `run_packed`; without a layout it works as before.
Source: project; the weighing of blocks as in FlashAttention (arXiv 2205.14135, sec. 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from toolorchestra.errors import ModelError

_NAME = "toolorchestra_packed"
_current: ContextVar[Layout | None] = ContextVar("layout", default=None)
"""Of the call under way. Not every model passes unknown arguments down to its attention."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Kind:
    """How a layer attends: what scores are multiplied with, how far it looks back, how scores are capped."""

    scale: float
    window_tok: int = 0
    softcap: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Neither windowed nor capped."""
        return not self.window_tok and not self.softcap

    def over(self, tokens: int) -> Kind:
        """Give the kind that does the same in conversations of so many tokens: a larger window is none."""
        return replace(self, window_tok=0) if self.window_tok >= tokens else self

    def hidden(self, queries_N: torch.Tensor, keys_M: torch.Tensor) -> torch.Tensor | None:
        """Tell which keys lie before the window, (1, 1, N, M), given positions; None without a window."""
        if not self.window_tok:
            return None
        return (keys_M <= queries_N[:, None] - self.window_tok)[None, None]


class Layout(Protocol):
    """Knows what each packed token may look at."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: Kind) -> torch.Tensor:
        """Mix values for the queries of one layer; returns (1, H, N, D)."""
        ...


def install(model: Any) -> None:
    """Give a model the attention of this module.

    Raises:
        ModelError: not all of its layers mix tokens by an attention that can be replaced.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.config._attn_implementation == _NAME:
        return
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    before, trial = model.config._attn_implementation, _Trial()
    try:
        model.set_attn_implementation(_NAME)
        with torch.no_grad():
            run_packed(model.base_model, torch.tensor([0, 0]), torch.tensor([0, 1]), trial)
    except ValueError:  # its attention cannot be replaced
        pass
    if trial.layers != list(range(model.config.get_text_config().num_hidden_layers)):
        model.set_attn_implementation(before)
        raise ModelError(
            f"{type(model).__name__}: only models whose every layer has an ordinary, replaceable attention can be "
            "sampled and trained here, such as Llama, Qwen3, Mistral, Gemma or SmolLM"
        )


class _Trial:
    """Two tokens, causally; remembers which layers asked."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: Kind) -> torch.Tensor:
        self.layers.append(layer)
        return block(q, k, v, True, kind)[0]


def run_packed(module: Any, ids_N: torch.Tensor, positions_N: torch.Tensor, layout: Layout, **inputs: Any) -> Any:
    """Call a model, or its decoder, on one row of packed tokens."""
    no_mask = torch.empty(1, 1, 1, 1)  # four dimensions: taken as it is, where none would be inferred from positions
    before = _current.set(layout)
    try:
        return module(
            input_ids=ids_N[None], position_ids=positions_N[None], attention_mask=no_mask, use_cache=False, **inputs
        )
    finally:
        _current.reset(before)


def _attend(
    module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Stand in for a model's attention, by the signature that `transformers` asks of one."""
    layout = _current.get()
    if layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, q, k, v, attention_mask, scaling=scaling, **others)
    if others.get("s_aux") is not None:
        raise ModelError("models whose attention has sinks cannot be packed yet")
    kind = Kind(scaling or q.shape[-1] ** -0.5, sliding_window or 0, softcap or 0.0)
    return layout.attend(module.layer_idx, q, k, v, kind).transpose(1, 2), None


# -- one block --------------------------------------------------------------------------------------------------------


def block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, kind: Kind, hidden: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend within one block, without gradients.

    Args:
        q: (B, H, N, D).
        k: (B, K, M, D); `v` likewise.
        causal: query n sees keys up to n; N and M are then equal.
        hidden: True where a key is not to be seen, broadcast to (B, 1, N, M). In a plain kind every query sees one.

    Returns:
        (B, H, N, D) and the logarithmic sum of exponentials, (B, H, N).
    """
    shape, heads = q.shape, k.shape[1]
    if causal:
        q_, k_, v_ = q, _repeated(k, q), _repeated(v, q)
    else:  # queries of heads that share keys stand below each other
        q_, k_, v_ = q.reshape(q.shape[0], heads, -1, q.shape[-1]), k, v
        if hidden is not None and hidden.shape[2] > 1:
            hidden = hidden.repeat(1, 1, q.shape[1] // heads, 1)
    if q.device.type == "cpu" and kind.is_plain:
        bias = None if hidden is None else torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, -torch.inf)
        out, lse = _flash(q_, k_, v_, 0.0, causal, attn_mask=bias, scale=kind.scale)
    else:
        out, lse = _plain(q_, k_, v_, causal, kind, hidden)
    return out.reshape(shape), lse.reshape(shape[:-1])


def _repeated(k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Give every head its own keys (or values)."""
    repeat = q.shape[1] // k.shape[1]
    return k.repeat_interleave(repeat, 1) if repeat > 1 else k


def _plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, kind: Kind, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = capped(q @ k.transpose(-1, -2) * kind.scale, kind).float()
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
    return weights.to(v.dtype) @ v, lse


def capped(scores: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Bound scores smoothly, for models that do."""
    return kind.softcap * torch.tanh(scores / kind.softcap) if kind.softcap else scores


def merge(out: torch.Tensor, lse: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor) -> None:
    """Add what the same queries found in one more block to what they found before, in place."""
    total = torch.logaddexp(lse, more_lse)
    weight = (more_lse - total).exp_()[..., None]
    lse.copy_(total)
    out.lerp_(more.to(out.dtype), weight)


# -- many blocks, with gradients --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """Queries that look at keys: places of packed tokens, from start to stop.

    Attributes:
        earlier: the keys are among those that were computed before (`Earlier`), else among the queries' own row.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    causal: bool = False
    earlier: bool = False


def attend_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    earlier: tuple[torch.Tensor, torch.Tensor] | None,
    blocks: Sequence[Block],
    kind: Kind,
    positions: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Attend as blocks say; gradients flow into all tensors. Every query must have a block.

    Args:
        q: (1, H, N, D).
        k: (1, K, N, D), `v` likewise; `earlier` are keys and values (1, K, M, D) that stand before these.
        positions: of the tokens of the row, (N,), and of the earlier ones, (M,), in their conversations.
    """
    kind = kind.over(1 + max(int(p.max()) for p in positions if len(p)))
    if q.device.type == "cpu" and kind.is_plain:
        none = k.new_empty(0)
        return _Blocks.apply(q, k, v, *(earlier or (none, none)), tuple(blocks), kind)  # type: ignore[return-value]
    return _dense(q, k, v, earlier, blocks, kind, positions)


def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    earlier: tuple[torch.Tensor, torch.Tensor] | None,
    blocks: Sequence[Block],
    kind: Kind,
    positions: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Attend with one mask over all keys: right for every kind of layer and every device, in more memory."""
    own_N, earlier_M = positions
    before = 0
    if earlier is not None:
        before = earlier[0].shape[2]
        k, v = torch.cat([earlier[0], k], dim=2), torch.cat([earlier[1], v], dim=2)
    seen = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    for b in blocks:
        start, stop = (place if b.earlier else place + before for place in b.keys)
        part = torch.ones(b.queries[1] - b.queries[0], stop - start, dtype=torch.bool)
        seen[slice(*b.queries), start:stop] = part.tril() if b.causal else part
    if kind.window_tok:
        key_positions = torch.cat([earlier_M, own_N]) if before else own_N
        seen &= key_positions[None, :] > own_N[:, None] - kind.window_tok
    seen = seen.to(q.device)
    if not kind.softcap:
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=kind.scale, enable_gqa=True)
    scores = capped(q @ _repeated(k, q).transpose(-1, -2) * kind.scale, kind)
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf).float(), dim=-1).to(v.dtype)
    return weights @ _repeated(v, q)


class _Blocks(torch.autograd.Function):
    """Blocks on the CPU's flash kernel.

    Its backward pass computes a block's weights as exp(score - lse); given the lse over all blocks of a query, and the
    joined output, it yields this block's part of the gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        earlier_k: torch.Tensor,
        earlier_v: torch.Tensor,
        blocks: tuple[Block, ...],
        kind: Kind,
    ) -> torch.Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(q.shape, dtype=exact)
        lse = torch.full(q.shape[:-1], -torch.inf, dtype=exact)
        for b in blocks:
            queries, keys = slice(*b.queries), slice(*b.keys)
            from_k, from_v = (earlier_k, earlier_v) if b.earlier else (k, v)
            part = block(q[:, :, queries], from_k[:, :, keys], from_v[:, :, keys], b.causal, kind)
            merge(out[:, :, queries], lse[:, :, queries], *part)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, earlier_k, earlier_v, out, lse)
        ctx.blocks, ctx.kind = blocks, kind
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, k, v, earlier_k, earlier_v, out, lse = ctx.saved_tensors
        own, earlier = (k, v), (earlier_k, earlier_v)
        grad_q = torch.zeros_like(q)
        grad_own, grad_earlier = ([torch.zeros_like(t) for t in pair] for pair in (own, earlier))
        for b in ctx.blocks:
            queries, keys = slice(*b.queries), slice(*b.keys)
            k_, v_ = (t[:, :, keys] for t in (earlier if b.earlier else own))
            parts = (grads[0][:, :, queries], q[:, :, queries], k_, v_, out[:, :, queries], lse[:, :, queries])
            to_q, to_k, to_v = _block_backward(*parts, b.causal, ctx.kind)
            grad_q[:, :, queries] += to_q
            for target, grad in zip(grad_earlier if b.earlier else grad_own, (to_k, to_v), strict=True):
                target[:, :, keys] += grad
        return grad_q, *grad_own, *grad_earlier, None, None


def _block_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    kind: Kind,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = k.shape[1]
    repeat = q.shape[1] // heads
    if causal:
        to_q, to_k, to_v = _flash_backward(
            grad, q, _repeated(k, q), _repeated(v, q), out, lse, 0.0, True, scale=kind.scale
        )
        return to_q, *(t.unflatten(1, (heads, repeat)).sum(2) if repeat > 1 else t for t in (to_k, to_v))
    # Heads that share keys become a batch: the kernel works on batches and heads in parallel, and on nothing else.
    grad, q_, out, lse = (t[0].unflatten(0, (heads, repeat)).transpose(0, 1) for t in (grad, q, out, lse))
    k, v = (t.expand(repeat, -1, -1, -1) for t in (k, v))
    to_q, to_k, to_v = _flash_backward(grad, q_, k, v, out, lse, 0.0, False, scale=kind.scale)
    return to_q.transpose(0, 1).reshape(q.shape), to_k.sum(0, keepdim=True), to_v.sum(0, keepdim=True)
