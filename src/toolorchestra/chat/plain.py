"""Conversations with tools, for a chat template that knows none.

The rule: the system text tells the tools and the form of a call, and the results of a turn stand together in one user
turn. It is used exactly where a template does not write the tools that it is given; whether such a template would let
the role `tool` pass is not asked, because its model has never seen that role.
In: messages and tools. Out: messages of the roles system, user and assistant.
Source: project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from toolorchestra.chat.forms import Form
from toolorchestra.prompts import show_results, tools_text
from toolorchestra.types import Message, ToolSpec


def plain_messages(messages: Sequence[Message], tools: Sequence[ToolSpec], form: Form) -> list[Message]:
    """Tell the tools in the system text and put each run of tool results into one user turn."""
    told = _with_tools(messages, tools_text(tools, form.example)) if tools else list(messages)
    merged: list[Message] = []
    for is_result, members in groupby(told, key=lambda m: m.role == "tool"):
        run = list(members)
        merged += [Message("user", show_results([m.content for m in run]))] if is_result else run
    return merged


def _with_tools(messages: Sequence[Message], text: str) -> list[Message]:
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message("system", text), *messages]
