"""The pool of simulated experts, and what each task is offered of it.

In: a TOML file; a task's id and a seed. Out: profiles; the task's own experts with aliases, prices and descriptions.
Source: arXiv 2511.21689, sec. 3.3 (every instance draws its own tools and prices) and app. C (descriptions).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random

from toolorchestra.errors import ConfigError
from toolorchestra.pricing import Price
from toolorchestra.records import from_mapping, read_toml
from toolorchestra.types import Expert

ALIASES = (
    "amber", "basil", "cedar", "cobalt", "coral", "dune", "ember", "fern", "flint", "garnet", "grove", "hazel",
    "heron", "indigo", "iris", "jade", "juniper", "kelp", "lotus", "lunar", "mango", "maple", "nectar", "nova",
    "olive", "onyx", "opal", "pearl", "quartz", "raven", "sage", "sienna", "topaz", "umber", "velvet", "violet",
    "willow", "xenon", "yarrow", "zephyr",
)  # fmt: skip

PRICE_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
"""A task multiplies each expert's price by one of these: its own price schedule."""

STRONG, FAIR = 0.8, 0.5
"""Mean skills from which a subject is called strong or fair."""


@dataclass(frozen=True)
class Spread:
    """A lognormal quantity: its median, and the sigma of its logarithm."""

    median: float
    spread: float


@dataclass(frozen=True)
class ExpertProfile:
    """A simulated expert as declared.

    Attributes:
        model: its name.
        price: its list price.
        skill: probability of a right answer from memory, (easiest, hardest), by subject; `default` for the others.
        reading: that probability when the material given holds what is needed.
        latency: seconds of a call.
        output: output tokens of a call.
    """

    model: str
    price: Price
    skill: Mapping[str, tuple[float, float]]
    reading: float
    latency: Spread
    output: Spread

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ConfigError("an expert's model name is empty")
        if "default" not in self.skill:
            raise ConfigError(f"expert {self.model}: skill.default is missing; give [easiest, hardest]")
        named = [(f"skill.{kind}", p) for kind, pair in self.skill.items() for p in pair]
        for name, value in [*named, ("reading", self.reading)]:
            if not 0 <= value <= 1:
                raise ConfigError(f"expert {self.model}: {name} = {value} is no probability; it must lie in 0 to 1")
        for name, quantity in (("latency", self.latency), ("output", self.output)):
            if not (0 < quantity.median < math.inf and 0 <= quantity.spread < math.inf):
                raise ConfigError(f"expert {self.model}: {name} needs a median above 0 and a spread of at least 0")

    def skill_at(self, kind: str, difficulty: float) -> float:
        """Interpolate the skill for a subject at a difficulty in [0, 1]."""
        easy, hard = self.skill.get(kind, self.skill["default"])
        return easy + (hard - easy) * difficulty

    def strengths(self, kinds: Sequence[str], alias: str) -> str:
        """Describe what it is good at, for example `strong: kinship (iris), logic (iris); fair: stories`.

        The alias stands beside each strong subject, so that whoever looks a subject up finds whom to ask.
        """
        means = {kind: self.skill_at(kind, 0.5) for kind in sorted(kinds)}
        strong = [f"{kind} ({alias})" for kind, mean in means.items() if mean >= STRONG]
        fair = [kind for kind, mean in means.items() if FAIR <= mean < STRONG]
        parts = [f"{word}: {', '.join(names)}" for word, names in (("strong", strong), ("fair", fair)) if names]
        return "; ".join(parts) or "reads what it is given"


@dataclass(frozen=True)
class _PoolFile:
    expert: tuple[ExpertProfile, ...]


def load_pool(path: Path | None = None) -> tuple[ExpertProfile, ...]:
    """Read a pool of simulated experts; None reads the bundled one.

    Raises:
        ConfigError: names the file, the expert and the fix.
    """
    place = path or Path(str(resources.files("toolorchestra.assets").joinpath("experts.toml")))
    declared = read_toml(place)
    pool = from_mapping(_PoolFile, declared, str(place)).expert
    for profile, table in zip(pool, declared["expert"], strict=True):
        _require_price(profile, table["price"], str(place))
    names = [profile.model for profile in pool]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"{place}: expert {min(twice)} is declared twice; give each its own model name")
    if not pool or len(pool) > len(ALIASES):
        raise ConfigError(f"{place}: declare between 1 and {len(ALIASES)} experts")
    return pool


def _require_price(profile: ExpertProfile, figures: Mapping[str, object], place: str) -> None:
    """Refuse a price that is not spelled out, for what is left out would be free, or that no task could multiply."""
    for name in ("input_usd_per_mtok", "output_usd_per_mtok"):
        if name not in figures:
            raise ConfigError(f"{place}: expert {profile.model}: price.{name} is missing; write 0 if it is free")
    try:
        for factor in PRICE_FACTORS:
            profile.price.scaled(factor)
    except ConfigError as error:
        raise ConfigError(f"{place}: expert {profile.model}: a task multiplies prices by up to 2: {error}") from None


def require_subjects(pool: Sequence[ExpertProfile], kinds: Sequence[str]) -> None:
    """Refuse a skill for a subject that the world does not have.

    Raises:
        ConfigError: names the expert, the subject and the subjects that there are.
    """
    for profile in pool:
        for kind in profile.skill:
            if kind not in kinds and kind != "default":
                raise ConfigError(f"expert {profile.model}: unknown subject skill.{kind}; use {', '.join(kinds)}")


def draw_offer(
    pool: Sequence[ExpertProfile],
    task_id: str,
    seed: int,
    kinds: Sequence[str],
    size: tuple[int, int],
    full: bool = False,
) -> tuple[Expert, ...]:
    """Draw a task's experts: which, under which alias, at which price, in which order.

    Alias and price of an expert do not depend on `full`, so that whoever is given the whole pool pays the same.

    Args:
        kinds: the subjects that descriptions speak about.
        size: fewest and most experts on offer.
        full: offer the whole pool.
    """
    luck = Random(f"{seed}:{task_id}:offer")
    aliases = luck.sample(ALIASES, len(pool))
    factors = [luck.choice(PRICE_FACTORS) for _ in pool]
    experts = [
        Expert(alias, p.model, p.price.scaled(factor), p.strengths(kinds, alias), p.latency.median, simulated=True)
        for p, alias, factor in zip(pool, aliases, factors, strict=True)
    ]
    luck.shuffle(experts)
    count = len(experts) if full else min(len(experts), luck.randint(*size))
    return tuple(experts[:count])
