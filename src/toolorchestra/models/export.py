"""An adapter merged into its base: one full folder that inference servers such as vLLM load.

In: the folder of an adapter (or of a whole model, which is copied as it is). Out: the folder of a whole model.
Source: project; LoRA's own merge, W + alpha / rank * B A.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from toolorchestra.errors import ConfigError
from toolorchestra.models.load import load_model
from toolorchestra.models.memory import weights_of


def export_model(source: Path, target: Path) -> int:
    """Write a model whole; returns its number of weights.

    Raises:
        ConfigError: `target` exists, or `source` holds no model.
    """
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another folder, nothing was written")
    model, tokenizer = load_model(source, merge=True)
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(target)
    return weights_of(model)
