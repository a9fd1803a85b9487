"""The texts that this package itself writes to models, by name, in one place.

Everything a policy is told about price and latency is written here from the objects that are billed.
Source: project; what stands in a description follows arXiv 2511.21689, sec. 3.1 and app. C.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from toolorchestra.pricing import Price
from toolorchestra.types import Expert, Message, Observation, ToolSpec

SYSTEM = "Solve the task by calling tools. Be right first, then cheap, then fast."

NUDGE = "Nothing was called and nothing was said. Call a tool, or give the final answer."

EXPERT_SYSTEM = "Answer the task. Use the gathered material if it helps. Reply with the final answer alone."

_TASK_HEAD = "Task:\n"
_MATERIAL_HEAD = "\n\nGathered material:\n"


def expert_messages(question: str, gathered: Sequence[Observation]) -> tuple[Message, Message]:
    """Write what an expert is asked: the task and, oldest first, what was gathered for it.

    Each observation stands under a line `## source`. Neither the question nor an observation can forge such a line or
    the head of the material: what looks like one is indented.
    """
    text = _TASK_HEAD + _defused(question)
    if gathered:
        text += _MATERIAL_HEAD + "\n".join(f"## {o.source}\n{_defused(o.content)}" for o in gathered)
    return Message("system", EXPERT_SYSTEM), Message("user", text)


def show_sections(sections: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Write titled sections, those that hold something; no entry can forge a title."""
    return "\n\n".join("\n".join([f"## {title}", *map(_defused, entries)]) for title, entries in sections if entries)


def _defused(text: str) -> str:
    return re.sub(r"^(?=## |Gathered material:)", " ", text, flags=re.MULTILINE)


def read_expert_message(text: str) -> tuple[str, str]:
    """Split what `expert_messages` wrote for the user role into question and gathered material."""
    question, _, material = text.removeprefix(_TASK_HEAD).partition(_MATERIAL_HEAD)
    return question, material


def show_price(price: Price | None) -> str:
    """Write a price as the policy sees it, for example `0.2/0.8 $/Mtok` (input/output) or `price unknown`."""
    if price is None:
        return "price unknown"
    parts = []
    if price.input_usd_per_mtok or price.output_usd_per_mtok:
        parts.append(f"{price.input_usd_per_mtok:.10g}/{price.output_usd_per_mtok:.10g} $/Mtok")
    if price.usd_per_call:
        parts.append(f"{price.usd_per_call:.10g} $/call")
    if price.usd_per_s:
        parts.append(f"{price.usd_per_s:.10g} $/s")
    return " + ".join(parts) or "free"


def show_expert(expert: Expert) -> str:
    """Write an expert's line: alias, price, latency and, once those are known, strengths."""
    return f"{expert.alias}: {show_price(expert.price)}; {expert.typical_latency_s:g} s; {expert.strengths}"


def describe(spec: ToolSpec) -> str:
    """Write a tool's description as the policy sees it, with price and latency, and a line for each expert."""
    text = spec.description
    if not spec.experts:
        return f"{text} ({show_price(spec.price)}; {spec.typical_latency_s:g} s)"
    return "\n".join([text, *map(show_expert, spec.experts)])


def tool_function(spec: ToolSpec) -> dict[str, Any]:
    """Write a tool as the JSON object that chat templates and wires expect."""
    function = {"name": spec.name, "description": describe(spec), "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def tools_text(tools: Sequence[ToolSpec], example: str) -> str:
    """Tell tools, one a line, and how to call them, to a model whose chat template does not."""
    lines = [json.dumps(tool_function(spec), ensure_ascii=False) for spec in tools]
    return "\n".join(
        [
            "You may call these tools, each described by a line of JSON:",
            "<tools>",
            *lines,
            "</tools>",
            f"A call is written as {example}. One turn may hold several; they run at the same time.",
            "What they return comes back between <tool_response> and </tool_response>, in the same order.",
        ]
    )


def show_results(contents: Sequence[str]) -> str:
    """Write the results of a turn's calls for a model that reads them in a user turn."""
    return "\n".join(f"<tool_response>\n{content}\n</tool_response>" for content in contents)
