"""Messages to token ids and back, through a model's own chat template.

An assistant's turn is given to the template as text: as it was sampled, or, where nobody sampled it, as the template
itself would write it. What the template knows is found out once, by probes; where it rewrites earlier turns, `history`
says what is done about it, and a warning says so.
In: a Hugging Face tokenizer with a chat template. Out: texts, ids, messages.
Source: project.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from toolorchestra.chat.dialect import MARK, REFUSALS, Plain, find_dialect
from toolorchestra.chat.plain import plain_messages
from toolorchestra.errors import ConfigError
from toolorchestra.prompts import tool_function
from toolorchestra.types import Message, ToolCall, ToolSpec

History = Literal["keep", "split"]

_USER = Message("user", "?")
_RESULT_TAGS = ("<tool_response>", "</tool_response>")

# A run must not depend on the day on which it is made, so a template that asks for the date is always told this one.
_FIXED_DATE = (
    "{%- macro strftime_now(format) -%}"
    "{{ {'%d %b %Y': '01 Jan 2025', '%d %B %Y': '01 January 2025'}.get(format, '2025-01-01') }}"
    "{%- endmacro %}"
)


class ChatTemplate:
    """One model's way of writing a conversation.

    Args:
        tokenizer: a `transformers` tokenizer.
        name: what errors call the model.
        history: what is done where the template rewrites earlier turns: `keep` what was sampled, or `split`, begin the
            context anew as the template writes it.
        end_ids: ids that end a turn, besides the tokenizer's own and the one with which the template closes a turn.

    Raises:
        ConfigError: the tokenizer has no chat template, or one that cannot be used.
    """

    def __init__(
        self, tokenizer: Any, name: str, history: History = "keep", end_ids: Collection[int] = frozenset()
    ) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(f"{name}: its tokenizer has no chat template; use an instruction-tuned model")
        self.tokenizer = tokenizer
        self.name = name
        self.history: History = history
        self._source = _source(tokenizer)
        special = _special_tokens(tokenizer)
        self._forgeable = re.compile("|".join(map(re.escape, sorted([*special, *_RESULT_TAGS], key=len, reverse=True))))
        self.dialect = find_dialect(self._write, special, name)
        self.closing_id: int = tokenizer.convert_tokens_to_ids(self.dialect.closing)
        own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.end_ids = frozenset({self.closing_id, *own, *end_ids})
        self.rewrites = tuple(what for what, said, then in _PROBES if not self._keeps(said, then))
        if self.rewrites and history == "keep":
            warnings.warn(f"{name}: {self.rewriting}", stacklevel=2)

    @property
    def rewriting(self) -> str:
        """Say what the template rewrites, and what is done about it."""
        if not self.rewrites:
            return "the chat template keeps earlier turns as they are"
        done = {
            "keep": "keeps what was sampled, so the context differs from a full render",
            "split": "begins the context anew where it does, and makes a training sample of each part",
        }[self.history]
        return f"the chat template rewrites {'; '.join(self.rewrites)}; policy.history = '{self.history}' {done}"

    # -- whole conversations -------------------------------------------------------------------------------------

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Encode the messages up to where the assistant begins."""
        return self.encode(self.render(messages, tools))

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampled: Mapping[int, str] | None = None
    ) -> str:
        """Write the messages up to where the assistant begins.

        Args:
            sampled: texts of assistant turns, by their place in `messages`, as they were sampled.
        """
        texts = sampled or {}
        worded = [self._worded(message, texts.get(place)) for place, message in enumerate(messages)]
        if not self.dialect.tells_tools:
            worded, tools = plain_messages(worded, tools, self.dialect.form), ()
        return self._write([_plain(m) for m in worded], [tool_function(t) for t in tools], True)

    def _worded(self, message: Message, sampled: str | None) -> Message:
        """Make an assistant's turn plain text, and anything else free of tokens that only the template may write."""
        if message.role != "assistant":
            return replace(message, content=self._forgeable.sub(lambda m: f"{m[0][0]} {m[0][1:]}", message.content))
        text = self.text_of(message) if sampled is None else sampled
        return Message("assistant", self.dialect.lead + text)

    # -- what stands between turns -------------------------------------------------------------------------------

    def between(self, messages: Sequence[Message]) -> str:
        """Write what a full render puts between the end-of-turn token of one turn and the start of the next.

        Args:
            messages: what was said since (tool results, nudges, users).
        """
        full = self.render([_USER, Message("assistant", MARK), *messages], (), {1: MARK})
        _, found, rest = full.partition(MARK + self.dialect.closing)
        if not found:
            raise ConfigError(f"{self.name}: its chat template leaves out earlier turns, so none can be added to")
        return rest

    def _keeps(self, said: str, then: Message) -> bool:
        """Tell whether a full render begins with an earlier render and a turn that followed it, unchanged."""
        said = said.removeprefix(self.dialect.lead)
        before = self.render([_USER], ())
        full = self.render([_USER, Message("assistant"), then], (), {1: said})
        return full == before + said + self.dialect.closing + self.between([then])

    # -- single turns --------------------------------------------------------------------------------------------

    def text_of(self, message: Message) -> str:
        """Write an assistant's turn as the policy would, from where the prompt leaves off."""
        text, lead = self._canonical(message), self.dialect.lead
        if text.startswith(lead):
            return text[len(lead) :]
        return text if "</think>" in lead else f"</think>\n\n{text}"

    def _canonical(self, message: Message) -> str:
        """Write a turn as the template does from data, if that says the same, else in the form's own way."""
        written = self._from_data(message) if self.dialect.writes_calls else None
        if written is not None and _same(self.dialect.form.parse(written)[0], message):
            return written
        return self.dialect.form.render(message)

    def _from_data(self, message: Message) -> str | None:
        try:
            before = self._write([_plain(_USER)], (), True).removesuffix(self.dialect.lead)
            full = self._write([_plain(_USER), _as_data(message)], (), False)
        except REFUSALS:
            return None
        if not full.startswith(before):
            return None
        return full[len(before) : full.rfind(self.dialect.closing)]

    def encode_turn(self, message: Message) -> list[int]:
        """Encode an assistant turn as if it had been sampled, its end-of-turn token included."""
        return [*self.encode(self.text_of(message)), self.closing_id]

    def decode_turn(self, ids: Sequence[int]) -> tuple[Message, tuple[str, ...]]:
        """Read sampled ids as a message, with warnings about what was odd."""
        body, _ = self.split_end(ids)
        return self.dialect.form.parse(self.dialect.lead + self.decode(body))

    def split_end(self, ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Part sampled ids from the token that ended the turn, if one did."""
        cut = len(ids) - (1 if ids and ids[-1] in self.end_ids else 0)
        return ids[:cut], ids[cut:]

    # -- text and ids --------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Encode plain text, without any special token of its own."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def count_tok(self, text: str) -> int:
        """Count the tokens of plain text."""
        return len(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to exactly their text, special tokens included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _write(self, messages: Sequence[Plain], tools: Sequence[Plain], generate: bool) -> str:
        return self.tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            chat_template=self._source,
            tokenize=False,
            add_generation_prompt=generate,
        )


_CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
_PROBES = (
    ("thinking before a tool result", f"<think>\nhm\n</think>\n\n{_CALL}", Message("tool", "1", tool_call_id="call_0")),
    ("empty thinking", "<think>\n\n</think>\n\n!", Message("tool", "1", tool_call_id="call_0")),
    ("thinking once the user speaks again", "<think>\nhm\n</think>\n\n!", _USER),
    ("white space around a turn", "\n ! \n", _USER),
)
"""What a template may do to an earlier turn, such a turn, and what follows it."""


def _source(tokenizer: Any) -> str:
    """Choose the template that knows tools where a tokenizer has several, and fix the date that it writes."""
    named = tokenizer.chat_template
    source = named if isinstance(named, str) else named.get("tool_use") or named.get("default", "")
    return _FIXED_DATE + source if "strftime_now" in source else source


def _special_tokens(tokenizer: Any) -> list[str]:
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return list(dict.fromkeys([*added, *tokenizer.all_special_tokens]))


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _as_data(message: Message) -> dict[str, Any]:
    thinking = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else ""
    data: dict[str, Any] = {"role": "assistant", "content": thinking + message.content}
    if message.tool_calls:
        data["tool_calls"] = [_call(call) for call in message.tool_calls]
    return data


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}


def _same(read: Message, meant: Message) -> bool:
    """Whether a turn that was written and read says what was meant; calls are told apart by their place."""

    def parts(message: Message) -> tuple[Any, ...]:
        calls = [(call.name, dict(call.arguments), bool(call.error)) for call in message.tool_calls]
        return message.reasoning.strip(), message.content.strip(), calls

    return parts(read) == parts(meant)
