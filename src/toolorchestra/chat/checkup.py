"""Can this model be a policy? Questions to a model's folder, answered in seconds because no weights are read.

In: a Hugging Face folder and the policy's knobs. Out: findings, each failure with what to change.
Source: project.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from toolorchestra.chat.local import end_ids_of
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.chat.transcript import Transcript
from toolorchestra.configs import PolicyConfig
from toolorchestra.errors import ConfigError
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


@dataclass(frozen=True, slots=True)
class _Folder:
    """What a folder holds, apart from weights; `model` has shapes but no numbers."""

    path: Path
    tokenizer: Any
    model: Any
    settings: Any


def examine(path: Path, config: PolicyConfig) -> list[Finding]:
    """Look at a model's folder from all sides.

    Raises:
        ConfigError: it is no such folder: files are missing, or cannot be read.
    """
    folder = _open(path)
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
    return [*findings, _context(folder), _vocabulary(folder), _price(config)]


def _open(path: Path) -> _Folder:
    if not path.is_dir():
        raise ConfigError(f"{path}: there is no such folder; give `nano` or the folder of a Hugging Face model")
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path}: no model here (config.json is missing); give a folder that transformers can load")
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        raise ConfigError(f"{path}: no weights here (no *.safetensors); give the folder of the whole model")
    folder = _load(path)
    if not folder.tokenizer.chat_template:
        raise ConfigError(f"{path}: its tokenizer has no chat template; use an instruction-tuned model")
    return folder


def _load(path: Path) -> _Folder:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        has_settings = (path / "generation_config.json").is_file()
        settings = GenerationConfig.from_pretrained(path, local_files_only=True) if has_settings else config
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: cannot be loaded: {str(error).splitlines()[0]}") from None
    return _Folder(path, tokenizer, model, settings)


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


def _end_of_turn(folder: _Folder, template: ChatTemplate) -> Finding:
    names = ", ".join(f"{folder.tokenizer.convert_ids_to_tokens(i)} ({i})" for i in sorted(template.end_ids))
    named = end_ids_of(folder.settings) | {folder.tokenizer.eos_token_id}
    if template.closing_id in named:
        return Finding("end of turn", names)
    fix = f"{template.dialect.closing} ends turns here; add it to eos_token_id in generation_config.json for others"
    return Finding("end of turn", names, fix)


def _context(folder: _Folder) -> Finding:
    length = getattr(folder.model.config, "max_position_embeddings", None)
    if not isinstance(length, int):
        fix = "set max_position_embeddings in config.json to what the model was trained on"
        return Finding("context", "its config names no length", fix, failed=True)
    if length < _LEAST_CONTEXT_TOK:
        fix = f"use a model with at least {_LEAST_CONTEXT_TOK} tokens; tools and prices alone take some hundred"
        return Finding("context", f"{length} tokens", fix, failed=True)
    return Finding("context", f"{length} tokens")


def _vocabulary(folder: _Folder) -> Finding:
    """Compare the tokenizer's ids, the config's size and the rows of the embedding in the weights."""
    ids, config_rows = len(folder.tokenizer), int(folder.model.config.vocab_size)
    rows = _embedding_rows(folder)
    found = f"{ids} tokens, {config_rows if rows is None else rows} embeddings"
    if rows is not None and rows != config_rows:
        fix = f"config.json says vocab_size = {config_rows}, the weights hold {rows}; they belong to different models"
        return Finding("vocabulary", found, fix, failed=True)
    if ids > config_rows:
        fix = "some tokens have no embedding; use the tokenizer that came with the model, or resize_token_embeddings"
        return Finding("vocabulary", found, fix, failed=True)
    return Finding("vocabulary", found)


def _embedding_rows(folder: _Folder) -> int | None:
    """Read the embedding's number of rows from the headers of the weights; None when no header names it."""
    weight = folder.model.get_input_embeddings().weight
    name = next(name for name, parameter in folder.model.named_parameters() if parameter is weight)
    return next(_rows(folder.path, name), None)


def _rows(path: Path, name: str) -> Iterator[int]:
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                if name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    yield tensors.get_slice(name).get_shape()[0]
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); copy it again") from None


def _price(config: PolicyConfig) -> Finding:
    price = Price(config.input_usd_per_mtok, config.output_usd_per_mtok)
    if price.input_usd_per_mtok and price.output_usd_per_mtok:
        return Finding("price", f"{show_price(price)} (input/output), by policy.*_usd_per_mtok")
    fix = "set policy.input_usd_per_mtok and policy.output_usd_per_mtok, or its own tokens cost nothing"
    return Finding("price", show_price(price), fix, failed=True)
