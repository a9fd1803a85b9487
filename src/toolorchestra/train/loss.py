"""The losses: functions on tensors of sampled tokens, shape (N,), and the log-probabilities that they are made of.

Normalisation is one mean over all policy tokens of an optimizer step, so a long turn weighs by its tokens and the
split into micro-batches does not matter.

    ratio = exp(logp - logp_old)
    clip  = min(ratio A, clip(ratio, 1 - low, 1 + high) A); for A < 0 bounded below by dual A
    kl    = (logp - logp_ref)^2 / 2
    loss  = sum over tokens of (-clip + beta kl) / N

Source: arXiv 2511.21689, eq. 4 and sec. 3.3; clip-higher, dual clip and the KL form: the released recipe.
"""

from __future__ import annotations

from typing import Any

import torch

_ROWS = 64
"""Logits are worked on so many rows at a time, which stay in the processor's cache between two passes."""


def picked_logprobs(logits_PV: torch.Tensor, places_N: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    """Compute log softmax(logits)[places, targets], shape (N,), in float32; the memory of the logits is used up.

    The backward pass writes the gradient of the logits over the logits: with a vocabulary of 50,000 they are larger
    than all else in a step.
    """
    return _Picked.apply(logits_PV, places_N, targets_N)  # type: ignore[return-value]


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_PV: torch.Tensor, places_N: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        lse_P = torch.cat([torch.logsumexp(rows.float(), dim=-1) for rows in logits_PV.split(_ROWS)])
        ctx.logits_PV = logits_PV.detach()
        ctx.save_for_backward(lse_P, places_N, targets_N)
        return logits_PV[places_N, targets_N].float() - lse_P[places_N]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        lse_P, places_N, targets_N = ctx.saved_tensors
        total_P = torch.zeros_like(lse_P).index_add_(0, places_N, grads[0])
        for rows, lse, total in zip(*(t.split(_ROWS) for t in (ctx.logits_PV, lse_P, total_P)), strict=True):
            rows.copy_(torch.sub(rows, lse[:, None]).exp_().mul_(-total[:, None]))
        grad_PV = ctx.logits_PV.index_put_((places_N, targets_N), grads[0].to(ctx.logits_PV.dtype), accumulate=True)
        return grad_PV, None, None


def grpo_terms(
    logprobs_N: torch.Tensor,
    old_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """Compute each token's clipped surrogate loss (to be minimised), before normalisation.

    Args:
        dual_clip: bounds the loss of a token with a negative advantage at `dual_clip * |advantage|`; None for none.
    """
    ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    gain_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    if dual_clip is not None:
        gain_N = torch.where(advantages_N < 0, torch.maximum(gain_N, dual_clip * advantages_N), gain_N)
    return -gain_N


def kl_terms(logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
    """Compute each token's distance from the start model, half the squared log-ratio."""
    return 0.5 * (logprobs_N - reference_logprobs_N) ** 2
