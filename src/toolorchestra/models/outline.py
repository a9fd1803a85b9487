"""What a model's folder holds, apart from the numbers: enough to refuse it with a sentence before anything is loaded.

A folder is a whole model, or an adapter that names its base. Shapes come from a model without numbers (torch's meta
device) and from the headers of the weights.
In: a folder. Out: an outline.
Source: project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from toolorchestra.errors import ConfigError
from toolorchestra.models.shelf import find_model

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Outline:
    """A model's folder without its numbers.

    Attributes:
        folder: what was named.
        base: where config and weights of the whole model are; the same, unless `folder` holds an adapter.
        tokenizer: of `folder`.
        model: a `transformers` causal LM with shapes but no numbers.
        settings: its generation settings.
    """

    folder: Path
    base: Path
    tokenizer: Any
    model: Any
    settings: Any

    @property
    def is_adapter(self) -> bool:
        """Whether the folder holds an adapter."""
        return self.folder != self.base

    @property
    def embeddings(self) -> int:
        """Rows of the embedding, as the weights have them or, where no header says, as the config does."""
        weight = self.model.get_input_embeddings().weight
        name = next(name for name, parameter in self.model.named_parameters() if parameter is weight)
        return next(_rows(self.base, name), int(self.model.config.vocab_size))

    @property
    def vocabulary_fault(self) -> str:
        """Say how tokenizer, config and weights contradict each other; empty when they agree."""
        ids, config_rows = len(self.tokenizer), int(self.model.config.vocab_size)
        if self.embeddings != config_rows:
            return (
                f"config.json says vocab_size = {config_rows}, the weights hold {self.embeddings} embeddings; "
                "they belong to different models"
            )
        if ids > config_rows:
            return (
                f"the tokenizer knows {ids} tokens, the model {config_rows}: some have no embedding; use the tokenizer "
                "that came with the model, or resize_token_embeddings"
            )
        return ""


def open_outline(folder: Path) -> Outline:
    """Look at a model's folder.

    Raises:
        ConfigError: it is no such folder: files are missing, or cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give the folder of a Hugging Face model")
    base = _base(folder)
    if not (base / "config.json").is_file():
        raise ConfigError(f"{base}: no model here (config.json is missing); give a folder that transformers can load")
    if not any(base.glob("*.safetensors")) and not any(base.glob("*.bin")):
        raise ConfigError(f"{base}: no weights here (no *.safetensors); give the folder of the whole model")
    tokenizer, model, settings = _load(folder, base)
    if not tokenizer.chat_template:
        raise ConfigError(f"{folder}: its tokenizer has no chat template; use an instruction-tuned model")
    return Outline(folder, base, tokenizer, model, settings)


def _base(folder: Path) -> Path:
    place = folder / ADAPTER_CONFIG
    if not place.is_file():
        return folder
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ConfigError(f"{folder}: no weights here ({ADAPTER_WEIGHTS} is missing); give the whole adapter")
    try:
        name = json.loads(place.read_text(encoding="utf-8"))["base_model_name_or_path"]
        return find_model(str(name))
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{place}: cannot be read, or names no base_model_name_or_path; copy it again") from None
    except ConfigError as error:
        raise ConfigError(f"{folder}: the adapter's base model is missing: {error}") from None


def _load(folder: Path, base: Path) -> tuple[Any, Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        config = AutoConfig.from_pretrained(base, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        has_settings = (base / "generation_config.json").is_file()
        settings = GenerationConfig.from_pretrained(base, local_files_only=True) if has_settings else config
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder}: cannot be loaded: {str(error).splitlines()[0]}") from None
    return tokenizer, model, settings


def _rows(path: Path, name: str) -> Iterator[int]:
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                if name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    yield tensors.get_slice(name).get_shape()[0]
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); copy it again") from None
