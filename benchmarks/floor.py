"""The least that one update of one group can cost: its matrix products, at the speed that products reach here.

Each token of the shared prompt and of the rests passes once through the layers, forward (2 FLOP a weight) and backward
(4); only sampled tokens pass through the output layer; a token attends to what stands before it in its own rollout.
In: a model's config, the sizes of a group. Out: FLOP; FLOP a second of a matrix product of such sizes.
Source: project; 6 FLOP a weight and token as in arXiv 2001.08361, sec. 2.1.
"""

from __future__ import annotations

import time
from typing import Any


def least_flop(config: Any, prompt_tok: int, rest_tok: int, sampled_tok: int, rollouts: int) -> float:
    """Count the FLOP of one step on a group.

    Args:
        config: of a Llama-like model.
        prompt_tok: tokens that the rollouts share.
        rest_tok: tokens of one rollout after them.
        sampled_tok: how many of these were sampled.
        rollouts: in the group.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    shared = config.num_key_value_heads / config.num_attention_heads
    weights = layers * (width * width * (2 + 2 * shared) + 3 * width * config.intermediate_size)
    pairs = prompt_tok**2 / 2 + rollouts * rest_tok * (prompt_tok + rest_tok / 2)
    through_layers = 6 * weights * (prompt_tok + rollouts * rest_tok)
    through_head = 6 * width * config.vocab_size * rollouts * sampled_tok
    attention = 3 * 4 * width * layers * pairs
    return through_layers + through_head + attention


def product_flop_s(rows: int, width: int, columns: int, threads: int, tries: int = 7) -> float:
    """Measure the FLOP a second of a float32 matrix product; the best of some tries, since machines are shared."""
    import torch

    torch.set_num_threads(threads)
    left, right = torch.randn(rows, width), torch.randn(columns, width)
    best_s = float("inf")
    for _ in range(tries):
        began = time.perf_counter()
        torch.nn.functional.linear(left, right)
        best_s = min(best_s, time.perf_counter() - began)
    return 2 * rows * width * columns / best_s
