"""The collapse alarm, with counts worked by hand."""

import math

import pytest

from toolorchestra.configs import TrainConfig
from toolorchestra.train.monitor import collapse_alarms, entropy, shares

CONFIG = TrainConfig()
COLLAPSED = {"a": 3055, "b": 5, "c": 3, "d": 1}
BALANCED = {"a": 30, "b": 25, "c": 25, "d": 20}


def test_shares_and_entropy_by_hand():
    assert shares({"a": 1, "b": 3}) == {"b": 0.75, "a": 0.25}
    assert shares({}) == {}
    assert entropy({"a": 1, "b": 1}) == pytest.approx(math.log(2))
    assert entropy({"a": 7}) == 0


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
