"""A language model in this process: conversations are sampled together, and come and go token by token.

A conversation holds a seat from its first turn to its last. In a `repeatable` run a token is drawn only while no seated
conversation is busy elsewhere, with a tool. So what is computed together is fixed by the tasks and the seed, not by how
fast a tool happened to be, and a resumed run repeats the same floating-point sums. Where tools take real time, nobody
waits for anybody: whoever is there is sampled.
In: messages. Out: completions with the ids that were drawn and their log-probabilities.
Source: project; tokens trained on are the tokens sampled (arXiv 2511.21689, sec. 3.2).
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from toolorchestra.chat.attention import install
from toolorchestra.chat.sampler import Draw, Row, Sampler
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.chat.transcript import Prompt, Transcript
from toolorchestra.errors import ContextFullError, ModelError
from toolorchestra.pricing import Price, Usage, bill
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Message, Tokens, ToolSpec


@dataclass(eq=False)
class _Conversation:
    """What is kept between turns: the ids so far, and the sampler's row that has read them."""

    transcript: Transcript
    row: Row = field(default_factory=Row)
    request: _Request | None = None


@dataclass(eq=False)
class _Request:
    """A turn that is asked for; `seed` orders those that come together."""

    conversation: _Conversation
    seed: int
    draw: Draw
    reply: asyncio.Future[Draw]


class LocalModel:
    """A `ChatModel` over a Hugging Face causal language model.

    Args:
        model: a `transformers` causal LM in evaluation mode.
        template: its chat template.
        name: what reports call it.
        price: charged for its own tokens; None when unknown.
        latency_s_per_tok: seconds charged per sampled token (a virtual clock, so that runs can be repeated).
        context_tok: most tokens of a conversation; defaults to the model's own limit.
        repeatable: draw only while every seated conversation waits for this model.
    """

    def __init__(
        self,
        model: Any,
        template: ChatTemplate,
        name: str,
        price: Price | None = None,
        latency_s_per_tok: float = 0.0,
        context_tok: int | None = None,
        repeatable: bool = True,
    ) -> None:
        install(model)
        self.model = model
        self.template = template
        self.name = name
        self.version = 0
        self._price = price
        self._latency_s_per_tok = latency_s_per_tok
        self._context_tok = context_tok or int(model.config.max_position_embeddings)
        self._repeatable = repeatable
        self._sampler = Sampler(model, template.end_ids)
        self._seated: dict[str, _Conversation] = {}
        self._waiting: list[_Request] = []
        self._drawing: list[_Request] = []
        self._sampling: asyncio.Task[None] | None = None

    def seat(self, conversation: str) -> _Seat:
        """Take a seat for a conversation; while it is held, batches wait for this conversation to ask."""
        return _Seat(self, conversation)

    def count_tok(self, text: str) -> int:
        """Count the tokens of a text."""
        return self.template.count_tok(text)

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Sample the next turn.

        Raises:
            ContextFullError: no room is left for it.
        """
        seated = self._seated.get(sampling.conversation)
        conversation = seated or _Conversation(Transcript(self.template))
        kept = conversation.transcript
        prompt = kept.prompt(messages, tools)
        room = self._context_tok - len(prompt.new_ids) - (0 if prompt.fresh else len(kept.ids))
        if room < 1:
            raise ContextFullError(f"{self.name}: the conversation fills its context of {self._context_tok} tokens")
        limited = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        try:
            draw = await self._request(conversation, prompt, limited)
        finally:
            if seated is None:
                self._sampler.leave(conversation.row)
        message, warnings = self.template.decode_turn(draw.ids)
        kept.end(message, draw.ids)
        usage = self._usage(len(kept.ids), prompt, draw)
        tokens = Tokens(tuple(prompt.new_ids), tuple(draw.ids), tuple(draw.logprobs), prompt.fresh)
        reason = "stop" if draw.ended else "length"
        return Completion(message, reason, usage, self.name, self.version, tokens, prompt.warnings + warnings)

    async def _request(self, conversation: _Conversation, prompt: Prompt, sampling: Sampling) -> Draw:
        """Ask for a turn, and wait for it."""
        kept = conversation.transcript
        unread = [] if prompt.fresh else kept.ids[-1:]  # what was drawn last was never read
        if prompt.fresh:
            self._sampler.leave(conversation.row)
        kept.begin(prompt)
        draw = Draw(
            [*unread, *prompt.new_ids],
            sampling.temperature,
            sampling.top_p,
            sampling.max_tokens,
            _uniforms(kept, len(prompt.new_ids), sampling),
        )
        request = _Request(conversation, sampling.seed, draw, asyncio.get_running_loop().create_future())
        conversation.request = request
        self._waiting.append(request)
        self._wake()
        try:
            return await request.reply
        finally:
            conversation.request = None
            for requests in (self._waiting, self._drawing):
                if request in requests:  # it was cancelled
                    requests.remove(request)
                    self._sampler.leave(conversation.row)

    def _usage(self, context_tok: int, prompt: Prompt, draw: Draw) -> Usage:
        input_tok = context_tok - len(draw.ids)
        latency_s = len(draw.ids) * self._latency_s_per_tok
        return bill(self._price, input_tok, len(draw.ids), input_tok - len(prompt.new_ids), latency_s)

    def _leave(self, conversation: _Conversation) -> None:
        self._sampler.leave(conversation.row)
        self._wake()

    def _wake(self) -> None:
        """Go on sampling, if it is time."""
        if self._is_time() and (self._sampling is None or self._sampling.done()):
            self._sampling = asyncio.get_running_loop().create_task(self._sample())

    def _is_time(self) -> bool:
        if not self._waiting and not self._drawing:
            return False
        return not self._repeatable or all(c.request is not None for c in self._seated.values())

    async def _sample(self) -> None:
        """Draw tokens for as long as it is time; others come to run between two tokens."""
        while self._is_time():
            self._draw_token()
            await asyncio.sleep(0)

    def _draw_token(self) -> None:
        """Draw a token for everybody, and hand out the turns that are done."""
        coming, self._waiting = sorted(self._waiting, key=lambda r: r.seed), []
        self._drawing += coming
        try:
            for request in coming:
                self._sampler.join(request.conversation.row, request.draw)
            self._sampler.step()
        except Exception as error:  # everybody who waits must hear of it: torch reports lack of memory in many ways
            for request in self._drawing:
                self._sampler.leave(request.conversation.row)
                _resolve(request.reply, ModelError(f"{self.name}: sampling failed: {error}"))
            self._drawing = []
        for request in [r for r in self._drawing if r.draw.done]:
            self._drawing.remove(request)
            _resolve(request.reply, request.draw)


class _Seat:
    """Taken when made, so that siblings that start later are already counted."""

    def __init__(self, model: LocalModel, conversation: str) -> None:
        if conversation in model._seated:
            raise ModelError(f"conversation '{conversation}' already has a seat")
        self._model = model
        self._name = conversation
        model._seated[conversation] = _Conversation(Transcript(model.template))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._model._leave(self._model._seated.pop(self._name))


def _resolve(reply: asyncio.Future[Draw], result: Draw | Exception) -> None:
    if reply.done():  # its rollout was cancelled meanwhile
        return
    if isinstance(result, Exception):
        reply.set_exception(result)
    else:
        reply.set_result(result)


def _uniforms(kept: Transcript, new_tok: int, sampling: Sampling) -> np.ndarray:
    """Draw one uniform number a token, from the request's seed and its place in the conversation alone."""
    place = kept.given_up_tok + len(kept.ids) - new_tok
    entropy = [sampling.seed, sampling.attempt, place]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).random(sampling.max_tokens)


def set_threads(threads: int) -> None:
    """Fix how many CPU threads torch uses; sums depend on it, so a run keeps its number.

    Several threads would also add up the gradients of shared rows in the order in which they come; that is ruled out.
    Memory that is written next need not be filled before, a debugging aid that took 4 % of an update.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Tell the C library to keep freed memory: giving it back and faulting it in again took a third of an update."""
    if sys.platform != "linux":
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # names of mallopt's options in malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # absent from C libraries other than glibc
        mallopt(mmap_threshold, 32 * 2**20)
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 128 * 2**20)


def end_ids_of(settings: Any) -> frozenset[int]:
    """List the ids that end a turn by a model's own generation settings, of which there may be several."""
    ids = settings.eos_token_id
    return frozenset(() if ids is None else [ids] if isinstance(ids, int) else ids)
