"""Continuous batching: each step reads what conversations bring and draws one token for each of them.

A step is one row of packed tokens (`attention`): the last token of every conversation that is drawing, and all new
tokens of those that come in. Nothing is padded, a turn that ends makes room at once, and one that comes back after its
tools have answered joins in at the next step. A prompt with which several conversations begin is read once and kept
once. Logits are made only where a token is drawn.
In: rows with ids to read. Out: the ids that were drawn, with their log-probabilities.
Source: project; continuous batching as in Orca (OSDI 2022), paged attention's sharing of prompts (arXiv 2309.06180).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from toolorchestra.chat.attention import Kind, block, merge, run_packed
from toolorchestra.chat.cache import Prefix, Slots
from toolorchestra.chat.draw import draw_ids


@dataclass(slots=True)
class Draw:
    """One turn to draw, and what was drawn.

    Attributes:
        new_ids: ids to read first; in a conversation that goes on, they begin with the id that was drawn last.
        temperature: 0 draws the likeliest id.
        top_p: nucleus mass; 1 keeps all ids.
        max_tokens: most ids to draw.
        uniforms: one number in [0, 1) for each id that may be drawn.
        ids: what was drawn.
        logprobs: log-probability of each at temperature 1.
        ended: the last id is one that ends turns.
    """

    new_ids: Sequence[int]
    temperature: float
    top_p: float
    max_tokens: int
    uniforms: np.ndarray
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def done(self) -> bool:
        """Whether the turn is complete, or at its limit."""
        return self.ended or len(self.ids) == self.max_tokens


@dataclass(eq=False, slots=True)
class Row:
    """One conversation: what of it was read, and the turn that is being drawn.

    Attributes:
        prefix: what it has in common with others.
        slot: where its own tokens are kept; -1 before it has any.
        draw: None between two turns.
    """

    prefix: Prefix | None = None
    slot: int = -1
    draw: Draw | None = None

    @property
    def turn(self) -> Draw:
        """The turn that is being drawn."""
        assert self.draw is not None
        return self.draw


class Sampler:
    """Draws turns for many conversations at once.

    Args:
        model: a causal model with our attention (`attention.install`).
        end_ids: ids that end a turn.
        step_tok: most tokens that are read at once; longer readings come in parts, which bounds the memory.
    """

    def __init__(self, model: Any, end_ids: Collection[int], step_tok: int = 4096) -> None:
        self._model = model
        self._step_tok = step_tok
        self._end_ids = end_ids
        self._slots = Slots()
        self._rows: list[Row] = []
        """By slot. Those that draw stand first."""
        self._drawing = 0
        self._reading: list[Row] = []
        self._prefixes: WeakValueDictionary[tuple[int, ...], Prefix] = WeakValueDictionary()

    def join(self, row: Row, draw: Draw) -> None:
        """Let a row draw a turn, from the next step on. A row whose conversation begins must be a new one."""
        row.draw = draw
        self._reading.append(row)

    @torch.inference_mode()
    def leave(self, row: Row) -> None:
        """Forget a row, whatever it was about."""
        if row in self._reading:
            self._reading.remove(row)
        row.draw = row.prefix = None
        if row.slot >= 0:
            self._rest(row)
            self._swap(row.slot, len(self._rows) - 1)
            self._rows.pop()
            self._slots.drop_last()
            row.slot = -1

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Draw one token for every row that has joined; returns the rows whose turns are done."""
        reading, self._reading = self._reading, []
        self._share(reading)
        drawing, done = self._rows[: self._drawing], []
        for part in _parts(reading, len(drawing), self._step_tok):
            rows = [*drawing, *part]
            self._draw(rows, self._read(drawing, part))
            for row in part:
                self._enter(row)
            done += [row for row in rows if row.turn.done]
            drawing = []
        for row in done:
            self._rest(row)
        return done

    # -- rows ----------------------------------------------------------------------------------------------------

    def _share(self, rows: Sequence[Row]) -> None:
        """Give rows that begin alike one prefix."""
        begin = Counter(tuple(r.turn.new_ids) for r in rows if r.slot < 0)
        for row in (r for r in rows if r.slot < 0):
            ids = tuple(row.turn.new_ids)
            if begin[ids] > 1 or ids in self._prefixes:
                row.prefix = self._prefixes.setdefault(ids, Prefix(ids))
                row.turn.new_ids = ()
            row.slot = self._slots.add()
            self._rows.append(row)

    def _enter(self, row: Row) -> None:
        """Move a row among those that draw."""
        self._swap(row.slot, self._drawing)
        self._drawing += 1

    def _rest(self, row: Row) -> None:
        """Move a row out of those that draw; its tokens stay."""
        if row.slot < self._drawing:
            self._drawing -= 1
            self._swap(row.slot, self._drawing)

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self._slots.swap(a, b)
            self._rows[a], self._rows[b] = self._rows[b], self._rows[a]
            self._rows[a].slot, self._rows[b].slot = a, b

    # -- one forward pass ----------------------------------------------------------------------------------------

    def _read(self, drawing: Sequence[Row], reading: Sequence[Row]) -> torch.Tensor:
        """Read one token of rows that draw, all new ones of the others; returns the logits (B, V) to draw from."""
        prefixes = list(dict.fromkeys(r.prefix for r in reading if r.prefix and not r.prefix.layers))
        step = _Step(self._slots, drawing, [r for r in reading if r.turn.new_ids], prefixes)
        if step.segments:
            read = run_packed(self._model, step.ids_N, step.positions_N, step, logits_to_keep=step.ends)
            step.keep(read.logits[0])
        return torch.stack([step.logits_of(row) for row in (*drawing, *reading)])

    def _draw(self, rows: Sequence[Row], logits_BV: torch.Tensor) -> None:
        turns = [row.turn for row in rows]
        uniforms = [float(turn.uniforms[len(turn.ids)]) for turn in turns]
        ids_B, logprobs_B = draw_ids(logits_BV, [t.temperature for t in turns], [t.top_p for t in turns], uniforms)
        for turn, drawn, logprob in zip(turns, ids_B.tolist(), logprobs_B.tolist(), strict=True):
            turn.ids.append(drawn)
            turn.logprobs.append(logprob)
            turn.ended = drawn in self._end_ids


def _parts(reading: Sequence[Row], drawing: int, step_tok: int) -> list[list[Row]]:
    """Split readings so that each part, the first with the rows that draw, has a bounded number of tokens."""
    parts: list[list[Row]] = [[]]
    room_tok = step_tok - drawing
    begun: set[Prefix] = set()
    for row in reading:
        needed = len(row.turn.new_ids)
        if row.prefix and not row.prefix.layers and row.prefix not in begun:
            begun.add(row.prefix)
            needed += len(row.prefix.ids)
        if needed > room_tok and (parts[-1] or drawing):
            parts.append([])
            room_tok = step_tok
        parts[-1].append(row)
        room_tok -= needed
    return parts


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens that one conversation, or one prefix, reads: from start to stop in the packed row.

    Attributes:
        past_tok: how many of its own it has read before.
        prefix: what else it looks at.
    """

    owner: Row | Prefix
    start: int
    stop: int
    past_tok: int = 0
    prefix: Prefix | None = None

    @property
    def tokens(self) -> int:
        """How many it reads."""
        return self.stop - self.start


class _Step:
    """The layout of one step: a token of each row that draws, in order of slots, then rows that read, then prefixes.

    Attributes:
        segments: in the order of `ends`.
        ids_N: the packed ids; `positions_N` their places in their conversations.
        ends: where logits are made.
    """

    def __init__(
        self, slots: Slots, drawing: Sequence[Row], reading: Sequence[Row], prefixes: Sequence[Prefix]
    ) -> None:
        self.segments: list[_Segment] = []
        self._slots = slots
        self._drawing = len(drawing)
        ids: list[int] = []
        positions: list[int] = []

        def add(owner: Row | Prefix, new_ids: Sequence[int], past_tok: int, prefix: Prefix | None) -> None:
            start, first = len(ids), past_tok + (len(prefix.ids) if prefix else 0)
            ids.extend(new_ids)
            positions.extend(range(first, first + len(new_ids)))
            self.segments.append(_Segment(owner, start, len(ids), past_tok, prefix))

        for row in drawing:
            add(row, row.turn.ids[-1:], slots.lengths[row.slot], row.prefix)
        for row in reading:
            add(row, row.turn.new_ids, slots.lengths[row.slot], row.prefix)
        for prefix in prefixes:
            add(prefix, prefix.ids, 0, None)
        self.ids_N, self.positions_N = torch.tensor(ids), torch.tensor(positions)
        self.ends = torch.tensor([s.stop - 1 for s in self.segments])
        self._longest_tok = max(positions, default=0) + 1
        self._past_A = torch.tensor([s.past_tok for s in self.segments[: self._drawing]], dtype=torch.long)
        self._at_prefixes = self._gather()
        slots.reserve(max((s.past_tok + s.tokens for s in self.segments), default=0))

    def _gather(self) -> list[tuple[Prefix, torch.Tensor]]:
        """Find which tokens look at each prefix."""
        places: dict[Prefix, list[int]] = {}
        for s in self.segments:
            if s.prefix:
                places.setdefault(s.prefix, []).extend(range(s.start, s.stop))
        return [(prefix, torch.tensor(at)) for prefix, at in places.items()]

    def keep(self, logits_EV: torch.Tensor) -> None:
        """Take in what was read: the model's logits at the ends."""
        self._logits: dict[Row, torch.Tensor] = {}
        for s, logits_V in zip(self.segments, logits_EV, strict=True):
            if isinstance(s.owner, Prefix):
                s.owner.logits_V = logits_V.clone()
            else:
                self._slots.lengths[s.owner.slot] += s.tokens
                self._logits[s.owner] = logits_V

    def logits_of(self, row: Row) -> torch.Tensor:
        """Give the logits (V,) of a row: its own, or those of its prefix while it has read nothing else."""
        if row.turn.new_ids or row.turn.ids:
            return self._logits[row]
        assert row.prefix is not None and row.prefix.logits_V is not None
        return row.prefix.logits_V

    # -- attention -----------------------------------------------------------------------------------------------

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: Kind) -> torch.Tensor:
        """See `attention.Layout`."""
        kind = kind.over(self._longest_tok)
        own = self._slots.layer(layer, k)
        self._write(own, k, v)
        out = q.new_empty(q.shape, dtype=torch.promote_types(q.dtype, torch.float32))
        lse = out.new_empty(out.shape[:-1])
        if self._drawing:
            self._attend_drawing(out, lse, q, own, kind)
        for s in self.segments[self._drawing :]:
            self._attend_reading(out, lse, q, k, v, own, kind, s)
            if isinstance(s.owner, Prefix):
                s.owner.keep(layer, k[:, :, s.start : s.stop], v[:, :, s.start : s.stop])
        for prefix, places in self._at_prefixes:
            self._attend_prefix(out, lse, q, kind, places, prefix.layers[layer])
        return out.to(q.dtype)

    def _write(self, own: tuple[torch.Tensor, torch.Tensor], k: torch.Tensor, v: torch.Tensor) -> None:
        """Put new keys and values behind those that the slots hold."""
        drawing = self._drawing
        for buffer, new in zip(own, (k[0], v[0]), strict=True):
            buffer[torch.arange(drawing), :, self._past_A] = new[:, :drawing].transpose(0, 1)
            for s in self.segments[drawing:]:
                if isinstance(s.owner, Row):
                    buffer[s.owner.slot, :, s.past_tok : s.past_tok + s.tokens] = new[:, s.start : s.stop]

    def _attend_drawing(
        self, out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, own: tuple[torch.Tensor, ...], kind: Kind
    ) -> None:
        """Let all rows that draw look at their own slots in one call."""
        drawing, longest = self._drawing, int(self._past_A.max()) + 1
        keys_M = torch.arange(longest)
        hidden_AM = keys_M > self._past_A[:, None]
        if kind.window_tok:
            hidden_AM |= keys_M <= self._past_A[:, None] - kind.window_tok
        k, v = (t[:drawing, :, :longest] for t in own)
        part, part_lse = block(
            q[0, :, :drawing].transpose(0, 1)[:, :, None], k, v, False, kind, hidden_AM[:, None, None]
        )
        out[0, :, :drawing], lse[0, :, :drawing] = part[:, :, 0].transpose(0, 1), part_lse[:, :, 0].T

    def _attend_reading(
        self,
        out: torch.Tensor,
        lse: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        own: tuple[torch.Tensor, ...],
        kind: Kind,
        s: _Segment,
    ) -> None:
        """Let a row or a prefix look at what it reads, and at what it has read before."""
        q, k, v = (t[:, :, s.start : s.stop] for t in (q, k, v))
        out, lse = out[:, :, s.start : s.stop], lse[:, :, s.start : s.stop]
        at_N = self.positions_N[s.start : s.stop]
        part, part_lse = block(q, k, v, True, kind, kind.hidden(at_N, at_N))
        out.copy_(part)
        lse.copy_(part_lse)
        if s.past_tok and isinstance(s.owner, Row):
            k, v = (t[s.owner.slot, :, : s.past_tok][None] for t in own)
            earlier_M = torch.arange(s.past_tok) + (len(s.prefix.ids) if s.prefix else 0)
            merge(out, lse, *block(q, k, v, False, kind, kind.hidden(at_N, earlier_M)))

    def _attend_prefix(
        self,
        out: torch.Tensor,
        lse: torch.Tensor,
        q: torch.Tensor,
        kind: Kind,
        places: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Let all tokens that share a prefix look at it in one call."""
        hidden = kind.hidden(self.positions_N[places], torch.arange(kept[0].shape[2]))
        sofar, sofar_lse = out[:, :, places], lse[:, :, places]
        merge(sofar, sofar_lse, *block(q[:, :, places], *kept, False, kind, hidden))
        out[:, :, places], lse[:, :, places] = sofar, sofar_lse
