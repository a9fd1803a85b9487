"""Our update: the whole step of `TorchEngine`, its optimizer included.

In: model folder, batch file, threads, dtype. Out: see `arm`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from arm import batch_of, serve

from toolorchestra.chat.local import LocalModel, set_threads
from toolorchestra.chat.template import ChatTemplate
from toolorchestra.configs import TrainConfig
from toolorchestra.models.load import load_model
from toolorchestra.train.engine import TorchEngine
from toolorchestra.types import Sample


def main(folder: str, batch_file: str, threads: str, dtype: str) -> None:
    """Serve the step."""
    set_threads(int(threads))
    batch = batch_of(batch_file)
    model, tokenizer = load_model(Path(folder))
    model.requires_grad_(True)
    policy = LocalModel(model, ChatTemplate(tokenizer, folder), "policy")
    config = TrainConfig(clip_low=batch["clip_low"], clip_high=batch["clip_high"], dual_clip=0.0)
    engine = TorchEngine(policy, config)
    samples = samples_of(batch)
    serve(lambda: engine.update(samples, lr=0.0)["grad_norm"])


def samples_of(batch: dict) -> list[Sample]:
    """Lay the batch out as one group."""
    prompt = batch["prompt"]
    return [
        Sample(
            tuple(prompt + completion),
            (False,) * len(prompt) + tuple(map(bool, mask)),
            (0.0,) * len(prompt) + tuple(batch["logprob"] * m for m in mask),
            advantage,
        )
        for completion, mask, advantage in zip(batch["completions"], batch["masks"], batch["advantages"], strict=True)
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
