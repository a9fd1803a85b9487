"""`toolorchestra train RECIPE.toml`: train, in a run folder that can be resumed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolorchestra.assemble import build_world, check_sources, choose_threads, run_folder, seed_folders
from toolorchestra.cli.options import RunOptions, read_options
from toolorchestra.cli.show import ProgressView
from toolorchestra.configs import Recipe, show_recipe
from toolorchestra.errors import RunFolderError
from toolorchestra.records import RunFolder, latest_checkpoint, read_run_config

ABOUT = "Train a policy: warm-up, then GRPO. Flags override the recipe's knobs."


@dataclass(frozen=True)
class TrainOptions(RunOptions):
    """Options of `train`.

    Attributes:
        resume: continue the run in its folder; starts it when there is none.
    """

    resume: bool = False


def run(words: Sequence[str]) -> None:
    """Run the command."""
    options, recipe = read_options(TrainOptions, words, "train", ABOUT)
    path = run_folder(recipe, options.run)
    check_sources(recipe)  # before the folder is claimed, so that a corrected recipe finds it free
    with RunFolder(path) as folder, ProgressView(options.quiet) as view:
        claim(folder, recipe, options.resume)
        asyncio.run(_train_all(recipe, path, view))
    print(f"trained: {path}")


def claim(folder: RunFolder, recipe: Recipe, resume: bool) -> None:
    """Make the folder this recipe's, or check that it is.

    Raises:
        RunFolderError: it holds a run and `resume` was not asked for, or the run has another recipe.
    """
    config = folder.path / "config.json"
    wanted = {"recipe": show_recipe(recipe), "threads": choose_threads(recipe.train.threads)}
    if not config.exists():
        folder.write_json("config.json", wanted)
        return
    if not resume:
        raise RunFolderError(f"{folder.path} already holds a run; continue it with --resume or choose another --run")
    defaults = {"recipe": show_recipe(Recipe())}  # what a knob had that is younger than the run
    found, asked = _as_stored(defaults) | _as_stored(read_run_config(folder.path)), _as_stored(wanted)
    differs = [key for key in asked if asked[key] != found.get(key) and not key.startswith("recipe.evaluate.")]
    if differs:
        raise RunFolderError(
            f"{folder.path} was started with another {', '.join(differs[:3])}; use the same recipe or another --run"
        )


def _as_stored(config: object) -> dict[str, object]:
    """List what JSON keeps of a configuration: `recipe.train.lr` and so on."""
    return _flat(json.loads(json.dumps(config)))


def _flat(data: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(data, dict):
        return {prefix: data}
    items = (_flat(value, f"{prefix}.{key}" if prefix else key).items() for key, value in data.items())
    return {key: value for part in items for key, value in part}


async def _train_all(recipe: Recipe, path: Path, view: ProgressView) -> None:
    from toolorchestra.tools.sandbox import Sandbox

    async with Sandbox() as sandbox:
        view.say("making the world: tasks, corpus, search index")
        world = build_world(recipe, sandbox)
        for seed, folder in seed_folders(recipe, path).items():
            view.prefix = f"seed {seed} " if len(recipe.seeds) > 1 else ""
            await _train_one(recipe, seed, folder, world, view)


async def _train_one(recipe: Recipe, seed: int, path: Path, world, view: ProgressView) -> None:
    from toolorchestra.train.loop import Trainer
    from toolorchestra.train.start import build_engine

    path.mkdir(parents=True, exist_ok=True)
    latest = latest_checkpoint(path)
    view.say(f"{path}: {'continues after ' + latest.name if latest else 'starts'}")
    engine = build_engine(recipe, path, seed, world)
    trainer = Trainer(
        recipe, seed, RunFolder(path), engine, world.tasks("train"), world.tasks("dev"), world.environments(), view
    )
    await trainer.run()
