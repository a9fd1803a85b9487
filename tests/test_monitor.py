"""The collapse alarm, with counts worked by hand."""

import math

import pytest

from toolorchestra.configs import TrainConfig
from toolorchestra.pricing import Price, Usage
from toolorchestra.train.monitor import calls_by_model, collapse_alarms, entropy, first_moves, shares, step_figures
from toolorchestra.types import (
    Completion,
    Expert,
    FinishReason,
    Message,
    Observation,
    Outcome,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)

CONFIG = TrainConfig()
COLLAPSED = {"a": 3055, "b": 5, "c": 3, "d": 1}
BALANCED = {"a": 30, "b": 25, "c": 25, "d": 20}


def test_shares_and_entropy_by_hand():
    assert shares({"a": 1, "b": 3}) == {"b": 0.75, "a": 0.25}
    assert shares({}) == {}
    assert entropy({"a": 1, "b": 1}) == pytest.approx(math.log(2))
    assert entropy({"a": 7}) == 0
    assert entropy({"a": 7, "b": 0}) == 0
    assert entropy(dict.fromkeys("abcd", 5)) == pytest.approx(math.log(4))
    assert shares(COLLAPSED)["a"] == pytest.approx(3055 / 3064)
    assert entropy(COLLAPSED) == pytest.approx(0.02280, abs=5e-5)  # 0.00293 + 0.01048 + 0.00679 + 0.00262


def test_one_expert_taking_nearly_all_calls_fires_with_share_and_entropy():
    (share, spread) = collapse_alarms(COLLAPSED, COLLAPSED, 0.0, CONFIG)
    assert "a takes 100%" in share and "entropy 0.02" in share
    assert "0.02 nats" in spread


def test_balanced_calls_are_quiet():
    assert collapse_alarms(BALANCED, BALANCED, 0.1, CONFIG) == []


def test_malformed_turns_fire():
    assert collapse_alarms(BALANCED, BALANCED, 0.6, CONFIG) == ["invalid: 60% of turns are malformed"]


def test_no_calls_at_all_are_no_collapse_of_experts():
    assert collapse_alarms({}, {}, 0.0, CONFIG) == []


def test_an_alarm_fires_above_its_threshold_and_not_at_it():
    at, above = {"a": 90, "b": 10}, {"a": 91, "b": 9}
    assert collapse_alarms(at, {}, CONFIG.collapse_invalid, CONFIG) == []
    (alarm,) = collapse_alarms(above, {}, 0.0, CONFIG)
    assert "91%" in alarm and "0.30" in alarm


def test_experts_that_are_never_called_count_as_passed_over():
    offered = {"a": 3064, "b": 0, "c": 0, "d": 0}
    assert len(collapse_alarms(offered, offered, 0.0, CONFIG)) == 2


SPECS = (
    ToolSpec("ask", "", {}, experts=(Expert("amber", "m1", Price(1, 1), "", 1.0),)),
    ToolSpec("python", "", {}),
)
OTHER = (ToolSpec("ask", "", {}, experts=(Expert("amber", "m2", Price(1, 1), "", 1.0),)),)


def turn(
    *observations: Observation, cost_usd: float = 0.0, latency_s: float = 0.0, reason: FinishReason = "stop"
) -> Turn:
    return Turn(Completion(Message("assistant", "hm"), reason, Usage(0, 0, 0, cost_usd, latency_s), "p"), observations)


def seen(source: str, cost_usd: float = 0.0, latency_s: float = 0.0) -> Observation:
    return Observation(source, "answer", "x", "call_0", Usage(0, 0, 0, cost_usd, latency_s))


def trajectory(*turns: Turn, outcome: Outcome | None, specs: tuple[ToolSpec, ...] = SPECS) -> Trajectory:
    return Trajectory("r", Task("t", "k", "?", {}, tools=specs), "p", turns, "", "turn_limit", outcome)


def test_calls_are_counted_by_the_model_behind_the_alias():
    first = trajectory(turn(seen("ask:amber"), seen("python")), turn(seen("ask:amber")), outcome=None)
    second = trajectory(turn(seen("ask:amber")), outcome=None, specs=OTHER)
    refused = trajectory(turn(Observation("ask:amber", "error", "no", "call_0")), outcome=None)
    assert calls_by_model([first, second, refused]) == {"m1": 2, "python": 1, "m2": 1}


def test_a_steps_figures_by_hand():
    """An invalid rollout is counted, its turns too, but its cost, seconds and answer are in no mean."""
    solved = trajectory(
        turn(seen("ask:amber", 0.02, 4.0), seen("python", 0.0, 1.0), cost_usd=0.01, latency_s=1.0),
        turn(latency_s=2.0),
        outcome=Outcome(1.0),
    )
    missed = trajectory(turn(cost_usd=0.03, latency_s=1.0, reason="length"), outcome=Outcome(0.5))
    invalid = trajectory(turn(cost_usd=9.0, latency_s=99.0), outcome=None)
    assert step_figures([solved, missed, invalid]) == pytest.approx(
        {
            "accuracy": 1 / 2,
            "cost_usd": (0.03 + 0.03) / 2,
            "latency_s": (1 + 4 + 2 + 1) / 2,  # the two calls of a turn overlap
            "turns": 4 / 3,
            "invalid_rollouts": 1,
            "malformed_turns": 1 / 4,
            "calling_turns": 0,
        }
    )


def test_a_call_that_cannot_be_read_makes_its_turn_malformed():
    message = Message("assistant", tool_calls=(ToolCall("call_0", "", error="not valid JSON"),))
    broken = Turn(Completion(message, "stop", Usage(), "p"))
    assert step_figures([trajectory(broken, turn(), outcome=Outcome(0.0))])["malformed_turns"] == 0.5


def test_a_turn_that_chats_is_well_formed_and_calls_nothing():
    call = Turn(Completion(Message("assistant", tool_calls=(ToolCall("call_0", "search"),)), "stop", Usage(), "p"))
    chat = Turn(Completion(Message("assistant", "Good day."), "stop", Usage(), "p"))
    figures = step_figures([trajectory(call, chat, chat, outcome=Outcome(0.0))])
    assert (figures["malformed_turns"], figures["calling_turns"]) == (0, pytest.approx(1 / 3))


def test_a_step_without_trajectories_has_figures_of_zero():
    assert set(step_figures([]).values()) == {0}


def test_first_moves_by_hand():
    """Only the first turn counts, also when its tool does not exist; a turn without a readable call is `none`."""

    def play(kind: str, solved: bool, *calls: ToolCall) -> Trajectory:
        turns = [Turn(Completion(Message("assistant", tool_calls=(c,)), "stop", Usage(), "p"), ()) for c in calls]
        return Trajectory("r", Task("t", kind, "?", {}), "p", tuple(turns), "", "submitted", Outcome(float(solved)))

    search, ask, unread = ToolCall("0", "search"), ToolCall("0", "ask"), ToolCall("0", "ask", error="no JSON")
    moves = first_moves(
        [
            play("facts", True, search, ask),
            play("facts", False, search),
            play("facts", True, ask),
            play("facts", False, unread, ask),
            play("logic", False),
        ]
    )
    assert moves == {
        "facts": {
            "ask": {"share": 0.25, "solved": 1.0},
            "none": {"share": 0.25, "solved": 0.0},
            "search": {"share": 0.5, "solved": 0.5},
        },
        "logic": {"none": {"share": 1.0, "solved": 0.0}},
    }
