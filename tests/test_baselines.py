"""Plans, baselines, router, oracle and the evaluation that runs them, in a world of three kinds of task.

A sum is right by program for next to nothing; a capital is right by a search and any expert; a riddle only the dear
expert knows, at ten times the price.
"""

import asyncio
from dataclasses import replace

import pytest

from toolorchestra.chat.scripted import Scripted
from toolorchestra.configs import RolloutConfig
from toolorchestra.environments.qa import QuestionEnvironment
from toolorchestra.errors import JudgeError, ToolOrchestraError
from toolorchestra.evaluate import baselines as b
from toolorchestra.evaluate.evaluation import (
    Contestant,
    Entrant,
    Ledger,
    Score,
    evaluate_oracle,
    evaluate_policies,
    fit_knn,
    oracle_choice,
    play_plans,
    score_of,
)
from toolorchestra.evaluate.knn import KnnRouter, plan_rewards
from toolorchestra.evaluate.plans import GIVE_UP, PlannedPolicy, ask_plan, plans_for
from toolorchestra.orchestrator import Job, rollout
from toolorchestra.preferences import Preference
from toolorchestra.pricing import Price, Usage
from toolorchestra.records import from_json, to_json
from toolorchestra.tools.expert import ExpertTool, expert_spec
from toolorchestra.tools.submit import SubmitTool
from toolorchestra.types import Completion, Expert, Message, Observation, Outcome, Task, ToolSpec, Trajectory, Turn

LIMITS = RolloutConfig()
CHEAP = Expert("a", "cheap-model", Price(1, 1), "capitals", 1.0, simulated=True)
DEAR = Expert("b", "dear-model", Price(10, 10), "everything", 9.0, simulated=True)
ADD = "print(sum(numbers_in(task)))"
CODE = {"type": "string", "examples": [ADD, "print('no')"]}
PYTHON = ToolSpec("python", "runs code", {"type": "object", "properties": {"code": CODE}, "required": ["code"]})
SEARCH = ToolSpec("search", "finds passages", {"type": "object", "properties": {"query": {"type": "string"}}})
SUBMIT = SubmitTool().spec
OFFER = (PYTHON, expert_spec((CHEAP, DEAR)), SEARCH, SUBMIT)


class Python:
    """Knows what two programs print."""

    spec = PYTHON

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    async def __call__(self, arguments, view):
        self.ran.append(arguments["code"])
        numbers = [int(word) for word in view.task.instruction.split() if word.isdigit()]
        printed = str(sum(numbers)) if arguments["code"] == ADD else "no"
        return Observation("python", "code", printed, usage=Usage(cost_usd=1e-6, latency_s=0.1))


class Search:
    """Finds what a task's reference has to be found."""

    spec = SEARCH

    async def __call__(self, arguments, view):
        return Observation("search", "document", view.task.reference.get("passage", "nothing"))


class SmallWorld:
    """Three kinds of task; the experts' luck is always good, but it is asked for."""

    def __init__(self, offer=OFFER, kinds=("sum", "capital", "riddle"), count=4):
        self.offer = offer
        self.all_tasks = [self._task(kind, n) for n in range(count) for kind in kinds]
        self.lucks: list[int] = []
        self.ran: list[str] = []

    def _task(self, kind, n):
        if kind == "sum":
            return Task(f"sum-{n}", kind, f"add the numbers {n} and 20", {"gold": str(n + 20)}, tools=self.offer)
        gold = f"{kind}{n}"
        question = f"name the capital of country c{n}x" if kind == "capital" else f"solve this riddle about r{n}x"
        passage = {"passage": f"it is {gold}"} if kind == "capital" else {}
        return Task(f"{kind}-{n}", kind, question, {"gold": gold, **passage}, tools=self.offer)

    def with_all_experts(self, task):
        return replace(task, tools=OFFER)

    def environments(self, luck=0):
        self.lucks.append(luck)

        def make(task):
            tools = [self._live(spec, task) for spec in task.tools or ()]
            return QuestionEnvironment(task, tools, _score)

        return make

    def _live(self, spec, task):
        if spec.experts:
            return ExpertTool(spec.experts, {"cheap-model": _expert(task, False), "dear-model": _expert(task, True)})
        return {"python": Python(self.ran), "search": Search(), "submit": SubmitTool()}[spec.name]


def _expert(task, dear):
    def say(messages, tools, sampling):
        knows = dear or str(task.reference["gold"]) in messages[-1].content
        return Message("assistant", task.reference["gold"] if knows else "who knows")

    return Scripted(say, usage=Usage(input_tok=100, output_tok=100, latency_s=9.0 if dear else 1.0))


def _score(task, answer):
    if answer == "break the judge":
        raise JudgeError("the judge broke")
    return Outcome(float(answer == task.reference["gold"]))


def evaluate(entrants, world, seeds=(0,), **options):
    return asyncio.run(evaluate_policies(entrants, world.all_tasks, world, seeds, LIMITS, **options))


def play(policy, task, world):
    return asyncio.run(rollout(Job("x", task, 0), policy, world.environments()(task), LIMITS))


def solved_by_kind(scores):
    return {kind: all(s.solved for s in scores if s.kind == kind) for kind in sorted({s.kind for s in scores})}


# -- plans -----------------------------------------------------------------------------------------------------------


def test_plans_are_experts_programs_and_searches_then_experts():
    names = [plan.name for plan in plans_for(OFFER)]
    asks = ["ask cheap-model", "ask dear-model"]
    assert names == [*asks, "python 1", "python 2", "search, ask cheap-model", "search, ask dear-model"]


def test_plans_need_their_tools():
    assert [plan.name for plan in plans_for((expert_spec((DEAR,)), SUBMIT))] == ["ask dear-model"]
    assert [plan.name for plan in plans_for((PYTHON, SEARCH))] == ["python 1", "python 2"]


def test_a_plan_is_played_step_by_step_and_submitted():
    world = SmallWorld()
    plan = plans_for(OFFER)[4]
    trajectory = play(PlannedPolicy("p", lambda *_: plan), world.all_tasks[1], world)
    assert [c.name for t in trajectory.turns for c in t.completion.message.tool_calls] == ["search", "ask", "submit"]
    assert trajectory.turns[1].completion.message.tool_calls[0].arguments == {"expert": "a"}
    assert (trajectory.stop, trajectory.answer, trajectory.solved) == ("submitted", "capital0", True)
    assert trajectory.usage.cost_usd == pytest.approx(200e-6)  # the expert's 200 tokens, nothing for deciding


def test_an_expert_is_found_under_another_alias():
    renamed = (expert_spec((replace(CHEAP, alias="b"), replace(DEAR, alias="a"))), SUBMIT)
    world = SmallWorld(renamed, kinds=("riddle",))
    trajectory = play(PlannedPolicy("p", lambda *_: ask_plan("dear-model")), world.all_tasks[0], world)
    assert trajectory.turns[0].completion.message.tool_calls[0].arguments == {"expert": "a"}
    assert trajectory.solved


def test_a_plan_without_its_expert_fails_by_name():
    world = SmallWorld((expert_spec((CHEAP,)), SUBMIT))
    trajectory = play(PlannedPolicy("p", lambda *_: ask_plan("dear-model")), world.all_tasks[0], world)
    assert trajectory.stop == "error" and "'dear-model', which is not on offer" in trajectory.error


def test_nothing_to_submit_ends_in_giving_up():
    world = SmallWorld()
    plan = ask_plan("cheap-model", "no_such_tool")
    policy = PlannedPolicy("p", lambda *_: replace(plan, steps=(("no_such_tool", {}),)))
    trajectory = play(policy, world.all_tasks[0], world)
    assert (trajectory.stop, trajectory.answer) == ("answered", GIVE_UP)


# -- baselines -------------------------------------------------------------------------------------------------------


def test_idle_says_so_at_once_and_costs_nothing():
    scores = evaluate([b.idle()], SmallWorld())
    assert {(s.solved, s.cost_usd, s.turns, s.stop) for s in scores} == {(False, 0.0, 1, "answered")}


def test_an_expert_alone_is_offered_the_full_pool():
    world = SmallWorld((expert_spec((CHEAP,)), SUBMIT))
    scores = evaluate([b.expert_alone("dear-model")], world)
    assert all(s.solved for s in scores)
    assert {tuple(s.calls_by_model.items()) for s in scores} == {(("dear-model", 1),)}


def test_cheapest_and_dearest_go_by_the_price_of_a_typical_call():
    # 200 tokens in, 600 out: 1400 against 1000 millionths, though 4/1 looks dearer on the way in.
    talker, reader = Expert("t", "cheap-model", Price(1, 2), "", 1), Expert("r", "dear-model", Price(4, 0.333), "", 1)
    tools = (expert_spec((talker, reader)), SUBMIT)
    assert b.expected_cost_usd(talker) == pytest.approx(1400e-6)
    chosen = {e.contestant.name: _first_expert(e, tools) for e in (b.cheapest(), b.dearest())}
    assert chosen == {"cheapest": "r", "dearest": "t"}


def test_an_unknown_price_is_never_the_cheapest():
    tools = (expert_spec((replace(CHEAP, price=None), DEAR)), SUBMIT)
    assert (_first_expert(b.cheapest(), tools), _first_expert(b.dearest(), tools)) == ("b", "a")


def _first_expert(entrant, tools):
    world = SmallWorld(tools, kinds=("riddle",))
    trajectory = play(entrant.policy, world.all_tasks[0], world)
    return trajectory.turns[0].completion.message.tool_calls[0].arguments["expert"]


def test_every_baseline_plays_every_task_with_every_seed():
    world = SmallWorld()
    entrants = b.baselines(["cheap-model", "dear-model"], seed=0)
    scores = evaluate(entrants, world, seeds=(3, 4))
    assert [e.contestant.role for e in entrants] == ["idle", "expert", "expert", "rule", "rule", "random"]
    assert len({s.key for s in scores}) == len(scores) == 6 * 2 * 12
    assert all(s.solved is not None for s in scores)
    assert set(world.lucks) == {3, 4}
    random = [s for s in scores if s.policy == "random"]
    assert len({tuple(s.calls) for s in random}) > 2


# -- oracle and router -----------------------------------------------------------------------------------------------


def made(cost_usd, solved, latency_s=1.0, task=None):
    answered = Completion(Message("assistant", "x"), "stop", Usage(cost_usd=cost_usd, latency_s=latency_s), "p")
    outcome = None if solved is None else Outcome(float(solved))
    return Trajectory("t", task or Task("t", "k", "q", {}), "p", (Turn(answered),), "x", "answered", outcome)


def test_the_oracle_takes_the_cheapest_right_way():
    assert oracle_choice([made(1, True), made(0.2, True), made(0.1, False)]).usage.cost_usd == 0.2


def test_the_oracle_takes_the_cheapest_way_when_none_is_right():
    assert oracle_choice([made(1, False), made(0.2, False), made(0.1, None)]).usage.cost_usd == 0.2


def test_the_oracle_takes_the_faster_of_equals():
    assert oracle_choice([made(1, True, 5), made(1, True, 2)]).latency_s == 2


def test_the_oracle_finds_the_right_way_for_each_kind():
    world = SmallWorld()
    contestant = Contestant("oracle", "oracle", "oracle")
    scores = asyncio.run(evaluate_oracle(contestant, world.all_tasks, world, (0, 1), LIMITS))
    assert all(s.solved for s in scores) and len({s.key for s in scores}) == 24
    ways = {
        kind: {(*s.calls, *s.calls_by_model) for s in scores if s.kind == kind} for kind in ("sum", "capital", "riddle")
    }
    assert ways == {"sum": {("python",)}, "capital": {("search", "cheap-model")}, "riddle": {("dear-model",)}}
    assert len(world.ran) == 12 * 2  # two programs a task; they know no luck, so one seed's result serves both


def test_plan_rewards_are_those_of_a_group():
    task = Task("t", "k", "q", {}, preference=Preference(accuracy=1.0, cost=0.5, latency=0.2))
    plays = {"dear": made(10, True, 4, task), "cheap": made(5, True, 8, task), "wrong": made(0, False, 0, task)}
    # Costs 10, 5, 0: cheapness 0, 1/2, 1. Seconds 4, 8, 0: speed 1/2, 0, 1. Wrong is 0 whatever it costs.
    assert plan_rewards(plays) == pytest.approx({"dear": 1.1, "cheap": 1.25, "wrong": 0.0})
    assert "broken" not in plan_rewards(plays | {"broken": made(1, None, 1, task)})
    assert plan_rewards({}) == {}


def test_the_router_learns_the_way_of_each_kind_from_other_tasks():
    world = SmallWorld(count=9)
    train, test = world.all_tasks[:15], world.all_tasks[15:]
    router = asyncio.run(fit_knn(train, world, LIMITS, neighbours=3))
    world.all_tasks = test
    scores = evaluate([b.knn(router)], world)
    assert solved_by_kind(scores) == {"capital": True, "riddle": True, "sum": True}
    assert all(s.calls == {"python": 1} and not s.calls_by_model for s in scores if s.kind == "sum")
    assert all(
        s.calls == {"search": 1} and s.calls_by_model == {"cheap-model": 1} for s in scores if s.kind == "capital"
    )


def test_the_router_chooses_what_is_on_offer():
    router = KnnRouter(["solve it"], [{"ask dear-model": 1.0, "ask cheap-model": 0.2, "gone": 2.0}], neighbours=5)
    assert _name(router.choose("solve it", OFFER)) == "ask dear-model"
    assert _name(router.choose("solve it", (expert_spec((CHEAP,)),))) == "ask cheap-model"
    assert router.choose("solve it", (SUBMIT,)) is None


def test_the_router_reads_numbers_by_their_shape_and_falls_back_on_all_tasks():
    rewards = [{"ask cheap-model": 1.0}, {"ask dear-model": 0.5}]
    router = KnnRouter(["add 12 and 34", "who wrote this"], rewards, neighbours=1)
    # No word in common but the shape of numbers, so the first is nearer; the other plan has its mean over all.
    assert _name(router.choose("77 or 88", (expert_spec((CHEAP, DEAR)),))) == "ask cheap-model"
    assert _name(router.choose("77 or 88", (expert_spec((DEAR,)),))) == "ask dear-model"


def test_the_router_needs_training_tasks():
    with pytest.raises(ValueError, match="0 and 0"):
        KnnRouter([], [], 3)


def _name(plan):
    return plan.name if plan else None


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_a_score_names_tools_and_models_and_counts_no_submit():
    world = SmallWorld()
    plans = {plan.name: plan for plan in plans_for(OFFER)}
    plan = plans["search, ask dear-model"]
    score = score_of(play(PlannedPolicy("p", lambda *_: plan), world.all_tasks[2], world), seed=7)
    assert score == Score(
        policy="p",
        seed=7,
        task_id="riddle-0",
        kind="riddle",
        solved=True,
        cost_usd=pytest.approx(0.002),  # type: ignore[arg-type]
        latency_s=9.0,
        calls={"search": 1},
        calls_by_model={"dear-model": 1},
        turns=3,
        stop="submitted",
        simulated=True,
        well_formed_turns=3,
    )


def test_a_score_survives_the_disk():
    score = evaluate([b.expert_alone("cheap-model")], SmallWorld())[0]
    assert from_json(Score, to_json(score)) == score


def test_a_failed_judge_is_invalid_and_not_wrong():
    policy = Scripted(lambda messages, tools, sampling: Message("assistant", "break the judge"))
    scores = evaluate([Entrant(Contestant("p", "trained", "p"), policy)], SmallWorld())
    assert {s.solved for s in scores} == {None}


def test_when_all_rollouts_fail_it_says_why_and_writes_nothing():
    written = []
    entrant = Entrant(Contestant("p", "trained", "p"), Scripted([]))
    with pytest.raises(ToolOrchestraError, match=r"every rollout of 'p' failed.*nothing left to say"):
        evaluate([entrant], SmallWorld(), ledger=Ledger(on_score=written.append))
    assert not written


@pytest.mark.parametrize("kept", [0, 5, 7, 24])
def test_an_evaluation_that_was_cut_short_continues_to_the_same_lines(kept):
    def run(done):
        written, seen, world = [], [], SmallWorld()
        ledger = Ledger({s.key: s for s in done}, written.append, lambda *p: seen.append(p))
        scores = evaluate([b.random_legal(0)], world, seeds=(0, 1), at_once=5, ledger=ledger)
        return scores, written, seen, world

    scores, whole, seen, _ = run([])
    assert scores == whole and seen[-1] == ("random", 24, 24)
    again, rest, seen, world = run(whole[:kept])
    assert again == scores
    assert whole[:kept] + rest == whole
    assert seen[-1] == ("random", 24, 24)
    assert bool(world.ran) == (kept < 24)


def test_the_oracle_continues_as_well():
    contestant, written = Contestant("oracle", "oracle", "oracle"), []

    def run(done):
        world = SmallWorld(count=6)  # 18 tasks: two waves
        ledger = Ledger({s.key: s for s in done}, written.append)
        return asyncio.run(evaluate_oracle(contestant, world.all_tasks, world, (0, 1), LIMITS, ledger=ledger)), world

    scores, _ = run([])
    assert written == scores
    kept = written[:32]
    written.clear()
    again, world = run(kept)
    assert again == scores and written == scores[32:]
    assert len(world.ran) == 2 * 2  # the programs of the two tasks of the second wave


def test_play_plans_plays_what_is_wanted():
    world = SmallWorld()
    plays = asyncio.run(play_plans(world.all_tasks[:2], world.environments(), LIMITS, lambda p: p.name == "python 1"))
    assert [list(play) for play in plays] == [["python 1"], ["python 1"]]
    assert [play["python 1"].solved for play in plays] == [True, False]


def test_a_later_wave_that_fails_is_data():
    entrant = Entrant(Contestant("p", "trained", "p"), Scripted(["no idea"] * 10))
    scores = evaluate([entrant], SmallWorld(), at_once=5)
    assert [s.stop for s in scores] == ["answered"] * 10 + ["error"] * 2
    assert [s.solved for s in scores[-2:]] == [None, None]
