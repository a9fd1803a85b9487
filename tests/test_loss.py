"""The losses, with numbers worked by hand."""

import math

import pytest
import torch

from toolorchestra.train.loss import grpo_terms, kl_terms, picked_logprobs


def terms(ratio: float, advantage: float, dual_clip: float | None = None) -> float:
    now = torch.tensor([math.log(ratio)])
    return float(grpo_terms(now, torch.zeros(1), torch.tensor([advantage]), dual_clip=dual_clip))


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),  # on policy: the advantage itself
        (1.1, 2.0, -2.2),  # inside the clip
        (1.5, 2.0, -2.56),  # clipped at 1.28
        (0.5, 2.0, -1.0),  # a good token that became unlikely keeps its gradient
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),  # a bad token that became likely keeps its gradient
    ],
)
def test_the_clipped_surrogate(ratio: float, advantage: float, expected: float):
    assert terms(ratio, advantage) == pytest.approx(expected)


def test_dual_clip_bounds_the_loss_of_a_bad_token():
    assert terms(20.0, -2.0) == pytest.approx(40.0)
    assert terms(20.0, -2.0, dual_clip=10.0) == pytest.approx(20.0)
    assert terms(20.0, 2.0, dual_clip=10.0) == pytest.approx(-2.56)


def test_a_clipped_token_has_no_gradient():
    now = torch.tensor([math.log(1.5), math.log(1.1)], requires_grad=True)
    grpo_terms(now, torch.zeros(2), torch.tensor([1.0, 1.0])).sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([0.0, -1.1])


def test_kl_is_half_the_squared_log_ratio():
    assert float(kl_terms(torch.tensor([-1.0]), torch.tensor([-1.4]))) == pytest.approx(0.08)


def test_picked_logprobs_and_their_gradient():
    """Row 0 is picked twice: softmax (1/4, 3/4), gradient weights 1 and 2 on ids 0 and 1."""
    start_PV = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    picked_N = picked_logprobs(start_PV * 1, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    assert picked_N.tolist() == pytest.approx([math.log(1 / 4), math.log(3 / 4), math.log(1 / 2)], rel=1e-6)
    picked_N.backward(torch.tensor([1.0, 2.0, 4.0]))
    assert start_PV.grad is not None
    # (1, 2) - 3 * (1/4, 3/4)   and   (0, 4) - 4 * (1/2, 1/2)
    assert start_PV.grad.flatten().tolist() == pytest.approx([0.25, -0.25, -2.0, 2.0], rel=1e-6)
