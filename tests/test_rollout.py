"""The rollout loop with scripted policies: what runs, what is told to the policy, and why it stops."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from toolorchestra.chat.scripted import Scripted
from toolorchestra.configs import RolloutConfig
from toolorchestra.environments.qa import QuestionEnvironment
from toolorchestra.errors import JudgeError, ModelError, ToolError
from toolorchestra.orchestrator import Job, ask, rollout, rollout_many
from toolorchestra.preferences import Preference
from toolorchestra.pricing import Price, Usage, bill
from toolorchestra.protocols import Tool, View
from toolorchestra.tools.expert import ExpertTool
from toolorchestra.tools.submit import SubmitTool
from toolorchestra.types import Expert, Message, Observation, Outcome, Task, ToolCall, ToolSpec, Trajectory

LIMITS = RolloutConfig(turns=8, call_deadline_s=0.2, deadline_s=2.0)
TASK = Task("t1", "sums", "What is 6 * 7?", {"gold": "42"})


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


_MOOD = {"type": "string", "enum": ["glad", "calm"]}


class Echo:
    """A tool that says what it was given, after a while, or fails as told."""

    def __init__(self, name: str = "echo", act: Callable[[str], str] = str, seconds: float = 0.0) -> None:
        schema = {
            "type": "object",
            "properties": {"text": {"type": "string"}, "times": {"type": "integer"}, "mood": _MOOD},
            "required": ["text"],
            "additionalProperties": False,
        }
        self.spec = ToolSpec(name, "echoes", schema)
        self._act = act
        self._seconds = seconds
        self.views: list[View] = []

    async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
        self.views.append(view)
        await asyncio.sleep(self._seconds)
        text = self._act(str(arguments["text"])) * int(arguments.get("times", 1))
        return Observation(self.spec.name, "text", text, usage=Usage(cost_usd=0.01, latency_s=2.0))


def run(
    script: Sequence[str] | Scripted,
    tools: Sequence[Tool] | None = None,
    limits: RolloutConfig = LIMITS,
    task: Task = TASK,
    scorer: Callable[[Task, str], Outcome] | None = lambda task, answer: Outcome(
        float(answer == task.reference["gold"])
    ),
) -> Trajectory:
    policy = script if isinstance(script, Scripted) else Scripted(script)
    environment = QuestionEnvironment(task, [Echo(), SubmitTool()] if tools is None else tools, scorer)
    return asyncio.run(rollout(Job("r", task, seed=1), policy, environment, limits))


def told(trajectory: Trajectory, turn: int = 0) -> str:
    return trajectory.turns[turn].observations[0].content


def test_a_spoken_answer_ends_the_rollout():
    done = run(["42"])
    assert (done.stop, done.answer, done.solved) == ("answered", "42", True)


def test_submit_hands_on_the_latest_result():
    done = run([call("echo", text="42"), call("submit")])
    assert (done.stop, done.answer, done.solved) == ("submitted", "42", True)
    assert done.calls == {"echo": 1, "submit": 1}
    assert done.usage.cost_usd == pytest.approx(0.01)


def test_submit_with_nothing_is_told_and_the_rollout_goes_on():
    done = run([call("submit"), call("submit", answer="42")])
    assert "nothing to submit" in told(done)
    assert done.solved


def test_several_calls_run_at_once_and_keep_the_models_order():
    slow, fast = Echo("slow", seconds=0.05), Echo("fast")
    done = run([call("slow", text="a") + call("fast", text="b"), "42"], [slow, fast])
    assert [o.source for o in done.turns[0].observations] == ["slow", "fast"]
    assert [o.call_id for o in done.turns[0].observations] == ["call_0", "call_1"]
    assert done.latency_s == 2.0  # they overlap: the longer one counts, once
    assert done.usage.cost_usd == pytest.approx(0.02)  # money adds up


def test_every_call_of_a_turn_runs_while_the_others_do():
    """Each waits for all the others, so that one after another they would never end."""
    count = 16
    started = asyncio.Semaphore(0)

    class Meeting(Echo):
        async def __call__(self, arguments: Mapping[str, Any], view: View) -> Observation:
            started.release()
            while started._value < count:
                await asyncio.sleep(0)
            return await super().__call__(arguments, view)

    done = run(["".join(call("echo", text=str(n)) for n in range(count)), "42"], [Meeting()])
    assert [o.content for o in done.turns[0].observations] == [str(n) for n in range(count)]


@pytest.mark.parametrize("ids", [("", "", ""), ("a", "a", "a"), ("x", "", "x"), ("c", "b", "a")])
def test_results_are_paired_by_position_whatever_the_ids(ids: tuple[str, ...]):
    calls = tuple(ToolCall(i, "echo", {"text": str(n)}) for n, i in enumerate(ids))
    done = run(Scripted([Message("assistant", tool_calls=calls), "42"]), [Echo()])
    (turn, _) = done.turns
    assert [o.content for o in turn.observations] == ["0", "1", "2"]
    asked = [c.id for c in turn.completion.message.tool_calls]
    assert [o.call_id for o in turn.observations] == asked and len({*asked, ""}) == 4
    assert done.calls == {"echo": 3}


def test_a_broken_call_takes_nothing_from_its_neighbour():
    done = run(['<tool_call>{"name": "echo", oops</tool_call>' + call("echo", text="fine"), "42"])
    broken, valid = done.turns[0].observations
    assert broken.kind == "error" and "not valid JSON" in broken.content
    assert valid.content == "fine"
    assert not done.turns[0].is_well_formed


def test_a_call_quoted_in_the_thinking_never_runs():
    tool = Echo()
    run([f"<think>maybe {call('echo', text='quoted')}</think>{call('echo', text='real')}", "42"], [tool])
    assert len(tool.views) == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (call("nosuch", text="x"), "The tools are: echo, submit"),
        (call("echo"), "'text' is missing"),
        ('<tool_call>{"name": "echo"}</tool_call>', "'text' is missing"),
        ('<tool_call>{"name": "echo", "arguments": [1]}</tool_call>', '"arguments": {…}'),
        (call("echo", text="x", mood="sad"), "must be one of glad, calm"),
        (call("echo", text="x", colour="red"), "no argument 'colour'"),
        (call("echo", text="x", times="abc"), "must be of type integer"),
        ("<tool_call>{}</tool_call>", "names no tool"),
    ],
)
def test_a_wrong_call_is_answered_with_what_is_valid(said: str, expected: str):
    assert expected in told(run([said, "42"]))


def test_a_number_in_quotes_is_mended_and_noted():
    done = run([call("echo", text="x", times="3"), "42"])
    assert told(done) == "xxx"
    assert any("times" in notice for notice in done.notices)


def test_a_tools_error_is_told_to_the_policy():
    def refuse(text: str) -> str:
        raise ToolError(f"{text} is closed today.")

    done = run([call("echo", text="shop"), "42"], [Echo(act=refuse)])
    assert told(done) == "shop is closed today." and done.solved


def test_a_slow_call_is_given_up_at_its_deadline():
    done = run([call("echo", text="x"), "42"], [Echo(seconds=5)])
    assert "0.2 s" in told(done) and done.stop == "answered"


def test_a_bug_in_a_tool_becomes_data():
    def crash(text: str) -> str:
        raise RuntimeError("boom")

    done = run([call("echo", text="x")], [Echo(act=crash)])
    assert (done.stop, done.outcome) == ("error", None)
    assert "boom" in done.error and len(done.turns) == 1


def test_a_policy_that_fails_becomes_data():
    done = run([])
    assert done.stop == "error" and ModelError.__name__ in done.error


def test_a_rollout_that_never_returns_ends_at_its_deadline_and_counts_as_unsolved():
    limits = RolloutConfig(call_deadline_s=10, deadline_s=0.05)
    done = run([call("echo", text="x")], [Echo(seconds=5)], limits)
    assert (done.stop, done.solved) == ("deadline", False) and done.outcome is not None


def test_an_unknown_tool_five_times_running():
    done = run(Scripted([call("nosuch", n=1), call("nosuch", n=2)] * 4))
    assert (done.stop, len(done.turns)) == ("unknown_tool", 5)


def test_the_same_call_three_times_running():
    done = run(Scripted([call("echo", text="x")], repeat=True))
    assert (done.stop, len(done.turns)) == ("repeated_call", 3)


def test_silence_is_nudged_once_and_then_ends_the_rollout_at_its_cost():
    done = run(Scripted([""], usage=Usage(cost_usd=0.5), repeat=True))
    assert (done.stop, len(done.turns), done.usage.cost_usd) == ("no_progress", 2, 1.0)


def test_the_limit_of_turns():
    done = run(Scripted([call("echo", text="x"), call("echo", text="y")] * 9))
    assert (done.stop, len(done.turns), done.solved) == ("turn_limit", 8, False)


def test_two_megabytes_are_cut_for_the_policy_with_head_and_tail():
    seen: list[str] = []

    def script(messages, tools, sampling) -> str:
        seen.append(messages[-1].content)
        return call("echo", text="ä" * 2_000_000 + "end") if len(seen) == 1 else "42"

    run(Scripted(script), limits=RolloutConfig(observation_chars=500))
    assert len(seen[1]) <= 500 and seen[1].startswith("ä") and seen[1].endswith("end") and "left out" in seen[1]


def test_a_judge_that_fails_leaves_no_outcome_and_keeps_the_answer():
    def fail(task: Task, answer: str) -> Outcome:
        raise JudgeError("the judge timed out")

    done = run(["42"], scorer=fail)
    assert (done.outcome, done.answer) == (None, "42") and "timed out" in done.error


def test_an_empty_answer_is_wrong_without_asking_the_judge():
    def never(task: Task, answer: str) -> Outcome:
        raise AssertionError("asked")

    done = run(Scripted([call("echo", text="x"), call("echo", text="y")] * 9), scorer=never)
    assert done.outcome is not None and done.outcome.score == 0


def test_a_preference_for_a_tool_that_the_task_lacks_is_a_notice():
    task = Task("t", "sums", "?", {"gold": "42"}, preference=Preference(tools={"web": 1.0, "echo": 0.5}))
    done = run(["42"], task=task)
    assert [n for n in done.notices if "web" in n] and not [n for n in done.notices if "echo" in n] and done.solved


def test_tools_see_the_task_and_the_turns_before():
    tool = Echo()
    run([call("echo", text="a"), call("echo", text="b"), "42"], [tool])
    assert [len(v.turns) for v in tool.views] == [0, 1]
    assert tool.views[1].observations[0].content == "a"


class Counted(Scripted):
    """An expert that uses 100 input and 10 output tokens in 3 s and reports no price of its own."""

    def __init__(self) -> None:
        super().__init__(["42"], usage=Usage(100, 0, 10, 0.0, 3.0, unpriced=True), repeat=True)


def test_what_an_expert_is_shown_to_cost_is_what_is_billed():
    expert = Expert("amber", "m", Price(2.0, 8.0), "strong: sums", 3.0, simulated=True)
    done = run([call("ask", expert="amber"), call("submit")], [ExpertTool([expert], {"m": Counted()}), SubmitTool()])
    used = done.turns[0].observations[0].usage
    assert used == bill(expert.price, 100, 10, 0, 3.0)
    assert used.cost_usd == pytest.approx(100 * 2e-6 + 10 * 8e-6)
    assert done.calls == {"ask:amber": 1, "submit": 1} and done.simulated and done.solved


def test_an_expert_without_a_price_makes_the_total_a_lower_bound():
    expert = Expert("amber", "m", None, "", 3.0)
    done = run([call("ask", expert="amber"), call("submit")], [ExpertTool([expert], {"m": Counted()}), SubmitTool()])
    assert done.usage.unpriced


@pytest.mark.parametrize("alias", ["", "nobody"])
def test_an_unknown_expert_is_an_invalid_call_and_costs_nothing(alias: str):
    expert = Expert("amber", "m", Price(2.0, 8.0), "", 3.0)
    done = run([call("ask", expert=alias), "42"], [ExpertTool([expert], {"m": Counted()})])
    assert "amber" in told(done) and done.usage.cost_usd == 0 and not done.calls


def test_many_rollouts_come_back_in_order_and_one_failure_harms_no_other():
    def script(messages, tools, sampling) -> str:
        if "3" in messages[-1].content:
            raise ModelError("down")
        return "42"

    tasks = [Task(f"t{i}", "sums", f"number {i}", {"gold": "42"}) for i in range(6)]
    jobs = [Job(t.id, t, seed=0) for t in tasks]
    seen: list[str] = []

    async def many() -> list[Trajectory]:
        def make(task: Task) -> QuestionEnvironment:
            return QuestionEnvironment(task, [Echo()], lambda task, answer: Outcome(1.0))

        return await rollout_many(jobs, Scripted(script), make, LIMITS, at_once=4, on_done=lambda t: seen.append(t.id))

    done = asyncio.run(many())
    assert [t.id for t in done] == [t.id for t in tasks] and sorted(seen) == [t.id for t in tasks]
    assert [t.stop for t in done] == ["answered"] * 3 + ["error"] + ["answered"] * 2


def test_one_of_eight_that_never_returns_holds_up_no_other():
    tasks = [Task(f"t{n}", "sums", f"number {n}", {"gold": "42"}) for n in range(8)]
    limits = RolloutConfig(call_deadline_s=10, deadline_s=0.2)

    def script(messages, tools, sampling) -> str:
        return call("echo", text="x") if "3" in messages[1].content else "42"

    def make(task: Task) -> QuestionEnvironment:
        return QuestionEnvironment(task, [Echo(seconds=60)], lambda _, answer: Outcome(float(answer == "42")))

    jobs = [Job(t.id, t, seed=0) for t in tasks]
    done = asyncio.run(rollout_many(jobs, Scripted(script), make, limits))
    assert [t.stop for t in done] == ["answered"] * 3 + ["deadline"] + ["answered"] * 4
    assert [t.solved for t in done] == [t.stop == "answered" for t in done]


def test_ask_uses_the_same_loop():
    environment = QuestionEnvironment(TASK, [Echo(), SubmitTool()], None)
    done = asyncio.run(ask(TASK, Scripted([call("echo", text="42"), call("submit")]), environment, LIMITS))
    assert (done.answer, done.stop, done.outcome) == ("42", "submitted", None)
