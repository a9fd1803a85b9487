"""The ids of one conversation, as its policy saw and drew them: grown turn by turn, never encoded again.

Between two turns stand exactly the ids that a full render puts there. Where a full render would not give back what was
sampled, `ChatTemplate.history` decides: `keep` goes on and says so in a warning, `split` begins the context anew. Where
a template is known to rewrite, that is looked at every turn, else whenever the conversation has doubled, so that its
cost grows linearly with its turns. A conversation that does not go on from the one kept here, such as a digest that is
written anew each turn, also begins anew.
In: messages, sampled ids. Out: the ids to read before the next turn is drawn.
Source: project; tokens trained on are the tokens sampled (arXiv 2511.21689, sec. 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolorchestra.chat.template import ChatTemplate
from toolorchestra.types import Message, ToolSpec

KEPT = "The context keeps an earlier turn as it was sampled; the chat template would write it otherwise."
"""Said of a prompt that differs from a full render."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is read before a turn is drawn.

    Attributes:
        messages: the conversation that it stands for.
        new_ids: ids to add, or, when `fresh`, the whole context.
        text: the text of the context with them.
        fresh: an earlier context is given up.
        warnings: how it differs from a full render.
    """

    messages: tuple[Message, ...]
    new_ids: list[int]
    text: str
    fresh: bool = False
    warnings: tuple[str, ...] = ()


class Transcript:
    """The state of one conversation between its turns.

    Attributes:
        ids: the context with all that was drawn in it.
        given_up_tok: tokens of contexts that were given up.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.ids: list[int] = []
        self.given_up_tok = 0
        self._template = template
        self._text = ""
        self._seen: tuple[Message, ...] = ()
        self._sampled: dict[int, str] = {}
        self._ended = True

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Prompt:
        """Lay out what is to be read; changes nothing."""
        known, template = len(self._seen), self._template
        goes_on = bool(self.ids) and tuple(messages[:known]) == self._seen
        doubled = known.bit_length() < len(messages).bit_length()
        compared = not goes_on or doubled or bool(template.rewrites)
        full = template.render(messages, tools, self._sampled if goes_on else None) if compared else None
        if goes_on:
            closing, between = template.dialect.closing, template.between(messages[known:])
            text = self._text + ("" if self._ended else closing) + between
            if full in (None, text) or template.history == "keep":
                ids = template.encode(closing + between)  # in one piece: some tokenizers begin a text with a space
                ids = ids[1:] if self._ended else ids
                return Prompt(tuple(messages), ids, text, warnings=() if full in (None, text) else (KEPT,))
        assert full is not None  # whatever does not go on was rendered
        return Prompt(tuple(messages), template.encode(full), full, fresh=bool(self.ids))

    def begin(self, prompt: Prompt) -> None:
        """Take in what is read."""
        if prompt.fresh:
            self.given_up_tok += len(self.ids)
            self.ids = []
        if prompt.messages[: len(self._seen)] != self._seen:
            self._sampled = {}
        self.ids += prompt.new_ids
        self._text = prompt.text
        self._seen = prompt.messages

    def end(self, message: Message, drawn: Sequence[int]) -> None:
        """Take in what was drawn, and the message that it was read as."""
        body, end = self._template.split_end(drawn)
        text = self._template.decode(body)
        self._sampled[len(self._seen)] = text
        self.ids += drawn
        self._text += text + self._template.decode(end)
        self._seen = (*self._seen, message)
        self._ended = bool(end)
