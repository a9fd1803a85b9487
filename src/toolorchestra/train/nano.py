"""`nano`: the bundled small policy, made anew for its tasks: tokenizer, chat template, randomly initialised decoder.

It is an ordinary Hugging Face folder (a StableLM decoder of about a million parameters), so that everything that works
for it works for any other causal language model. A Llama-style decoder of this size learned to read offers badly. Here
heads turn only a quarter of their dimensions by position (partial rotary embedding), so the others can compare tokens
over any distance, and its queries and keys have biases, so a head can look at a place whatever stands there. Two layers
start out set up for copying, which random weights learn late.

Its tokenizer is a byte-level BPE trained on the texts of the training tasks; what is the same in every task (the fixed
parts of a tool call, the example arguments of tool schemas, the lines of tools without experts) is one token each, so
that a call is some ten tokens long.
In: texts, tool specs, a seed. Out: a folder.
Source: project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, StableLmConfig, StableLmForCausalLM
from transformers.utils.logging import disable_progress_bar

from toolorchestra.chat.parse import render_call
from toolorchestra.prompts import SYSTEM, describe
from toolorchestra.types import ToolSpec

_SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_ROLES = ("tools\n", "system\n", "user\n", "assistant\n", "tool\n")
_VALUE = "\x00"
# Of the initial weights: how far two heads look back and how sharply, and how strongly they pass on, match and say.
_LOOK_BACK = (1, 2)
_SHARPNESS, _PASSED, _MATCHED, _SAID, _DAMPING = 6.0, 0.35, 2.0, 0.5, 0.1
# A word with the space before it and its parentheses or semicolon, one digit, one run of other signs, or white space.
# "logic (iris)" is two tokens, so what follows a subject is whom to ask; in "subject: logic; search" the subject itself
# stands before the choice, which therefore differs between subjects from the first update on.
_PIECES = r" ?\(?\p{L}+[);]?|\d| ?[^\s\p{L}\d]+|\s+"


@dataclass(frozen=True, slots=True)
class NanoShape:
    """The size of the bundled policy.

    Attributes:
        vocab_tok: most tokens of its vocabulary.
        hidden: width of a layer.
        layers: number of layers.
        heads: attention heads.
        feedforward: width of a feed-forward layer.
        context_tok: longest conversation in tokens.
        initial_std: standard deviation of initial weights; the usual 0.02 is for widths of a thousand and more, and
            here it costs several times the steps.
    """

    vocab_tok: int = 2048
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    feedforward: int = 512
    context_tok: int = 2048
    initial_std: float = 0.1


def build_nano(folder: Path, shape: NanoShape, texts: Sequence[str], tools: Sequence[ToolSpec], seed: int) -> None:
    """Write a new nano policy to `folder`.

    Args:
        texts: what its tokenizer learns from (prompts and observations of training tasks).
        tools: specs whose call forms and example arguments become single tokens.
        seed: of the weights.
    """
    phrases = {*_ROLES, SYSTEM, *_phrases(tools)}
    tokenizer = _train_tokenizer(texts, sorted(phrases), shape.vocab_tok)
    template = resources.files("toolorchestra.assets").joinpath("nano/chat_template.jinja").read_text()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>", model_max_length=shape.context_tok
    )
    wrapped.chat_template = template
    torch.manual_seed(seed)
    config = StableLmConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.hidden,
        intermediate_size=shape.feedforward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        use_qkv_bias=True,
        max_position_embeddings=shape.context_tok,
        tie_word_embeddings=True,
        initializer_range=shape.initial_std,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|pad|>"),
    )
    disable_progress_bar()  # its bars would cut through ours
    model = StableLmForCausalLM(config)
    if shape.layers > 1:
        _start_copying(model)
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)


def _start_copying(model: Any) -> None:
    """Set two layers up to do what random weights learn late: look up what followed a token before, and say it again.

    Two heads of layer 0 look back by their biases alone; the first passes on what it sees. Two heads of layer 1 compare
    that with the present token, in the dimensions that do not depend on the distance, and repeat what stands there.
    What all other parts add is damped, so that at first it does not drown this.
    """
    size = model.config.hidden_size // model.config.num_attention_heads
    turned = 2 * len(model.model.rotary_emb.inv_freq)
    basis = torch.linalg.qr(torch.randn(model.config.hidden_size, model.config.hidden_size))[0]
    read, passed, *said = (basis[i * size : (i + 1) * size] for i in range(4))
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= _DAMPING
            layer.mlp.down_proj.weight *= _DAMPING
        for head, back in enumerate(_LOOK_BACK):
            _look_back(model, head, back)
        first.v_proj.weight[:size] = read
        first.o_proj.weight[:, :size] = _PASSED * passed.T
        for head, part in enumerate(said):
            rows = slice(head * size, (head + 1) * size)
            for projection, source in ((second.q_proj, read), (second.k_proj, passed)):
                projection.weight[rows] = 0
                projection.weight[head * size + turned : (head + 1) * size] = _MATCHED * source[turned:]
            second.v_proj.weight[rows] = part
            second.o_proj.weight[:, rows] = _SAID * part.T


def _look_back(model: Any, head: int, back: int) -> None:
    """Make a head of layer 0 look mostly `back` tokens back, whatever the tokens are.

    At a distance of d tokens the biases alone score sharpness^2 * sum over frequencies f of cos(f (d - back)).
    """
    attention, frequencies = model.model.layers[0].self_attn, model.model.rotary_emb.inv_freq
    size = model.config.hidden_size // model.config.num_attention_heads
    rows = slice(head * size, (head + 1) * size)
    rest = torch.zeros(size - 2 * len(frequencies))
    angles = -frequencies * back
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[rows] *= 0.1
    attention.q_proj.bias[rows] = _SHARPNESS * torch.cat([angles.cos(), angles.sin(), rest])
    attention.k_proj.bias[rows] = _SHARPNESS * torch.cat([torch.ones_like(angles), torch.zeros_like(angles), rest])


def _phrases(tools: Sequence[ToolSpec]) -> Iterator[str]:
    """List the fixed parts of calls and descriptions, and the example arguments as they stand in JSON."""
    for tool in tools:
        yield f"{tool.name}: {tool.description if tool.experts else describe(tool)}\n"
        properties = tool.parameters.get("properties", {})
        for names in [(), *((name,) for name in properties)]:
            parts = render_call(tool.name, dict.fromkeys(names, _VALUE)).split(json.dumps(_VALUE)[1:-1])
            yield from (part.removeprefix("<tool_call>").removesuffix("</tool_call>") for part in parts)
        for schema in properties.values():
            yield from (json.dumps(example, ensure_ascii=False)[1:-1] for example in schema.get("examples", ()))


def _train_tokenizer(texts: Sequence[str], phrases: Sequence[str], vocab_tok: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_tok - len(_TAGS) - len(phrases),
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in (*_TAGS, *phrases)])
    return tokenizer
