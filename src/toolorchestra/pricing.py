"""Money: a price, what it charges, and what was used.

In: token counts and seconds. Out: US dollars. `Price.charge` is the only money formula in this package, and the same
`Price` object writes a tool's description, pays the reward and fills the receipt, so what is shown is what is billed.

Source: project; the paper bills per million tokens (arXiv 2511.21689, app. C).
"""

from __future__ import annotations

from dataclasses import dataclass

from toolorchestra.errors import ConfigError

MAX_USD_PER_MTOK = 2_000.0
"""No model has ever cost more; a higher figure is a price typed in the wrong unit."""

MIN_USD_PER_MTOK = 0.001
"""Below this a non-zero token price is a price typed per token or per thousand."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one call costs.

    Attributes:
        input_usd_per_mtok: US dollars per million input tokens that were not cached.
        output_usd_per_mtok: US dollars per million output tokens.
        cached_input_usd_per_mtok: US dollars per million cached input tokens; None charges them as uncached.
        usd_per_call: US dollars per call, whatever its size.
        usd_per_s: US dollars per second of running.

    Raises:
        ConfigError: a figure is negative or outside the plausible range of its unit.
    """

    input_usd_per_mtok: float = 0.0
    output_usd_per_mtok: float = 0.0
    cached_input_usd_per_mtok: float | None = None
    usd_per_call: float = 0.0
    usd_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("input_usd_per_mtok", "output_usd_per_mtok", "cached_input_usd_per_mtok"):
            _check_per_mtok(name, getattr(self, name))
        for name in ("usd_per_call", "usd_per_s"):
            value = getattr(self, name)
            if not 0 <= value <= 100:
                raise ConfigError(f"price {name} = {value} is outside 0 to 100 US dollars; check its unit")

    def charge(self, input_tok: int = 0, output_tok: int = 0, cached_tok: int = 0, seconds: float = 0.0) -> float:
        """Charge one call, in US dollars.

        Args:
            input_tok: all input tokens, the cached ones included.
            output_tok: output tokens, reasoning included.
            cached_tok: input tokens that were read from a cache; at most `input_tok`.
            seconds: running time, for tools priced by the second.
        """
        cached_rate = self.cached_input_usd_per_mtok
        cached_rate = self.input_usd_per_mtok if cached_rate is None else cached_rate
        tokens = (
            (input_tok - cached_tok) * self.input_usd_per_mtok
            + cached_tok * cached_rate
            + output_tok * self.output_usd_per_mtok
        )
        return tokens / 1e6 + self.usd_per_call + seconds * self.usd_per_s

    def scaled(self, factor: float) -> Price:
        """Return this price with every figure multiplied by `factor`, token prices rounded to 3 decimals."""
        cached = self.cached_input_usd_per_mtok
        return Price(
            round(self.input_usd_per_mtok * factor, 3),
            round(self.output_usd_per_mtok * factor, 3),
            None if cached is None else round(cached * factor, 3),
            self.usd_per_call * factor,
            self.usd_per_s * factor,
        )


def _check_per_mtok(name: str, value: float | None) -> None:
    if value is None or value == 0:
        return
    if not MIN_USD_PER_MTOK <= value <= MAX_USD_PER_MTOK:
        raise ConfigError(
            f"price {name} = {value} is outside {MIN_USD_PER_MTOK} to {MAX_USD_PER_MTOK:g}; "
            "give US dollars per million tokens"
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call, a turn or a trajectory used. Adds with `+`.

    Attributes:
        input_tok: input tokens, cached ones included.
        cached_tok: the part of them that was read from a cache.
        output_tok: output tokens.
        cost_usd: US dollars, as far as prices are known.
        latency_s: seconds; back-off and retries are not part of it.
        estimated: some count was estimated here, not reported by the backend.
        unpriced: some call had no known price, so `cost_usd` is a lower bound ("at least").
    """

    input_tok: int = 0
    cached_tok: int = 0
    output_tok: int = 0
    cost_usd: float = 0.0
    latency_s: float = 0.0
    estimated: bool = False
    unpriced: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tok + other.input_tok,
            self.cached_tok + other.cached_tok,
            self.output_tok + other.output_tok,
            self.cost_usd + other.cost_usd,
            self.latency_s + other.latency_s,
            self.estimated or other.estimated,
            self.unpriced or other.unpriced,
        )


def bill(
    price: Price | None, input_tok: int = 0, output_tok: int = 0, cached_tok: int = 0, latency_s: float = 0.0
) -> Usage:
    """Turn the counts of one call into a `Usage`; a price of None is kept as unknown, never as free."""
    cost = 0.0 if price is None else price.charge(input_tok, output_tok, cached_tok, latency_s)
    return Usage(input_tok, cached_tok, output_tok, cost, latency_s, unpriced=price is None)


def format_usd(usage: Usage) -> str:
    """Write a cost for people: `0.0123 USD`, or `at least 0.0123 USD` where a price is unknown."""
    amount = f"{usage.cost_usd:.6f} USD"
    return f"at least {amount}" if usage.unpriced else amount
