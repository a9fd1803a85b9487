"""A Llama decoder in a GGUF file, written as an ordinary Hugging Face folder.

Quantised weights are written out in float32, exactly as llama.cpp would read them. The file keeps the rows of the query
and key projections in another order (pairs of rotated dimensions side by side), which is undone here.
In: a GGUF file. Out: config, generation settings, weights, tokenizer and chat template in a folder.
Source: the GGUF format; the order of rows as llama.cpp's converter writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from toolorchestra.errors import ConfigError

_CONTROL = 3
"""The type of tokens that are no text, such as the end of a turn."""

_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(source: Path, folder: Path, template: str | None) -> None:
    """Write the model in a GGUF file to a folder that exists.

    Args:
        template: the chat template to write; None for the file's own.

    Raises:
        ConfigError: the file is damaged, or holds something other than a Llama decoder with SmolLM's tokenizer.
    """
    try:
        reader = GGUFReader(source)
    except (ValueError, OSError, IndexError) as error:
        raise ConfigError(f"{source.name}: not a whole GGUF file: {error}") from None
    facts = _Facts(source.name, reader)
    facts.require("general.architecture", "llama")
    facts.require("tokenizer.ggml.model", "gpt2")
    facts.require("tokenizer.ggml.pre", "smollm")
    config = _config(facts, tied=all(t.name != "output.weight" for t in reader.tensors))
    config.save_pretrained(folder)
    GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id).save_pretrained(folder)
    save_file(dict(_weights(reader, config)), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(facts, config, template).save_pretrained(folder)


class _Facts:
    """The named values of a GGUF file."""

    def __init__(self, name: str, reader: Any) -> None:
        self._name = name
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ConfigError(f"{self._name}: '{key}' is missing, so it cannot be converted")
        return self._fields[key].contents()

    def get(self, key: str) -> Any:
        return self[key] if key in self._fields else None

    def require(self, key: str, value: str) -> None:
        if self[key] != value:
            raise ConfigError(f"{self._name}: {key} is '{self[key]}'; only '{value}' can be converted")


def _config(facts: _Facts, tied: bool) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts.get("tokenizer.ggml.padding_token_id"),
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )


def _weights(reader: Any, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        values = values.reshape(tuple(int(size) for size in reversed(tensor.shape)))
        part = tensor.name.removesuffix(".weight").rpartition(".")[2]
        if part in heads:
            values = _halves_together(values, heads[part])
        yield _name(tensor.name), torch.from_numpy(np.ascontiguousarray(values))


def _halves_together(rows: np.ndarray, heads: int | None) -> np.ndarray:
    """Put the rows of each head back into two halves: the file has row i and row i + size/2 side by side."""
    count = heads or 1
    return rows.reshape(count, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _name(name: str) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer and layer[2] in _LAYER_PARTS:
        return f"model.layers.{layer[1]}.{_LAYER_PARTS[layer[2]]}.weight"
    stem = name.removesuffix(".weight")
    if stem not in _ENDS:
        raise ConfigError(f"the tensor '{name}' belongs to no Llama decoder that can be converted")
    return f"{_ENDS[stem]}.weight"


def _tokenizer(facts: _Facts, config: LlamaConfig, template: str | None) -> PreTrainedTokenizerFast:
    """Make the byte-level BPE of SmolLM: digits stand alone."""
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    unknown = facts.get("tokenizer.ggml.unknown_token_id")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[config.bos_token_id],
        eos_token=tokens[config.eos_token_id],
        pad_token=None if config.pad_token_id is None else tokens[config.pad_token_id],
        unk_token=None if unknown is None else tokens[unknown],
        model_max_length=config.max_position_embeddings,
    )
    wrapped.chat_template = template or facts.get("tokenizer.chat_template")
    return wrapped
