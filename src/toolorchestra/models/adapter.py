"""LoRA adapters: train a few million numbers beside the weights of a model instead of all of them.

An adapted model stays a plain `transformers` model; what it saves is a plain peft folder.
In: a model. Out: the same model, in which only the adapter is trained; its weights in a folder.
Source: LoRA (arXiv 2106.09685), through peft.
"""

from __future__ import annotations

import json
import warnings
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from toolorchestra.errors import RunFolderError
from toolorchestra.models.outline import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from toolorchestra.records import write_atomic

_TARGETS = "all-linear"
"""Every linear layer but the output's, as QLoRA found best (arXiv 2305.14314, sec. 4)."""

_PREFIX = "base_model.model."
"""Stands before every name in a peft folder."""


def add_adapter(model: Any, rank: int, alpha: float, seed: int) -> None:
    """Add an adapter that at first changes nothing, and train it alone.

    Args:
        rank: of each update.
        alpha: the update is scaled by alpha / rank.
        seed: of its first factor; the second starts at 0.
    """
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=_TARGETS, task_type="CAUSAL_LM")  # type: ignore[arg-type]
    inject_adapter_in_model(config, model)
    for parameter in model.parameters():
        if parameter.requires_grad:  # peft gives it the dtype of its base, which may be too coarse to train
            parameter.data = parameter.data.float()
    model.eval()


def attach_adapter(model: Any, folder: Path, merge: bool = False) -> Any:
    """Give a model the adapter in a folder; returns the model, of which nothing is trained.

    Args:
        merge: add the adapter to the weights for good, so that nothing of it is left.
    """
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of one library to the other
        adapted = PeftModel.from_pretrained(model, str(folder))
    return adapted.merge_and_unload() if merge else adapted.get_base_model()


def is_adapted(model: Any) -> bool:
    """Tell whether a model carries an adapter."""
    return bool(getattr(model, "peft_config", None))


def adapter_size(model: Any, rank: int) -> int:
    """Count the numbers of the adapter that `add_adapter` would add; shapes suffice."""
    head = model.get_output_embeddings()
    layers = (m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head)
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers)


def save_weights(model: Any, folder: Path) -> None:
    """Write a model, or only its adapter if it carries one."""
    if not is_adapted(model):
        model.save_pretrained(folder)
        return
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(model)
    save_file({_PREFIX + name: tensor.contiguous() for name, tensor in tensors.items()}, folder / ADAPTER_WEIGHTS)
    config = copy(model.peft_config["default"])
    config.inference_mode, config.base_model_name_or_path = True, model.config._name_or_path
    # peft writes sets in any order; a resumed run must write the same bytes.
    write_atomic(folder / ADAPTER_CONFIG, json.dumps(_sorted(config.to_dict()), indent=2, sort_keys=True) + "\n")


def load_weights(model: Any, folder: Path) -> None:
    """Read back what `save_weights` wrote, into a model of the same shape.

    Raises:
        RunFolderError: the folder holds another model.
    """
    if is_adapted(model):
        _load_adapter(model, folder)
        return
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise RunFolderError(f"{folder} holds no whole model: model.safetensors is missing")
    found = model.load_state_dict(load_file(weights), strict=False)  # tied weights are stored once
    if found.unexpected_keys:
        raise RunFolderError(f"{folder} holds another model: it has no place for {found.unexpected_keys[0]}")
    model.tie_weights()


def _load_adapter(model: Any, folder: Path) -> None:
    from peft import set_peft_model_state_dict

    place = folder / ADAPTER_WEIGHTS
    if not place.is_file():
        raise RunFolderError(f"{folder} holds no adapter: {ADAPTER_WEIGHTS} is missing")
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in load_file(place).items()}
    try:
        found = set_peft_model_state_dict(model, tensors)
    except RuntimeError as error:
        raise RunFolderError(f"{folder} holds another adapter: {str(error).splitlines()[-1].strip()}") from None
    if found.unexpected_keys:
        raise RunFolderError(f"{folder} holds another adapter: it has no place for {found.unexpected_keys[0]}")


def _sorted(config: dict[str, Any]) -> dict[str, Any]:
    return {key: sorted(value) if isinstance(value, set | list) else value for key, value in config.items()}
