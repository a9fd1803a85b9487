"""Can this model be a policy? Questions to a model's folder, answered in seconds because no weights are read.

In: the folder of a model or an adapter, and the policy's knobs. Out: findings, each failure with what to change.
Source: project.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolorchestra.chat.local import end_ids_of
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.chat.transcript import Transcript
from toolorchestra.configs import Dtype, PolicyConfig
from toolorchestra.errors import ConfigError
from toolorchestra.models.memory import available_bytes, needed_bytes, weights_of
from toolorchestra.models.outline import Outline, open_outline
from toolorchestra.pricing import Price
from toolorchestra.prompts import show_price
from toolorchestra.types import Message, ToolCall, ToolSpec

_LEAST_CONTEXT_TOK = 1024
"""A conversation with tools, prices and some turns needs about so many tokens."""

_TOOL = ToolSpec("look", "looks something up", {"type": "object", "properties": {"what": {"type": "string"}}})
_OPENING = (Message("system", "Be right."), Message("user", "What is it?"))
_CALLS = (ToolCall("call_0", "look", {"what": "ä\n1"}), ToolCall("call_1", "look", {"what": '"</tool_call>"'}))
_TURNS = (
    Message("assistant", "It is 4."),
    Message("assistant", "", "hm", _CALLS[:1]),
    Message("assistant", "", "", _CALLS),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question.

    Attributes:
        question: what was looked at.
        found: what it is.
        fix: what to change, or to know; empty when all is well.
        failed: the model cannot be used as it is.
    """

    question: str
    found: str
    fix: str = ""
    failed: bool = False

    @property
    def verdict(self) -> str:
        """One word: ok, note or FAIL."""
        return "FAIL" if self.failed else "note" if self.fix else "ok"


def examine(path: Path, config: PolicyConfig) -> list[Finding]:
    """Look at a model's folder from all sides.

    Raises:
        ConfigError: it is no such folder: files are missing, or cannot be read.
    """
    folder = open_outline(path)
    findings: list[Finding] = []
    template: ChatTemplate | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it would warn of is a finding below
            template = ChatTemplate(folder.tokenizer, "model", config.history, end_ids_of(folder.settings))
    except ConfigError as error:
        findings.append(Finding("chat template", "cannot be used", str(error).removeprefix("model: "), failed=True))
    if template is not None:
        findings += [ask(template) for ask in _OF_TEMPLATE]
        findings.append(_end_of_turn(folder, template))
    return [*findings, _context(folder), _vocabulary(folder), _memory(folder, config.dtype), _price(config)]


# -- the template ------------------------------------------------------------------------------------------------


def _template(template: ChatTemplate) -> Finding:
    return Finding("chat template", f"found; an assistant's turn ends with {template.dialect.closing}")


def _family(template: ChatTemplate) -> Finding:
    return Finding("family", template.dialect.family)


def _round_trip(template: ChatTemplate) -> Finding:
    """Write turns as the policy would and read them back."""
    for message in _TURNS:
        read, odd = template.decode_turn(template.encode_turn(message))
        if odd or read != message:
            fix = "the tokenizer does not give back the text it was given; use the one that came with the model"
            return Finding("round trip", f"{template.text_of(message)!r} is read otherwise", fix, failed=True)
    return Finding("round trip", f"{len(_TURNS)} turns are read back as they were written")


def _separators(template: ChatTemplate) -> Finding:
    """Grow a conversation by turns with one and with two tool results, and compare it with its full render."""
    transcript, messages = Transcript(template), list(_OPENING)
    said = "Hm."  # no thinking, which a template may drop: that is another question
    for count in (1, 2):
        transcript.begin(transcript.prompt(messages, [_TOOL]))
        ids = [*template.encode(said), template.closing_id]
        message, _ = template.decode_turn(ids)
        transcript.end(message, ids)
        messages += [message, *(Message("tool", f"result {n}", tool_call_id=f"call_{n}") for n in range(count))]
    prompt = transcript.prompt(messages, [_TOOL])
    transcript.begin(prompt)
    if prompt.warnings or prompt.fresh or transcript.ids != template.encode(prompt.text):
        fix = "its template or tokenizer joins turns, so contexts differ from those it was trained on; try another"
        return Finding("separators", "turns by extension differ from the full render", fix, failed=True)
    return Finding("separators", "turns by extension equal the full render")


def _history(template: ChatTemplate) -> Finding:
    if not template.rewrites:
        return Finding("history", template.rewriting)
    other = "split" if template.history == "keep" else "keep"
    fix = f"nothing must be changed; the other rule is policy.history = '{other}'"
    return Finding("history", template.rewriting, fix)


_OF_TEMPLATE: Sequence[Callable[[ChatTemplate], Finding]] = (_template, _family, _round_trip, _separators, _history)


# -- the model ---------------------------------------------------------------------------------------------------


def _end_of_turn(folder: Outline, template: ChatTemplate) -> Finding:
    names = ", ".join(f"{folder.tokenizer.convert_ids_to_tokens(i)} ({i})" for i in sorted(template.end_ids))
    named = end_ids_of(folder.settings) | {folder.tokenizer.eos_token_id}
    if template.closing_id in named:
        return Finding("end of turn", names)
    fix = f"{template.dialect.closing} ends turns here; add it to eos_token_id in generation_config.json for others"
    return Finding("end of turn", names, fix)


def _context(folder: Outline) -> Finding:
    length = getattr(folder.model.config, "max_position_embeddings", None)
    if not isinstance(length, int):
        fix = "set max_position_embeddings in config.json to what the model was trained on"
        return Finding("context", "its config names no length", fix, failed=True)
    if length < _LEAST_CONTEXT_TOK:
        fix = f"use a model with at least {_LEAST_CONTEXT_TOK} tokens; tools and prices alone take some hundred"
        return Finding("context", f"{length} tokens", fix, failed=True)
    return Finding("context", f"{length} tokens")


def _vocabulary(folder: Outline) -> Finding:
    found = f"{len(folder.tokenizer)} tokens, {folder.embeddings} embeddings"
    return Finding("vocabulary", found, folder.vocabulary_fault, failed=bool(folder.vocabulary_fault))


def _memory(folder: Outline, dtype: Dtype) -> Finding:
    weights = weights_of(folder.model)
    needed, free = needed_bytes(weights, 0, False, dtype), available_bytes()
    found = f"{weights / 1e6:.1f} M weights, {needed / 1e9:.2f} GB to answer with, {free / 1e9:.1f} GB free"
    if needed <= free:
        return Finding("memory", found)
    return Finding("memory", found, "use a smaller model or a larger machine", failed=True)


def _price(config: PolicyConfig) -> Finding:
    price = Price(config.input_usd_per_mtok, config.output_usd_per_mtok)
    if price.input_usd_per_mtok and price.output_usd_per_mtok:
        return Finding("price", f"{show_price(price)} (input/output), by policy.*_usd_per_mtok")
    fix = "set policy.input_usd_per_mtok and policy.output_usd_per_mtok, or its own tokens cost nothing"
    return Finding("price", show_price(price), fix, failed=True)
