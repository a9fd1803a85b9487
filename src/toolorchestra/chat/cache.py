"""The key-value cache of `transformers`, behind three functions: other rooms need not know its changing names.

In: models and tensors. Out: caches that are updated in place.
Source: project.
"""

from __future__ import annotations

from functools import cache as remember
from inspect import signature
from typing import Any

import torch


def new_cache(model: Any) -> Any:
    """Make an empty cache for a model."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def select_rows(cache: Any, rows: torch.Tensor) -> Any:
    """Make a cache of the given rows of another, in that order; gradients flow through."""
    from transformers import DynamicCache

    return DynamicCache([(layer.keys[rows], layer.values[rows]) for layer in cache.layers])


def forward(module: Any, cache: Any, **inputs: Any) -> Any:
    """Call a model (or its decoder) so that it reads from the cache and appends to it."""
    return module(**inputs, **{_argument(type(module)): cache}, use_cache=True)


@remember
def _argument(kind: type) -> str:
    """Name the argument that takes the cache: newer releases of `transformers` renamed it."""
    return "cache" if "cache" in signature(kind.forward).parameters else "past_key_values"  # type: ignore[attr-defined]
