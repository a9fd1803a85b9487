"""Keys and values of conversations: what a group begins with once, what each conversation adds in a slot of its own.

A slot is a row of one buffer a layer, so that all conversations that draw are attended to in one call. Those stand
first: they are moved there by changing places.
In: keys and values, layer by layer. Out: views of the buffers.
Source: project.
"""

from __future__ import annotations

import torch

_ROOM_TOK = 64
_GROWTH = 1.5


class Prefix:
    """The keys and values of a prompt that several conversations share, read-only once they are there.

    Attributes:
        ids: its tokens.
        layers: keys and values, (1, K, M, D) each, of every layer.
        logits_V: the model's logits at its end.
    """

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.logits_V: torch.Tensor | None = None

    def keep(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Take in a layer's keys and values, in order of layers."""
        assert layer == len(self.layers)
        self.layers.append((k.clone(), v.clone()))


class Slots:
    """Buffers of keys and values, (S, K, room, D) each, of every layer.

    Attributes:
        lengths: how many tokens each slot holds.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._forget()

    def _forget(self) -> None:
        self._slots = self._room_tok = 0
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self) -> int:
        """Open an empty slot after the others."""
        self.lengths.append(0)
        return len(self.lengths) - 1

    def drop_last(self) -> None:
        """Close the slot that stands last; without any slot no memory is held."""
        self.lengths.pop()
        if not self.lengths:
            self._forget()

    def reserve(self, tokens: int) -> None:
        """Make room for all slots, and for so many tokens in each."""
        if len(self.lengths) <= self._slots and tokens <= self._room_tok:
            return
        held, longest = self._slots, self._room_tok
        if len(self.lengths) > held:
            self._slots = max(len(self.lengths), int(held * _GROWTH))
        if tokens > longest:
            self._room_tok = max(tokens + _ROOM_TOK, int(longest * _GROWTH))
        for layer, pair in enumerate(self._layers):
            larger = tuple(self._buffer(t) for t in pair)
            for new, old in zip(larger, pair, strict=True):
                new[:held, :, :longest] = old
            self._layers[layer] = (larger[0], larger[1])

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros: what is masked must still be a number.
        return like.new_zeros(self._slots, like.shape[1], self._room_tok, like.shape[3])

    def layer(self, layer: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give a layer's buffers; they are made at first use, shaped as `like` (1, K, N, D)."""
        if layer == len(self._layers):
            self._layers.append((self._buffer(like), self._buffer(like)))
        return self._layers[layer]

    def swap(self, a: int, b: int) -> None:
        """Let two slots change places."""
        longest = max(self.lengths[a], self.lengths[b])
        for t in (t for pair in self._layers for t in pair):
            held = t[a, :, :longest].clone()
            t[a, :, :longest] = t[b, :, :longest]
            t[b, :, :longest] = held
        self.lengths[a], self.lengths[b] = self.lengths[b], self.lengths[a]
