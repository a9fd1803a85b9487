"""Where a training run starts: the start model and its engine.

`nano` travels with the package and can read offers but has not learned whom to ask (recipes/nano.toml made it);
`new-nano` starts from random weights; anything else is the folder of a Hugging Face model.
In: a recipe, a seed, the run's folder. Out: an engine.
Source: project.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolorchestra.assemble import build_policy
from toolorchestra.configs import NEW, Recipe
from toolorchestra.environments.embedded.world import EmbeddedWorld
from toolorchestra.models.adapter import add_adapter
from toolorchestra.models.shelf import find_model
from toolorchestra.prompts import SYSTEM, describe
from toolorchestra.train.drills import explanations
from toolorchestra.train.engine import TorchEngine
from toolorchestra.train.nano import NanoShape, build_nano
from toolorchestra.types import Task, ToolCall

NANO_TEXTS = 1500
"""Training tasks whose texts nano's tokenizer learns from."""


def build_engine(recipe: Recipe, run: Path, seed: int, world: EmbeddedWorld) -> TorchEngine:
    """Make the engine of a training run, with the start model's weights.

    Args:
        world: a nano policy is made for its tasks.

    Raises:
        ConfigError: there is no such model on this machine, or it does not fit into memory.
    """
    start = _start_model(recipe, run, seed, world)
    policy = build_policy(recipe, start, f"{recipe.policy.model}-seed{seed}")
    if recipe.policy.lora_rank:
        add_adapter(policy.model, recipe.policy.lora_rank, recipe.policy.lora_alpha, seed)
    return TorchEngine(policy, recipe.train)


def _start_model(recipe: Recipe, run: Path, seed: int, world: EmbeddedWorld) -> Path:
    """Find the start model, or make a new nano in the run's folder."""
    if recipe.policy.model != NEW:
        return find_model(recipe.policy.model)
    folder = run / "start"
    if not folder.is_dir():
        part = run / "start.part"
        _build_nano(recipe, part, seed, world)
        part.rename(folder)
    return folder


def _build_nano(recipe: Recipe, folder: Path, seed: int, world: EmbeddedWorld) -> None:
    shape = NanoShape(recipe.policy.vocab_tok, recipe.policy.hidden, recipe.policy.layers)
    tasks = world.tasks("train")[:NANO_TEXTS]
    specs = [spec for task in tasks for spec in task.tools or ()]
    texts = [SYSTEM, *(t.instruction for t in tasks), *map(describe, specs)]
    texts += [f"<think>{thinking}</think>" for task in tasks for thinking in _thoughts(task)]
    build_nano(folder, shape, texts, specs, seed)


def _thoughts(task: Task) -> Iterator[str]:
    """List what may be thought at the first turn of a task."""
    tools = task.tools or ()
    for tool in tools:
        for arguments in [{"expert": e.alias} for e in tool.experts] or [{}]:
            yield from explanations(task.kind, ToolCall("", tool.name, arguments), tools)
