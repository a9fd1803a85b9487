"""A GGUF file becomes a Hugging Face folder that computes the same, or is refused with one sentence."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from families import tokenizer_of
from toolorchestra.assemble import build_policy
from toolorchestra.configs import Recipe
from toolorchestra.errors import ConfigError
from toolorchestra.models.gguf import convert
from toolorchestra.types import Message, ToolCall

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def small_model(tied: bool = True) -> LlamaForCausalLM:
    """Make a Llama with grouped keys; its vocabulary is that of the ChatML family."""
    torch.manual_seed(0)
    tokenizer = tokenizer_of("chatml")
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            tie_word_embeddings=tied,
        )
    ).eval()


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of every head as the format does: row i, row i + size/2, row i + 1, …"""
    size = rows.shape[0] // heads
    order = [h * size + i + half for h in range(heads) for i in range(size // 2) for half in (0, size // 2)]
    return rows[order]


def write_gguf(path: Path, model: LlamaForCausalLM, change: Callable[[Any], None] = lambda _: None) -> Path:
    config, tokenizer = model.config, tokenizer_of("chatml")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads or 0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))]
    special = set(tokenizer.all_special_tokens) | {"<|im_start|>"}
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template("{{ 'its own' }}")
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if name.startswith("model.layers."):
            _, _, layer, part, *_ = name.removesuffix(".weight").split(".", 3)
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                values = interleaved(values, 4 if "q_proj" in part else 2)
            writer.add_tensor(f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(values))
        elif name != "lm_head.weight" or not config.tie_word_embeddings:
            known = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
            writer.add_tensor(f"{known.get(name, 'output')}.weight", values)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_computes_what_the_file_holds(tmp_path: Path, tied: bool):
    model = small_model(tied)
    (tmp_path / "m").mkdir()
    convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "m", None)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.equal(read(ids).logits, model(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    text = "<|im_start|>user\nWas ist 12 ä?<|im_end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and tokenizer.convert_ids_to_tokens(ids[0]) == "<|im_start|>"
    assert {"1", "2"} <= set(tokenizer.convert_ids_to_tokens(ids))  # digits stand alone
    assert tokenizer.chat_template == "{{ 'its own' }}"


def test_quantised_weights_are_read_as_the_format_says(tmp_path: Path):
    """Q4_1: blocks of 32 numbers, each d * q + m with a 4-bit q; here d = 0.5, m = -2, and q runs from 0 to 15."""
    block = np.zeros(20, dtype=np.uint8)
    block[:4] = np.array([0.5, -2.0], dtype=np.float16).view(np.uint8)
    block[4:] = [q | (15 - q) << 4 for q in range(16)]  # low halves are numbers 0 to 15, high ones 16 to 31
    model = small_model()

    def quantise(writer: Any) -> None:
        weight = np.tile(block, (32, 1))
        writer.tensors[-1]["blk.0.attn_output.weight"].tensor = weight
        writer.tensors[-1]["blk.0.attn_output.weight"].dtype = gguf.GGMLQuantizationType.Q4_1
        writer.tensors[-1]["blk.0.attn_output.weight"].nbytes = weight.nbytes

    (tmp_path / "m").mkdir()
    convert(write_gguf(tmp_path / "m.gguf", model, quantise), tmp_path / "m", None)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    row = [0.5 * q - 2 for q in (*range(16), *range(15, -1, -1))]
    assert read.state_dict()["model.layers.0.self_attn.o_proj.weight"].tolist() == [row] * 32


def test_our_template_tells_smollm2_tools_and_is_a_policys(tmp_path: Path):
    (tmp_path / "m").mkdir()
    template = files("toolorchestra.assets").joinpath("smollm2.jinja").read_text()
    convert(write_gguf(tmp_path / "m.gguf", small_model()), tmp_path / "m", template)
    policy = build_policy(Recipe(), tmp_path / "m", "p")
    assert policy.template.dialect.tells_tools and policy.template.dialect.writes_calls
    assert not policy.template.rewrites
    calls = (ToolCall("call_0", "ask", {"expert": "ä\n"}), ToolCall("call_1", "python", {"code": "1"}))
    talk = [Message("system", "Be right."), Message("user", "?"), Message("assistant", "", "hm", calls)]
    results = [Message("tool", f"r{n}", tool_call_id=f"call_{n}") for n in range(2)]
    text = policy.template.render([*talk, *results], ())
    assert text.endswith(
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\n"
        '<tool_call>{"name": "ask", "arguments": {"expert": "ä\\n"}}</tool_call>'
        '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nr0\n</tool_response>\n<tool_response>\nr1\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def set_value(key: str, value: str) -> Callable[[Any], None]:
    def change(writer: Any) -> None:
        writer.kv_data[-1][key].value = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_value("general.architecture", "gemma"), "general.architecture is 'gemma'"),
        (set_value("tokenizer.ggml.pre", "qwen2"), "tokenizer.ggml.pre is 'qwen2'"),
        (lambda w: w.kv_data[-1].pop("llama.block_count"), "'llama.block_count' is missing"),
        (lambda w: w.add_tensor("blk.0.strange.weight", np.zeros(32, np.float32)), r"blk\.0\.strange\.weight"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path: Path, change: Callable[[Any], None], why: str):
    (tmp_path / "m").mkdir()
    with pytest.raises(ConfigError, match=why):
        convert(write_gguf(tmp_path / "m.gguf", small_model(), change), tmp_path / "m", None)


def test_a_torn_file_is_refused(tmp_path: Path):
    whole = write_gguf(tmp_path / "m.gguf", small_model()).read_bytes()
    for length in (0, 3, 100, len(whole) - 500):
        (tmp_path / "torn.gguf").write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="not a whole GGUF file"):
            convert(tmp_path / "torn.gguf", tmp_path, None)
