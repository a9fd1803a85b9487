"""The key-value cache of `transformers`, behind a few functions: other rooms need not know its changing names.

In: models and tensors. Out: caches that are updated in place.
Source: project.
"""

from __future__ import annotations

from functools import cache as remember
from inspect import signature
from typing import Any, cast

import torch


def new_cache(model: Any) -> Any:
    """Make an empty cache for a model."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def select_rows(cache: Any, rows: torch.Tensor, room_tok: int = 0) -> Any:
    """Make a cache of the given rows of another, in that order.

    Args:
        room_tok: 0 for a cache through which gradients flow; more for one to sample with, that has room for so many
            tokens: appending one then writes it, where it would otherwise copy all that went before.
    """
    from transformers import DynamicCache

    pairs = [(layer.keys[rows], layer.values[rows]) for layer in cache.layers]
    selected = DynamicCache(pairs)
    if room_tok:
        selected.layers = [_roomy_layer()(*pair, room_tok) for pair in pairs]
    return selected


def take_over(cache: Any, part: Any, rows: torch.Tensor) -> None:
    """Append to a cache what a selection of its rows has read since; other rows get zeros, for the caller to mask."""
    for layer, longer in zip(cache.layers, part.layers, strict=True):
        held = layer.keys.shape[-2]
        blocks = []
        for own, new in ((layer.keys, longer.keys[..., held:, :]), (layer.values, longer.values[..., held:, :])):
            block = own.new_zeros(own.shape[0], *new.shape[1:])
            block[rows] = new
            blocks.append(block)
        layer.update(*blocks)


@remember
def _roomy_layer() -> Any:
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):
        """A layer that holds its keys and values in buffers longer than they are."""

        def __init__(self, keys: torch.Tensor, values: torch.Tensor, room_tok: int) -> None:
            super().__init__()
            self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
            self._room_tok = room_tok
            self._hold(keys, values)

        def _hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
            length = keys.shape[-2]
            self._buffers = [t.new_empty(*t.shape[:-2], length + self._room_tok, t.shape[-1]) for t in (keys, values)]
            self._write(slice(0, length), keys, values)

        def _write(self, place: slice, *states: torch.Tensor) -> None:
            for buffer, new in zip(self._buffers, states, strict=True):
                buffer[..., place, :] = new
            self.keys, self.values = (buffer[..., : place.stop, :] for buffer in self._buffers)

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
            keys, values = cast("torch.Tensor", self.keys), cast("torch.Tensor", self.values)
            held, length = keys.shape[-2], keys.shape[-2] + key_states.shape[-2]
            if length > self._buffers[0].shape[-2]:
                self._room_tok = max(self._room_tok, key_states.shape[-2])
                self._hold(keys, values)
            self._write(slice(held, length), key_states, value_states)
            return self.keys, self.values

    return RoomyLayer


def forward(module: Any, cache: Any, **inputs: Any) -> Any:
    """Call a model (or its decoder) so that it reads from the cache and appends to it."""
    return module(**inputs, **{_argument(type(module)): cache}, use_cache=True)


@remember
def _argument(kind: type) -> str:
    """Name the argument that takes the cache: newer releases of `transformers` renamed it."""
    return "cache" if "cache" in signature(kind.forward).parameters else "past_key_values"  # type: ignore[attr-defined]
