"""What the user wants: how much accuracy, cost, latency and each tool count.

The vector P of the reward (method: R = Mn . P). Weights lie in [0, 1].
Source: arXiv 2511.21689, sec. 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolorchestra.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Preference:
    """Weights of the reward's features, each in [0, 1].

    Attributes:
        accuracy: weight of a solved task.
        cost: weight of being cheap.
        latency: weight of being fast.
        tools: weight of calling a tool, by its name as the task shows it; a name that the task lacks is ignored, with
            a notice on the trajectory.

    Raises:
        ConfigError: a weight is outside [0, 1].
    """

    accuracy: float = 1.0
    cost: float = 0.3
    latency: float = 0.2
    tools: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {"accuracy": self.accuracy, "cost": self.cost, "latency": self.latency, **self.tools}
        for name, weight in named.items():
            if not 0 <= weight <= 1:
                raise ConfigError(f"preference weight {name} = {weight} is outside [0, 1]")
