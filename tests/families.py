"""Chat templates in the shape of three families' own, small tokenizers with their special tokens, small models."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

QWEN = """\
{%- set seen = namespace(user=-1) %}
{%- for m in messages %}
    {%- set seen.user = loop.index0 if m.role == 'user' else seen.user %}
{%- endfor %}
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content }}
    {%- endif %}
    {%- if tools %}
        {{- '\\n\\nFunctions:\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' + tool | tojson }}
        {%- endfor %}
        {{- '\\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set thought, said = '', m.content %}
        {%- if '</think>' in said %}
            {%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > seen.user and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' + said.lstrip('\\n') }}
        {%- else %}
            {{- said }}
        {%- endif %}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n' if said or not loop.first else '' }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' }}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' else '' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' }}
"""

LLAMA = """\
{{- bos_token }}
{%- set start, end = '<|start_header_id|>', '<|end_header_id|>\\n\\n' %}
{%- if messages[0].role == 'system' %}
    {%- set system, messages = messages[0].content | trim, messages[1:] %}
{%- endif %}
{{- start + 'system' + end + 'Today: ' + strftime_now('%d %b %Y') + '\\n\\n' + (system or '') + '<|eot_id|>' }}
{%- for m in messages %}
    {%- if m.role == 'tool' or m.role == 'ipython' %}
        {{- start + 'ipython' + end + m.content | tojson + '<|eot_id|>' }}
    {%- elif m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}
            {{- raise_exception('one call a turn') }}
        {%- endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- start + 'assistant' + end + '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- start + m.role + end }}
        {%- if tools and m.role == 'user' and loop.first %}
            {{- 'Answer with {"name": …, "parameters": …} or in words.\\n\\n' }}
            {%- for tool in tools %}
                {{- tool | tojson(indent=4) + '\\n\\n' }}
            {%- endfor %}
        {%- endif %}
        {{- m.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{{- start + 'assistant' + end if add_generation_prompt else '' }}
"""

CHATML = """\
{%- for m in messages %}
    {%- if loop.first and m.role != 'system' %}
        {{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' }}
"""

PROMPTED_THINKING = CHATML.replace("'<|im_start|>assistant\\n' if", "'<|im_start|>assistant\\n<think>\\n' if")
"""ChatML whose prompt opens the thinking."""

FORGETFUL = PROMPTED_THINKING.replace("m.content", "m.content.split('</think>')[-1]")
"""The same, where earlier thinking is dropped."""

_QWEN_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_FAMILIES = {
    "qwen": (QWEN, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), _QWEN_TAGS, "<|im_end|>"),
    "llama": (
        LLAMA,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
         "<|python_tag|>"),
        (),
        "<|eot_id|>",
    ),
    "chatml": (CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), (), "<|im_end|>"),
    "thinking": (PROMPTED_THINKING, ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>"), "<|im_end|>"),
}  # fmt: skip
_TEXTS = [
    '{"name": "ask", "arguments": {"expert": "amber"}}',
    "assistant user system tool ipython",
    "the answer is",
] * 9


def tokenizer_of(family: str) -> Any:
    """Make a byte-level BPE tokenizer with a family's special tokens and chat template."""
    template, special, tags, eos = _FAMILIES[family]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(_TEXTS, trainer)
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    bpe.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos, bos_token=special[0])
    tokenizer.chat_template = template
    return tokenizer


def write_model(
    folder: Path, family: str, template: str | None = "", context_tok: int = 2048, vocabulary: int = 0, ends: Any = None
) -> Path:
    """Write a model of random weights that speaks as a family does."""
    tokenizer = tokenizer_of(family)
    if template != "":
        tokenizer.chat_template = template
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary or len(tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=context_tok,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id if ends is None else ends,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
