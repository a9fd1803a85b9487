"""Loading a model from its folder, a whole one or an adapter on its base; what cannot work is refused before.

In: a folder. Out: a `transformers` model in evaluation mode, and its tokenizer.
Source: project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from toolorchestra.configs import Dtype
from toolorchestra.errors import ConfigError
from toolorchestra.models.adapter import adapter_size, attach_adapter
from toolorchestra.models.memory import available_bytes, check_fits, needed_bytes, weights_of
from toolorchestra.models.outline import Outline, open_outline


def load_model(folder: Path, merge: bool = False, dtype: Dtype = "float32") -> tuple[Any, Any]:
    """Load a Hugging Face causal language model and its tokenizer.

    Args:
        folder: of a model, or of an adapter whose base is on this machine.
        merge: add an adapter to the weights for good.
        dtype: of the weights; an adapter's own stay float32.

    Returns:
        model in evaluation mode, tokenizer.

    Raises:
        ConfigError: the folder is missing, holds no such model, or one that does not fit into memory.
    """
    outline = open_outline(folder)
    check_vocabulary(outline)
    check_fits(str(folder), needed_bytes(weights_of(outline.model), 0, False, dtype), available_bytes())
    return _load(outline, merge, dtype).eval(), outline.tokenizer


def check_trainable(folder: Path, lora_rank: int, reference: bool, dtype: Dtype = "float32") -> None:
    """Refuse a start model that cannot be trained here.

    Args:
        lora_rank: 0 when all weights are trained.
        reference: whether a KL term keeps the start model as well.
        dtype: of the weights that are not trained.

    Raises:
        ConfigError: as for `load_model`; what training takes in memory counts too.
    """
    outline = open_outline(folder)
    check_vocabulary(outline)
    weights = weights_of(outline.model)
    trained = adapter_size(outline.model, lora_rank) if lora_rank else weights
    needed = needed_bytes(weights + (trained if lora_rank else 0), trained, reference, dtype)
    check_fits(f"training {folder}", needed, available_bytes())


def check_vocabulary(outline: Outline) -> None:
    """Refuse a model whose tokenizer, config and weights contradict each other.

    Raises:
        ConfigError: says how.
    """
    if outline.vocabulary_fault:
        raise ConfigError(f"{outline.folder}: vocabulary mismatch: {outline.vocabulary_fault}")


def _load(outline: Outline, merge: bool, dtype: Dtype) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # its bars would cut through ours
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            outline.base, local_files_only=True, dtype=getattr(torch, dtype), output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"{outline.base}: cannot be loaded: {str(error).splitlines()[0]}") from None
    model, told = loaded
    if told["missing_keys"]:  # transformers would draw them at random
        missing = sorted(told["missing_keys"])
        raise ConfigError(f"{outline.base}: {len(missing)} weights are missing, such as {missing[0]}; copy it again")
    return _adapted(model, outline, merge) if outline.is_adapter else model


def _adapted(model: Any, outline: Outline, merge: bool) -> Any:
    try:
        return attach_adapter(model, outline.folder, merge)
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        said = str(error).splitlines()
        raise ConfigError(f"{outline.folder}: the adapter does not fit its base: {said[-1].strip()}") from None
