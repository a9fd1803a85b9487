"""How much memory a model takes, and how much there is: better refused with numbers than killed without a word.

Activations come on top; they depend on the lengths of conversations and are bounded by the size of a micro-batch.
In: a model's shapes. Out: bytes.
Source: project; AdamW keeps two numbers a trained weight; what is trained is kept in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolorchestra.configs import Dtype
from toolorchestra.errors import ConfigError

_BYTES: Mapping[Dtype, int] = {"float32": 4, "bfloat16": 2}
_GRADIENT_AND_MOMENTS = 3
_CGROUP = Path("/sys/fs/cgroup")


def needed_bytes(weights: int, trained: int, reference: bool, dtype: Dtype = "float32") -> int:
    """Estimate what a model takes.

    Args:
        weights: all of its numbers, an adapter's included.
        trained: how many of them are trained; 0 for a model that only answers.
        reference: whether the trained ones are kept a second time, for the KL term.
        dtype: of those that are not trained.
    """
    held = 1 + _GRADIENT_AND_MOMENTS + reference
    return _BYTES[dtype] * (weights - trained) + _BYTES["float32"] * trained * held


def weights_of(model: Any) -> int:
    """Count a model's numbers; weights that are tied count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Tell how much memory can still be taken: the machine's, or what a container's limit leaves of it."""
    import psutil

    free = psutil.virtual_memory().available
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free
    return max(0, min(free, limit - used))


def check_fits(name: str, needed: int, available: int) -> None:
    """Refuse a model that is larger than the memory.

    Raises:
        ConfigError: says both numbers.
    """
    if needed > available:
        raise ConfigError(
            f"{name} needs about {needed / 1e9:.2f} GB of memory (before activations), and {available / 1e9:.2f} GB "
            "are free; use a smaller model, policy.lora_rank, policy.dtype = 'bfloat16', or a larger machine"
        )
