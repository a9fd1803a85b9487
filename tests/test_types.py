"""The nouns: what a turn, an outcome and a trajectory say about themselves."""

import math
from collections import Counter

import pytest

from toolorchestra.pricing import Price, Usage, bill
from toolorchestra.types import (
    Completion,
    FinishReason,
    Message,
    Observation,
    ObservationKind,
    Outcome,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

TASK = Task("t1", "sums", "What is 2 + 2?", {"answer": "4"})
CALL = ToolCall("c1", "python", {"code": "print(2 + 2)"})


def completion(
    message: Message | None = None, finish_reason: FinishReason = "stop", usage: Usage = Usage()
) -> Completion:
    return Completion(message or Message("assistant", "4"), finish_reason, usage, "scripted")


def observed(
    source: str, call_id: str = "c1", kind: ObservationKind = "text", usage: Usage = Usage(), simulated=False
) -> Observation:
    return Observation(source, kind, "4", call_id, usage, simulated)


def trajectory(*turns: Turn, outcome: Outcome | None = None) -> Trajectory:
    return Trajectory("r1", TASK, "scripted", turns, "4", "answered", outcome)


def test_a_turn_takes_the_policy_and_its_slowest_call():
    slow = Usage(100, 0, 10, 0.5, latency_s=7.0)
    fast = Usage(20, 0, 5, 0.25, latency_s=3.0)
    turn = Turn(
        completion(usage=Usage(8, 2, 4, 0.125, latency_s=1.0)), (observed("a", usage=fast), observed("b", usage=slow))
    )
    assert turn.usage == Usage(128, 2, 19, 0.875, latency_s=8.0)


def test_a_turn_without_calls_takes_the_policy_alone():
    assert Turn(completion(usage=Usage(latency_s=2.0))).usage == Usage(latency_s=2.0)


def test_a_turn_with_an_unpriced_or_estimated_call_says_so():
    usage = Turn(completion(), (observed("a", usage=bill(None, 10)), observed("b", usage=Usage(estimated=True)))).usage
    assert usage.unpriced
    assert usage.estimated


def test_latencies_of_turns_add_and_every_call_is_billed():
    call = bill(Price(1, 1), 1_000_000, latency_s=4.0)
    turn = Turn(
        completion(usage=Usage(cost_usd=0.5, latency_s=1.0)), (observed("a", usage=call), observed("b", usage=call))
    )
    record = trajectory(turn, turn, Turn(completion(usage=Usage(latency_s=0.5))))
    assert record.usage.cost_usd == 5.0
    assert record.latency_s == 10.5


def test_the_judges_usage_is_not_the_policys():
    record = trajectory(Turn(completion()), outcome=Outcome(1.0, usage=Usage(9, 9, 9, 9.0, 9.0)))
    assert record.usage == Usage()


def test_calls_are_counted_by_source_and_refused_ones_for_nobody():
    turn = Turn(
        completion(),
        (
            observed("python"),
            observed("expert:ada", "c2"),
            observed("python", "c3"),
            observed("search", "c4", kind="error"),
            observed("user", "", kind="user"),
        ),
    )
    assert trajectory(turn, Turn(completion(), (observed("python"),))).calls == Counter({"python": 3, "expert:ada": 1})


def test_one_simulated_answer_marks_the_trajectory():
    assert trajectory(Turn(completion(), (observed("a"), observed("b", simulated=True)))).simulated
    assert not trajectory(Turn(completion(), (observed("a"),))).simulated


@pytest.mark.parametrize("score", [math.nan, 1.1, -0.1, math.inf])
def test_an_outcome_outside_0_to_1_is_refused(score: float):
    with pytest.raises(ValueError, match="score must lie in"):
        Outcome(score)


@pytest.mark.parametrize(("score", "solved"), [(0.0, False), (0.99, False), (1.0, True)])
def test_solved_means_a_full_score(score: float, solved: bool):
    assert Outcome(score).solved is solved
    assert trajectory(outcome=Outcome(score)).solved is solved


def test_without_an_outcome_nothing_is_solved():
    assert not trajectory().solved


@pytest.mark.parametrize(
    "message",
    [
        Message("assistant", "The answer is 4."),
        Message("assistant", tool_calls=(CALL,)),
        Message("assistant", "Let me compute.", "Sums are easy.", (CALL, CALL)),
    ],
)
def test_text_and_readable_calls_are_well_formed(message: Message):
    assert Turn(completion(message), (observed("python"),)).is_well_formed


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(Turn(completion(Message("assistant", " \n"))), id="neither call nor text"),
        pytest.param(Turn(completion(Message("assistant", reasoning="Hm."))), id="thinking alone"),
        pytest.param(Turn(completion(finish_reason="length")), id="cut"),
        pytest.param(
            Turn(completion(Message("assistant", tool_calls=(CALL, ToolCall("c2", "", error="not JSON"))))),
            id="one unreadable call",
        ),
        pytest.param(
            Turn(completion(Message("assistant", tool_calls=(CALL,))), (observed("python", kind="error"),)),
            id="a refused call",
        ),
    ],
)
def test_what_is_not_well_formed(turn: Turn):
    assert not turn.is_well_formed
