"""Configs to live objects: the only place that wires rooms together.

In: a recipe and a run folder. Out: a world, a policy.
Source: project.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolorchestra.configs import NEW, Recipe
from toolorchestra.errors import ConfigError, RunFolderError
from toolorchestra.pricing import Price
from toolorchestra.records import cache_folder, latest_checkpoint

if TYPE_CHECKING:
    from toolorchestra.chat.local import LocalModel
    from toolorchestra.environments.embedded.world import EmbeddedWorld
    from toolorchestra.tools.sandbox import Sandbox


def check_sources(recipe: Recipe) -> None:
    """Look for what a recipe names, and whether it can be trained on this machine.

    Raises:
        ConfigError: the policy's model or the expert pool is missing, wrong or too large.
    """
    from toolorchestra.environments.embedded.pool import load_pool

    load_pool(Path(recipe.world.experts) if recipe.world.experts else None)
    if recipe.policy.model == NEW:
        return
    from toolorchestra.models.load import check_trainable
    from toolorchestra.models.shelf import find_model

    policy = recipe.policy
    check_trainable(find_model(policy.model), policy.lora_rank, bool(recipe.train.kl), policy.dtype)


def build_world(recipe: Recipe, sandbox: Sandbox) -> EmbeddedWorld:
    """Make the embedded world; builds its search index at first use, in a few seconds."""
    from toolorchestra.environments.embedded.world import EmbeddedWorld

    return EmbeddedWorld(recipe.world, recipe.preference, sandbox, cache_folder())


def build_policy(recipe: Recipe, folder: Path, name: str) -> LocalModel:
    """Load a policy from the folder of a model or an adapter.

    Raises:
        ConfigError: no such model is there, it cannot chat, or it does not fit into memory.
    """
    from toolorchestra.chat.local import LocalModel, end_ids_of
    from toolorchestra.chat.template import ChatTemplate
    from toolorchestra.models.load import load_model

    config = recipe.policy
    model, tokenizer = load_model(folder, dtype=config.dtype)
    template = ChatTemplate(tokenizer, str(folder), config.history, end_ids_of(model.generation_config))
    price = Price(config.input_usd_per_mtok, config.output_usd_per_mtok)
    return LocalModel(model, template, name, price, config.latency_s_per_tok)


def run_folder(recipe: Recipe, run: Path | None) -> Path:
    """Choose the run's folder: as given, else `runs/NAME`."""
    return run or Path("runs") / recipe.name


def seed_folders(recipe: Recipe, run: Path) -> dict[int, Path]:
    """Map each training seed to its folder: the run itself for one seed, else `seed-N` within it."""
    if len(recipe.seeds) == 1:
        return {recipe.seeds[0]: run}
    return {seed: run / f"seed-{seed}" for seed in recipe.seeds}


def trained_policies(recipe: Recipe, run: Path) -> dict[int, Path]:
    """Map each training seed to its latest checkpoint.

    Raises:
        RunFolderError: a seed has none yet.
    """
    found: dict[int, Path] = {}
    for seed, folder in seed_folders(recipe, run).items():
        checkpoint = latest_checkpoint(folder)
        if checkpoint is None:
            raise RunFolderError(f"{folder} holds no checkpoint; run `toolorchestra train` with this recipe first")
        found[seed] = checkpoint
    return found


def choose_threads(threads: int) -> int:
    """Fix torch's threads: as given, or half of the cores, which is never slower than a crowded machine's all."""
    from toolorchestra.chat.local import set_threads

    if threads < 0:
        raise ConfigError(f"train.threads = {threads} must not be negative")
    chosen = threads or max(1, (os.cpu_count() or 2) // 2)
    set_threads(chosen)
    return chosen
