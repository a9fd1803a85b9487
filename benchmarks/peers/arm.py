"""One side of a benchmark: a process that repeats a step whenever it is told to, so that sides can alternate.

It stands alone, since peers run in environments without `toolorchestra`.
In: a line on standard input for each repetition. Out: a JSON line with seconds, peak memory and the gradient's norm.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def batch_of(path: str) -> dict[str, Any]:
    """Read the batch that all sides share; see `benchmarks/update.py`."""
    with open(path) as file:
        return json.load(file)


def serve(step: Callable[[], float]) -> None:
    """Repeat a step, which returns the norm of its gradient, until the input ends."""
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        norm = step()
        seconds = time.perf_counter() - began
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak_mb": peak_mb, "grad_norm": norm}), flush=True)


def norm_of(model: Any) -> float:
    """Measure the gradient, then forget it."""
    import torch

    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    model.zero_grad(set_to_none=True)
    return norm
