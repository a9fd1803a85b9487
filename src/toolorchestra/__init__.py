"""ToolOrchestra: train and run small language models that orchestrate tools and priced expert models.

This page is the public surface. A name is imported from its room when it is first used, so that `import toolorchestra`
costs next to nothing and loads no optional dependency.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolorchestra.errors import ToolOrchestraError
    from toolorchestra.orchestrator import ask, rollout, rollout_many
    from toolorchestra.preferences import Preference
    from toolorchestra.pricing import Price, Usage
    from toolorchestra.protocols import ChatModel, Engine, Environment, Sampling, Tool
    from toolorchestra.rewards import group_rewards
    from toolorchestra.types import (
        Expert,
        Group,
        Message,
        Observation,
        Outcome,
        Sample,
        Task,
        ToolCall,
        ToolSpec,
        Trajectory,
        Turn,
    )

    __version__: str

__all__ = [
    "ChatModel",
    "Engine",
    "Environment",
    "Expert",
    "Group",
    "Message",
    "Observation",
    "Outcome",
    "Preference",
    "Price",
    "Sample",
    "Sampling",
    "Task",
    "Tool",
    "ToolCall",
    "ToolOrchestraError",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "Usage",
    "__version__",
    "ask",
    "group_rewards",
    "rollout",
    "rollout_many",
]

_ROOMS = {
    "errors": ("ToolOrchestraError",),
    "orchestrator": ("ask", "rollout", "rollout_many"),
    "preferences": ("Preference",),
    "pricing": ("Price", "Usage"),
    "protocols": ("ChatModel", "Engine", "Environment", "Sampling", "Tool"),
    "rewards": ("group_rewards",),
    "types": (
        *("Expert", "Group", "Message", "Observation", "Outcome", "Sample"),
        *("Task", "ToolCall", "ToolSpec", "Trajectory", "Turn"),
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from its room, once."""
    if name == "__version__":
        value = import_module("importlib.metadata").version(__name__)
    elif name in _ROOM_OF:
        value = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
