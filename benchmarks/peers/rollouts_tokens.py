"""What an in-process policy spends on text in a conversation of so many turns, its model left out.

The bundled tokenizer and the transcript do what they do in `chat/local`: lay out the prompt of each turn, encode what
is new, and read what was drawn. What is drawn is given here, as ids.
In: how many turns, of how many conversations one after another. Out: one line of JSON: CPU seconds of all turns, and of
the last turn the characters given to the tokenizer and the ids that were added.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from stubs import query, result
from transformers import AutoTokenizer

from toolorchestra.chat.template import ChatTemplate
from toolorchestra.chat.transcript import Transcript
from toolorchestra.models.shelf import find_model
from toolorchestra.prompts import SYSTEM
from toolorchestra.types import Message, ToolCall, ToolSpec

_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOOL = ToolSpec("look", "looks something up", _SCHEMA)


class Counted:
    """A tokenizer that counts the characters it encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.chars = 0
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Encode a text."""
        self.chars += len(text)
        return self._tokenizer.encode(text, **options)


def main() -> None:
    """Play the conversations and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, required=True, help="turns of the conversation")
    parser.add_argument("--conversations", type=int, default=1, help="conversations, one after another")
    options = parser.parse_args()
    tokenizer = Counted(AutoTokenizer.from_pretrained(find_model("nano")))
    template = ChatTemplate(tokenizer, "nano")
    _play(template, tokenizer, 2)  # what is built once is not a turn's
    played = [_play(template, tokenizer, options.turns) for _ in range(options.conversations)]
    chars, new_tok, _ = played[-1][-1]
    cpu_s = sum(cpu_s for conversation in played for _, _, cpu_s in conversation)
    print(json.dumps({"cpu_s": cpu_s, "chars_of_last_turn": chars, "new_tok_of_last_turn": new_tok}))


def _play(template: ChatTemplate, tokenizer: Counted, turns: int) -> list[tuple[int, int, float]]:
    """Play one conversation: for each turn the characters encoded, the ids added, and CPU seconds."""
    transcript, each = Transcript(template), []
    messages = [Message("system", SYSTEM), Message("user", "Look it up.")]
    for turn in range(turns):
        call = Message("assistant", tool_calls=(ToolCall("call_0", "look", {"query": query(0, turn)}),))
        drawn = template.encode_turn(call)
        tokenizer.chars, began_s = 0, time.process_time()
        prompt = transcript.prompt(messages, [_TOOL])
        transcript.begin(prompt)
        message, _ = template.decode_turn(drawn)
        transcript.end(message, drawn)
        each.append((tokenizer.chars, len(prompt.new_ids), time.process_time() - began_s))
        messages += [message, Message("tool", result(0, turn), tool_call_id="call_0")]
    return each


if __name__ == "__main__":
    main()
