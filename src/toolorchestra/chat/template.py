"""Messages to token ids and back, through a model's own chat template.

Turns are built by extension: the ids that the policy sampled are never encoded again; between two of its turns stand
exactly the ids that a full render puts there.
In: a Hugging Face tokenizer with a chat template. Out: ids, messages, samples.
Source: project.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolorchestra.chat.parse import parse_message, render_message
from toolorchestra.errors import ConfigError
from toolorchestra.prompts import describe
from toolorchestra.types import Message, Sample, ToolSpec, Trajectory

_PROBE = (Message("user", "?"), Message("assistant", "!"))


class ChatTemplate:
    """One model's way of writing a conversation.

    Args:
        tokenizer: a `transformers` tokenizer.
        name: what errors call the model.

    Raises:
        ConfigError: the tokenizer has no chat template or no end-of-turn token.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(f"{name}: its tokenizer has no chat template; use an instruction-tuned model")
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"{name}: its tokenizer names no end-of-sequence token; set eos_token in its config")
        self.tokenizer = tokenizer
        self.eos_id: int = tokenizer.eos_token_id
        self._eos: str = tokenizer.eos_token

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Encode the messages up to where the assistant begins."""
        return self.encode(self._render(messages, tools, generate=True))

    def extension(self, messages: Sequence[Message], ended: bool) -> list[int]:
        """Encode what stands between the end of a sampled turn and the start of the next.

        Args:
            messages: what was said since (tool results, nudges, users).
            ended: the sampled turn ended with its own end-of-turn token; otherwise it is added here.
        """
        head = self._render(_PROBE, (), generate=False)
        full = self._render((*_PROBE, *messages), (), generate=True)
        cut = head.rindex(self._eos) + len(self._eos)
        if not full.startswith(head[:cut]):
            raise ConfigError("the chat template rewrites earlier turns, so turns cannot be built by extension")
        return ([] if ended else [self.eos_id]) + self.encode(full[cut:])

    def encode_turn(self, message: Message) -> list[int]:
        """Encode an assistant turn as if it had been sampled, its end-of-turn token included."""
        return [*self.encode(render_message(message)), self.eos_id]

    def decode_turn(self, ids: Sequence[int]) -> tuple[Message, tuple[str, ...]]:
        """Read sampled ids as a message, with warnings about what was odd."""
        body = ids[:-1] if ids and ids[-1] == self.eos_id else ids
        return parse_message(self.tokenizer.decode(body, skip_special_tokens=False))

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generate: bool) -> str:
        return self.tokenizer.apply_chat_template(
            [_plain(m) for m in messages],
            tools=[_function(t) for t in tools] or None,
            tokenize=False,
            add_generation_prompt=generate,
        )

    def encode(self, text: str) -> list[int]:
        """Encode plain text, without any special token of its own."""
        return self.tokenizer.encode(text, add_special_tokens=False)


def _plain(message: Message) -> dict[str, Any]:
    content = render_message(message) if message.role == "assistant" else message.content
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _function(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": describe(spec), "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def sample_of(trajectory: Trajectory, advantage: float, group: int) -> Sample | None:
    """Lay a trajectory out as one sequence; None when its policy kept no tokens or sampled none."""
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for turn in trajectory.turns:
        tokens = turn.completion.tokens
        if tokens is None:
            return None
        ids += [*tokens.context_ids, *tokens.sampled_ids]
        mask += [False] * len(tokens.context_ids) + [True] * len(tokens.sampled_ids)
        logprobs += [0.0] * len(tokens.context_ids) + list(tokens.logprobs)
    if not any(mask):
        return None
    return Sample(tuple(ids), tuple(mask), tuple(logprobs), advantage, group)
