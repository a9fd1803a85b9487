"""A language model in this process: batched sampling with a key-value cache kept across the turns of a conversation.

Conversations that hold a seat are sampled together: a batch starts as soon as every seated conversation waits for
this model. So the make-up of every batch is fixed by the tasks and the seed, not by how fast a tool happened to be, and
a resumed run repeats the same floating-point sums. Prompts that are equal are computed once.
In: messages. Out: completions with the ids that were drawn and their log-probabilities.
Source: project; tokens trained on are the tokens sampled (arXiv 2511.21689, sec. 3.2).
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from toolorchestra.chat.attention import install
from toolorchestra.chat.sampler import Cache, Draw, Row, sample_batch
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.chat.transcript import Prompt, Transcript
from toolorchestra.errors import ContextFullError, ModelError
from toolorchestra.pricing import Price, Usage, bill
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Message, Tokens, ToolSpec


@dataclass
class _Conversation:
    """What is kept between turns: the ids so far, and the cache's row that holds them."""

    transcript: Transcript
    cache: Cache | None = None
    row: int = 0

    def begin(self, prompt: Prompt) -> None:
        if prompt.fresh:
            self.cache, self.row = None, 0
        self.transcript.begin(prompt)


@dataclass
class _Request:
    conversation: _Conversation
    prompt: Prompt
    sampling: Sampling
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
    """

    def __init__(
        self,
        model: Any,
        template: ChatTemplate,
        name: str,
        price: Price | None = None,
        latency_s_per_tok: float = 0.0,
        context_tok: int | None = None,
    ) -> None:
        install(model)
        self.model = model
        self.template = template
        self.name = name
        self.version = 0
        self._price = price
        self._latency_s_per_tok = latency_s_per_tok
        self._context_tok = context_tok or int(model.config.max_position_embeddings)
        self._seated: dict[str, _Conversation] = {}
        self._waiting: list[_Request] = []

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
        conversation = self._seated.get(sampling.conversation) or _Conversation(Transcript(self.template))
        kept = conversation.transcript
        prompt = kept.prompt(messages, tools)
        room = self._context_tok - len(prompt.new_ids) - (0 if prompt.fresh else len(kept.ids))
        if room < 1:
            raise ContextFullError(f"{self.name}: the conversation fills its context of {self._context_tok} tokens")
        limited = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        conversation.begin(prompt)
        request = _Request(conversation, prompt, limited, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._run_when_all_wait()
        try:
            draw = await request.reply
        finally:
            if request in self._waiting:  # cancelled before it was sampled
                self._waiting.remove(request)
        message, warnings = self.template.decode_turn(draw.ids)
        kept.end(message, draw.ids)
        usage = self._usage(len(kept.ids), prompt, draw)
        tokens = Tokens(tuple(prompt.new_ids), tuple(draw.ids), tuple(draw.logprobs), prompt.fresh)
        reason = "stop" if draw.ended else "length"
        return Completion(message, reason, usage, self.name, self.version, tokens, prompt.warnings + warnings)

    def _usage(self, context_tok: int, prompt: Prompt, draw: Draw) -> Usage:
        input_tok = context_tok - len(draw.ids)
        latency_s = len(draw.ids) * self._latency_s_per_tok
        return bill(self._price, input_tok, len(draw.ids), input_tok - len(prompt.new_ids), latency_s)

    def _run_when_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < len(self._seated):
            return
        requests, self._waiting = sorted(self._waiting, key=lambda r: r.sampling.seed), []
        for part in _by_cache(requests):
            self._sample(part)

    def _sample(self, requests: list[_Request]) -> None:
        """Sample requests that share a cache, or that have none, and hand out the draws."""
        rows = [_row(r) for r in requests]
        try:
            draws, cache = sample_batch(self.model, rows, requests[0].conversation.cache, self.template.end_ids)
        except (RuntimeError, MemoryError) as error:  # torch reports memory and shape trouble as RuntimeError
            for request in requests:
                _resolve(request.reply, ModelError(f"{self.name}: sampling failed: {error}"))
            return
        for row, (request, draw) in enumerate(zip(requests, draws, strict=True)):
            request.conversation.cache, request.conversation.row = cache, row
            _resolve(request.reply, draw)


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
        del self._model._seated[self._name]
        self._model._run_when_all_wait()


def _row(request: _Request) -> Row:
    ids, sampling = request.conversation.transcript.ids, request.sampling
    past_tok = max(0, len(ids) - len(request.prompt.new_ids) - 1)  # the cache lacks the id that was drawn last
    return Row(
        ids[past_tok:],
        request.conversation.row,
        past_tok,
        sampling.temperature,
        sampling.top_p,
        sampling.max_tokens,
        _uniforms(request),
    )


def _resolve(reply: asyncio.Future[Draw], result: Draw | Exception) -> None:
    if reply.done():  # its rollout was cancelled meanwhile
        return
    if isinstance(result, Exception):
        reply.set_exception(result)
    else:
        reply.set_result(result)


def _by_cache(requests: list[_Request]) -> list[list[_Request]]:
    parts: dict[int, list[_Request]] = {}
    for request in requests:
        parts.setdefault(id(request.conversation.cache), []).append(request)
    return list(parts.values())


def _uniforms(request: _Request) -> np.ndarray:
    """Draw one uniform number a token, from the request's seed and its place in the conversation alone."""
    kept = request.conversation.transcript
    place = kept.given_up_tok + len(kept.ids) - len(request.prompt.new_ids)
    entropy = [request.sampling.seed, request.sampling.attempt, place]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).random(request.sampling.max_tokens)


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
