"""The losses: pure functions on tensors of sampled tokens, shape (N,).

Normalisation is one mean over all policy tokens of an optimizer step, so a long turn weighs by its tokens and the
split into micro-batches does not matter.

    ratio = exp(logp - logp_old)
    clip  = min(ratio A, clip(ratio, 1 - low, 1 + high) A); for A < 0 bounded below by dual A
    kl    = (logp - logp_ref)^2 / 2
    loss  = sum over tokens of (-clip + beta kl) / N

Source: arXiv 2511.21689, eq. 4 and sec. 3.3; clip-higher, dual clip and the KL form: the released recipe.
"""

from __future__ import annotations

import torch


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
