"""Drawing ids from logits."""

import math

import pytest
import torch

from toolorchestra.chat.draw import draw_ids


def draw(probs: list[float], uniform: float, temperature: float = 1.0, top_p: float = 1.0) -> tuple[int, float]:
    logits_BV = torch.tensor([probs]).log() + 3.0  # a constant changes nothing
    ids_B, logprobs_B = draw_ids(logits_BV, [temperature], [top_p], [uniform])
    return int(ids_B[0]), float(logprobs_B[0])


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 0), (0.19, 0), (0.21, 1), (0.49, 1), (0.51, 2), (0.999999, 2)])
def test_the_id_in_whose_share_the_number_falls(uniform: float, expected: int):
    probs = [0.2, 0.3, 0.5]
    assert draw(probs, uniform) == (expected, pytest.approx(math.log(probs[expected]), abs=1e-6))


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 0), (0.10, 0), (0.11, 1), (0.34, 1), (0.35, 2)])
def test_a_temperature_of_one_half_squares_the_shares(uniform: float, expected: int):
    """0.04, 0.09, 0.25 of 0.38: shares end at 0.105, 0.342, 1. The log-probability stays that at temperature 1."""
    probs = [0.2, 0.3, 0.5]
    assert draw(probs, uniform, temperature=0.5) == (expected, pytest.approx(math.log(probs[expected]), abs=1e-6))


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 1), (0.37, 1), (0.38, 2), (0.999, 2)])
def test_a_nucleus_leaves_out_the_unlikely(uniform: float, expected: int):
    """0.5 and 0.3 are the fewest that reach 0.7; of 0.8 the first ends at 0.375."""
    assert draw([0.2, 0.3, 0.5], uniform, top_p=0.7)[0] == expected


def test_temperature_zero_takes_the_likeliest():
    assert draw([0.2, 0.5, 0.3], 0.99, temperature=0.0)[0] == 1


def test_large_vocabularies_are_drawn_from_as_one_distribution():
    """Blocks of sums are found first; the result is that of one running sum."""
    generator = torch.Generator().manual_seed(0)
    logits_BV = torch.randn(400, 1000, generator=generator) * 3
    uniforms = torch.rand(400, generator=generator, dtype=torch.double)
    ids_B, _ = draw_ids(logits_BV, [1.0] * 400, [1.0] * 400, uniforms.tolist())
    sums_BV = torch.softmax(logits_BV.double(), dim=-1).cumsum(-1)
    expected_B = torch.searchsorted(sums_BV, uniforms[:, None], right=True).squeeze(1)
    assert (ids_B == expected_B).float().mean() > 0.99  # float32 rounds at the borders
    assert (ids_B - expected_B).abs().max() <= 1


def test_an_impossible_id_is_never_drawn():
    logits_BV = torch.full((1, 600), -math.inf)
    logits_BV[0, [3, 599]] = 0.0
    for uniform, expected in ((0.0, 3), (0.499, 3), (0.5, 599), (1 - 1e-16, 599)):
        assert int(draw_ids(logits_BV, [1.0], [1.0], [uniform])[0][0]) == expected
