"""What a chat template can do, found out by writing short probes with it.

In: a function that writes conversations with the template. Out: a `Dialect`. Nothing is guessed from a model's name.
Source: project.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from toolorchestra.chat.forms import FORMS, HERMES, Form
from toolorchestra.errors import ConfigError

Plain = Mapping[str, Any]
"""A message or a tool as a chat template takes it."""

Write = Callable[[Sequence[Plain], Sequence[Plain], bool], str]
"""Writes messages and tools with a template, and, if asked to, the beginning of the assistant's turn."""

REFUSALS = (TemplateError, TypeError)
"""What a template raises on a conversation that it does not know; joining text and None is a TypeError."""

MARK = "zq-turn-mark"
"""An assistant's text that stands nowhere else."""

_NAME, _ARGUMENTS = "zq_probe", {"zq_key": "zq_value"}
_USER: Plain = {"role": "user", "content": "?"}
_TOOL: Plain = {
    "type": "function",
    "function": {"name": _NAME, "description": "?", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a chat template wants to be spoken to.

    Attributes:
        form: how its family writes turns.
        tells_tools: it writes the tools that it is given; then the role `tool` is its business too.
        writes_calls: it writes calls that it is given as data.
        closing: the special token with which it ends an assistant's turn.
        lead: what it writes of the assistant's turn itself when it asks for one, such as `<think>`.
    """

    form: Form
    tells_tools: bool
    writes_calls: bool
    closing: str
    lead: str

    @property
    def family(self) -> str:
        """Say in a few words what kind of template it is."""
        tools = "tools told by the template" if self.tells_tools else "tools told in the system text"
        return f"{self.form.name} calls, {tools}"


def find_dialect(write: Write, special: Collection[str], name: str) -> Dialect:
    """Probe a template.

    Raises:
        ConfigError: it cannot hold a conversation, or it writes calls in a form that is not known; names `name`.
    """
    closing = _closing(write, special, name)
    form = _form(write, closing, name)
    return Dialect(form or HERMES, _tells_tools(write), form is not None, closing, _lead(write))


def _closing(write: Write, special: Collection[str], name: str) -> str:
    conversation = [{"role": "system", "content": "?"}, _USER, {"role": "assistant", "content": MARK}]
    try:
        text = write(conversation, (), False)
    except REFUSALS as error:
        raise ConfigError(
            f"{name}: its chat template refuses a system, a user and an assistant turn: {error}"
        ) from None
    longest_first = sorted(special, key=len, reverse=True)
    found = re.match("|".join(map(re.escape, longest_first)) or "(?!)", text[text.rfind(MARK) + len(MARK) :])
    if MARK not in text or found is None:
        raise ConfigError(
            f"{name}: its chat template ends an assistant's turn with no special token, so nothing would end a turn; "
            "use a template that does"
        )
    return found[0]


def _form(write: Write, closing: str, name: str) -> Form | None:
    """Find the form that reads a call as the template writes it; None when it writes no calls."""
    call = {"id": "call00000", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    try:
        text = write([_USER, {"role": "assistant", "content": "", "tool_calls": [call]}], (), False)
        start = len(write([_USER], (), True).removesuffix(_lead(write)))
    except REFUSALS:
        return None
    if _NAME not in text:
        return None
    turn = text[start : text.rfind(closing)]
    for form in FORMS:
        calls = form.parse(turn)[0].tool_calls
        if [(c.name, dict(c.arguments)) for c in calls] == [(_NAME, _ARGUMENTS)]:
            return form
    known = " or ".join(f"{form.name} ({form.example})" for form in FORMS)
    raise ConfigError(f"{name}: its chat template writes calls as {turn.strip()!r}; the known forms are {known}")


def _tells_tools(write: Write) -> bool:
    try:
        return _NAME in write([_USER], [_TOOL], True)
    except REFUSALS:
        return False


def _lead(write: Write) -> str:
    asked = write([_USER], (), True)[len(write([_USER], (), False)) :]
    at = asked.find("<think>")
    return asked[at:] if at >= 0 else ""
