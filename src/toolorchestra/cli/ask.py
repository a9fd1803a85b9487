"""`toolorchestra ask "…"`: one question, the answer, and the receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console

from toolorchestra.assemble import build_policy, build_world, trained_policies
from toolorchestra.cli.options import parse
from toolorchestra.cli.show import receipt
from toolorchestra.configs import Recipe
from toolorchestra.errors import ConfigError
from toolorchestra.orchestrator import ask
from toolorchestra.records import from_mapping, read_run_config
from toolorchestra.types import Trajectory

if TYPE_CHECKING:
    from toolorchestra.chat.local import LocalModel

ABOUT = (
    "Answer a question with a run's trained policy and the tools and (simulated) experts of the embedded world. "
    "The receipt is in tokens, US dollars and seconds."
)


@dataclass(frozen=True)
class AskOptions:
    """Options of `ask`.

    Attributes:
        question: what to answer.
        run: the folder of a trained run.
        policy: a model that answers instead of a run's policy: `nano`, a name that `toolorchestra model` lists, a hub
            id or a folder.
        seed: which training seed's policy answers; the run's first when left out.
        json: print the whole trajectory as JSON instead of answer and receipt.
    """

    question: tyro.conf.Positional[str]
    run: Path = Path("runs/quickstart")
    policy: str | None = None
    seed: int | None = None
    json: bool = False


def run(words: Sequence[str]) -> None:
    """Run the command."""
    options = parse(AskOptions, words, "ask", ABOUT)
    if not options.question.strip():
        raise ConfigError('the question is empty; toolorchestra ask "What is 12 * 7?"')
    trajectory = asyncio.run(_ask(options))
    if options.json:
        from toolorchestra.records import to_json

        print(to_json(trajectory))
        return
    console = Console()
    console.print(trajectory.answer or "(no answer)", markup=False, highlight=False)
    console.print(receipt(trajectory))


async def _ask(options: AskOptions) -> Trajectory:
    from toolorchestra.tools.sandbox import Sandbox

    recipe, policy = _policy(options)
    async with Sandbox() as sandbox:
        world = build_world(recipe, sandbox)
        task = world.open_task(options.question)
        return await ask(task, policy, world.environments()(task), recipe.rollout)


def _policy(options: AskOptions) -> tuple[Recipe, LocalModel]:
    if options.policy is not None:
        from toolorchestra.models.shelf import find_model

        recipe = Recipe()
        return recipe, build_policy(recipe, find_model(options.policy), options.policy)
    recipe = recipe_of(options.run)
    policies = trained_policies(recipe, options.run)
    seed = recipe.seeds[0] if options.seed is None else options.seed
    if seed not in policies:
        raise ConfigError(f"--seed {seed}: the run has seeds {', '.join(map(str, policies))}")
    return recipe, build_policy(recipe, policies[seed], f"{recipe.policy.model}-seed{seed}")


def recipe_of(run: Path) -> Recipe:
    """Read the recipe that a run was started with.

    Raises:
        RunFolderError: the folder holds no run, or a damaged one.
    """
    return from_mapping(Recipe, read_run_config(run)["recipe"], str(run / "config.json"))
