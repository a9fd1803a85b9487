"""The forms in which families of models write their turns; each is one pair of functions, used wherever turns are read.

Which form a model writes is read off its chat template (`dialect`), never guessed from a text.
In: nothing. Out: forms.
Source: project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolorchestra.chat import parse, parse_json
from toolorchestra.chat.calls import CallKeys
from toolorchestra.types import Message


@dataclass(frozen=True, slots=True)
class Form:
    """How a family writes a turn.

    Attributes:
        name: what people call it.
        parse: reads a turn's text; total.
        render: writes a message as the family would.
        keys: the fields of a call.
        example: a call, as a policy is told it.
    """

    name: str
    parse: Callable[[str], tuple[Message, tuple[str, ...]]]
    render: Callable[[Message], str]
    keys: CallKeys
    example: str


HERMES = Form(
    "Hermes", parse.parse_message, parse.render_message, parse.KEYS, f"<tool_call>{parse.KEYS.example}</tool_call>"
)
BARE_JSON = Form(
    "bare JSON", parse_json.parse_message, parse_json.render_message, parse_json.KEYS, parse_json.KEYS.example
)
FORMS = (HERMES, BARE_JSON)
