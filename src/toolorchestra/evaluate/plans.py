"""Fixed plans: the short sequences of calls that baselines and the oracle choose from.

A plan is each expert alone, each example program of the interpreter alone, or a search followed by an expert. An expert
is named by its MODEL, since its alias differs from task to task; the alias is looked up when the plan is played.
In: the tools on offer. Out: plans, and a `ChatModel` that plays them.
Source: project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolorchestra.errors import ModelError
from toolorchestra.pricing import Usage
from toolorchestra.protocols import Sampling
from toolorchestra.types import Completion, Message, ToolCall, ToolSpec

GIVE_UP = "I do not know."
"""What a policy without a plan answers."""

Step = tuple[str, Mapping[str, Any]]
"""A tool's name and the arguments of its call."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A sequence of calls, after which the latest observation is submitted.

    Attributes:
        name: the same in every task that offers the same tools.
        steps: the calls, in order; the argument `expert` holds a model.
    """

    name: str
    steps: tuple[Step, ...]


def ask_plan(model: str, tool: str = "ask") -> Plan:
    """Make the plan that asks one expert."""
    return Plan(f"ask {model}", ((tool, {"expert": model}),))


def plans_for(tools: Sequence[ToolSpec]) -> list[Plan]:
    """List the plans that an offer allows: experts alone, programs alone, search then experts."""
    asks = [ask_plan(expert.model, spec.name) for spec in tools for expert in spec.experts]
    has_search = any(spec.name == "search" for spec in tools)
    searches = [Plan(f"search, {ask.name}", (("search", {}), *ask.steps)) for ask in asks if has_search]
    return [*asks, *_program_plans(tools), *searches]


def _program_plans(tools: Sequence[ToolSpec]) -> list[Plan]:
    examples = next((_code_examples(spec) for spec in tools if spec.name == "python"), ())
    return [Plan(f"python {n}", (("python", {"code": code}),)) for n, code in enumerate(examples, 1)]


def _code_examples(spec: ToolSpec) -> Sequence[str]:
    return spec.parameters.get("properties", {}).get("code", {}).get("examples", ())


def asks_expert(plan: Plan) -> bool:
    """Tell whether the plan calls an expert; a plan that does not has the same result whatever the experts' luck."""
    return any("expert" in arguments for _, arguments in plan.steps)


class PlannedPolicy:
    """A `ChatModel` that plays the next step of a plan each turn, then submits.

    No language model runs, so its own usage is zero. This favours the baselines that are made of it: a policy that
    decides by reading is billed for reading.

    Args:
        name: what reports call it.
        choose: picks a plan from the question and the offer, the same whenever it is asked; None answers `GIVE_UP`.
    """

    def __init__(self, name: str, choose: Callable[[str, Sequence[ToolSpec]], Plan | None]) -> None:
        self._name = name
        self._choose = choose

    @property
    def name(self) -> str:
        """What reports call it."""
        return self._name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Play the next step; how many were played shows in the conversation.

        Raises:
            ModelError: the plan needs an expert that is not on offer.
        """
        question = next((m.content for m in messages if m.role == "user"), "")
        plan = self._choose(question, tools)
        played = sum(m.role == "assistant" for m in messages)
        return Completion(self._message(plan, played, tools), "stop", Usage(), self._name)

    def _message(self, plan: Plan | None, played: int, tools: Sequence[ToolSpec]) -> Message:
        if plan is None or played > len(plan.steps):  # the latter: there was nothing to submit
            return Message("assistant", GIVE_UP)
        submit = next((spec.name for spec in tools if spec.ends), "submit")
        name, arguments = (*plan.steps, (submit, {}))[played]
        call = ToolCall(f"call-{played + 1}", name, _with_alias(name, arguments, tools))
        return Message("assistant", tool_calls=(call,))


def _with_alias(name: str, arguments: Mapping[str, Any], tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Replace the expert's model by the alias that this offer gives it."""
    if "expert" not in arguments:
        return dict(arguments)
    model = arguments["expert"]
    experts = [e for spec in tools if spec.name == name for e in spec.experts if e.model == model]
    if not experts:
        raise ModelError(f"the plan asks expert '{model}', which is not on offer")
    return {**arguments, "expert": experts[0].alias}
