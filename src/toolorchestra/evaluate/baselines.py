"""The policies that the trained one is compared with, on equal terms: same tasks, limits, tools and bills.

In: the models of the pool. Out: entrants. Those made of plans run no language model and so pay nothing for deciding,
which favours them.
Source: project; the released research code compares on unequal terms (arXiv 2511.21689, sec. 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from toolorchestra.chat.legal import RandomLegal
from toolorchestra.evaluate.evaluation import Contestant, Entrant
from toolorchestra.evaluate.knn import KnnRouter
from toolorchestra.evaluate.plans import Plan, PlannedPolicy, ask_plan
from toolorchestra.types import Expert, ToolSpec

TYPICAL_INPUT_TOK = 200
TYPICAL_OUTPUT_TOK = 600


def baselines(models: Sequence[str], seed: int) -> list[Entrant]:
    """Make every baseline that needs no fitting: idle, each expert alone, cheapest, dearest, random."""
    return [idle(), *(expert_alone(model) for model in models), cheapest(), dearest(), random_legal(seed)]


def idle() -> Entrant:
    """Make the policy that says at once that it does not know."""
    return Entrant(Contestant("idle", "idle", "does nothing"), PlannedPolicy("idle", lambda *_: None))


def expert_alone(model: str) -> Entrant:
    """Make the policy that always asks one expert; it is offered the full pool, so that it never lacks it."""
    policy = PlannedPolicy(f"expert {model}", lambda _, tools: ask_plan(model, _door(tools)))
    return Entrant(Contestant(policy.name, "expert", f"{model} alone"), policy, full_offer=True)


def cheapest() -> Entrant:
    """Make the policy that asks the cheapest expert on offer."""
    return _rule("cheapest", "always the cheapest on offer", min)


def dearest() -> Entrant:
    """Make the policy that asks the dearest expert on offer."""
    return _rule("dearest", "always the dearest on offer", max)


def random_legal(seed: int) -> Entrant:
    """Make the policy that calls tools at random, always in legal form."""
    return Entrant(Contestant("random", "random", "random legal play"), RandomLegal(seed, name="random"))


def knn(router: KnnRouter) -> Entrant:
    """Make a policy of a fitted router."""
    return Entrant(Contestant("knn", "knn", "kNN router"), PlannedPolicy("knn", router.choose))


def _rule(name: str, label: str, pick: Callable[..., Expert]) -> Entrant:
    def choose(_: str, tools: Sequence[ToolSpec]) -> Plan | None:
        experts = [e for spec in tools for e in spec.experts]
        return ask_plan(pick(experts, key=expected_cost_usd).model, _door(tools)) if experts else None

    return Entrant(Contestant(name, "rule", label), PlannedPolicy(name, choose))


def expected_cost_usd(expert: Expert) -> float:
    """Price a typical call, in US dollars; an unknown price counts as the highest, never as free."""
    if expert.price is None:
        return math.inf
    return expert.price.charge(TYPICAL_INPUT_TOK, TYPICAL_OUTPUT_TOK, seconds=expert.typical_latency_s)


def _door(tools: Sequence[ToolSpec]) -> str:
    """Name the tool through which experts are asked."""
    return next((spec.name for spec in tools if spec.experts), "ask")
