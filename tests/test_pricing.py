"""Money: the one formula, its units, and sums that keep what is not known."""

import math
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolorchestra.errors import ConfigError
from toolorchestra.pricing import Price, Usage, bill, format_usd

per_mtok = st.just(0.0) | st.floats(0.001, 2_000)
tokens = st.integers(0, 10**7)
usages = st.builds(
    Usage, tokens, tokens, tokens, st.floats(0, 1e3), st.floats(0, 1e4), estimated=st.booleans(), unpriced=st.booleans()
)


def test_cached_input_is_charged_at_its_own_rate():
    price = Price(1.4, 4.4, cached_input_usd_per_mtok=0.26)
    # (27,147 - 27,146) * 1.4 + 27,146 * 0.26 + 351 * 4.4 = 1.4 + 7,057.96 + 1,544.4 = 8,603.76 millionths
    assert price.charge(27_147, 351, cached_tok=27_146) == pytest.approx(0.00860376, abs=1e-12)


def test_cached_input_without_a_rate_is_charged_as_any_other():
    assert Price(1.4, 4.4).charge(27_147, 351, cached_tok=27_146) == pytest.approx(0.0395502, abs=1e-12)


def test_a_hundred_thousand_tokens_at_1_25_cost_an_eighth_of_a_dollar():
    assert Price(input_usd_per_mtok=1.25).charge(input_tok=100_000) == pytest.approx(0.125)


def test_calls_and_seconds_are_charged_too():
    assert Price(usd_per_call=0.01, usd_per_s=0.002).charge(seconds=3) == pytest.approx(0.016)


@pytest.mark.parametrize("field", ["input_usd_per_mtok", "output_usd_per_mtok", "cached_input_usd_per_mtok"])
@pytest.mark.parametrize("value", [1.25e-6, 1.25e-4, -1.0, 2_001, math.nan, math.inf])
def test_a_token_price_in_the_wrong_unit_is_refused(field: str, value: float):
    with pytest.raises(ConfigError, match=rf"{field}.*per million tokens"):
        Price(**{field: value})


@pytest.mark.parametrize("field", ["usd_per_call", "usd_per_s"])
@pytest.mark.parametrize("value", [-0.01, 101, math.nan])
def test_a_price_per_call_or_second_outside_its_range_is_refused(field: str, value: float):
    with pytest.raises(ConfigError, match=field):
        Price(**{field: value})


@pytest.mark.parametrize("value", [0, 0.001, 2_000])
def test_the_ends_of_the_range_are_prices(value: float):
    assert Price(input_usd_per_mtok=value).charge(1_000_000) == value


@given(per_mtok, per_mtok, st.none() | per_mtok, tokens, tokens, tokens)
def test_a_charge_is_never_negative_and_grows_with_output(fresh, out, cached_rate, cached, more, output):
    price = Price(fresh, out, cached_rate)
    charge = price.charge(cached + more, output, cached)
    assert 0 <= charge <= price.charge(cached + more, output + 1, cached)


@given(per_mtok, per_mtok)
def test_scaling_by_one_changes_no_more_than_the_third_decimal(fresh, out):
    scaled = Price(fresh, out, usd_per_call=0.5).scaled(1)
    assert abs(scaled.input_usd_per_mtok - fresh) <= 0.0005 + 1e-9
    assert abs(scaled.output_usd_per_mtok - out) <= 0.0005 + 1e-9
    assert scaled.usd_per_call == 0.5


def test_scaling_reaches_every_figure():
    assert Price(1, 2, 0.5, 0.01, 0.02).scaled(2) == Price(2, 4, 1, 0.02, 0.04)


def test_a_bill_carries_counts_cost_and_seconds():
    assert bill(Price(1, 2), 1_000_000, 500_000, latency_s=3) == Usage(1_000_000, 0, 500_000, 2.0, 3.0)


def test_an_unknown_price_stays_unknown_through_sums():
    known, unknown = bill(Price(1, 1), 1_000_000), bill(None, 1_000_000)
    for total in (known + unknown, unknown + known, known + unknown + known):
        assert total.unpriced
        assert format_usd(total).startswith("at least ")
    assert (known + unknown).cost_usd == 1.0
    assert not (known + known).unpriced
    assert format_usd(known) == "1.000000 USD"


def test_usage_adds_field_by_field():
    left = Usage(10, 4, 3, 0.25, 1.5, estimated=True)
    assert left + Usage(1, 2, 3, 0.5, 2.0, unpriced=True) == Usage(11, 6, 6, 0.75, 3.5, estimated=True, unpriced=True)


@given(usages)
def test_nothing_used_is_neutral(usage: Usage):
    assert usage + Usage() == usage == Usage() + usage


@given(st.lists(usages, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_a_sum_does_not_matter(parts: list[Usage], random):
    total = reduce(add, parts, Usage())
    random.shuffle(parts)
    again = reduce(add, parts, Usage())
    assert (again.input_tok, again.cached_tok, again.output_tok) == (
        total.input_tok,
        total.cached_tok,
        total.output_tok,
    )
    assert (again.estimated, again.unpriced) == (total.estimated, total.unpriced)
    assert again.cost_usd == pytest.approx(total.cost_usd)
    assert again.latency_s == pytest.approx(total.latency_s)
