"""`toolorchestra evaluate RECIPE.toml`: judge a run's policies on held-out tasks against every baseline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolorchestra.assemble import build_policy, build_world, choose_threads, run_folder, seed_folders, trained_policies
from toolorchestra.cli.options import RunOptions, read_options
from toolorchestra.cli.show import ProgressView
from toolorchestra.configs import Recipe
from toolorchestra.errors import RunFolderError
from toolorchestra.evaluate.baselines import baselines, knn
from toolorchestra.evaluate.evaluation import (
    Contestant,
    ContestantRole,
    Entrant,
    Key,
    Ledger,
    Score,
    World,
    evaluate_oracle,
    evaluate_policies,
    fit_knn,
)
from toolorchestra.evaluate.plots import save_plots
from toolorchestra.evaluate.report import Header, build_report, render_markdown
from toolorchestra.records import RunFolder, checkpoints, read_jsonl, to_json, write_atomic

ABOUT = (
    "Judge a run's policies on the held-out test tasks against every baseline; writes report.md, report.json, plots/."
)


@dataclass(frozen=True)
class EvaluateOptions(RunOptions):
    """Options of `evaluate`.

    Attributes:
        fresh: score everything anew, instead of keeping the scores of an earlier evaluation of the same policies.
    """

    fresh: bool = False


def run(words: Sequence[str]) -> None:
    """Run the command."""
    options, recipe = read_options(EvaluateOptions, words, "evaluate", ABOUT)
    path = run_folder(recipe, options.run)
    policies = trained_policies(recipe, path)
    with RunFolder(path) as folder, ProgressView(options.quiet) as view:
        choose_threads(recipe.train.threads)
        report = asyncio.run(_evaluate(recipe, folder, policies, view, options.fresh))
        command = f"toolorchestra evaluate {options.file}" + (f" --run {options.run}" if options.run else "")
        text = _write(report | {"header": report["header"] | {"command": command}}, recipe, path)
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))
    print(f"written: {path / 'report.md'}, report.json, plots/")
    print(f'next: toolorchestra ask "Name the capital of the Comoros." --run {path}')


async def _evaluate(
    recipe: Recipe, folder: RunFolder, policies: dict[int, Path], view: ProgressView, fresh: bool
) -> dict[str, Any]:
    from toolorchestra.tools.sandbox import Sandbox

    done = _earlier_scores(recipe, folder, policies, fresh)
    log = folder.log("scores")
    ledger = Ledger(
        done,
        lambda score: log.append(to_json(score)),
        lambda name, count, total: view(name, count, total, {}) if count % 32 == 0 or count == total else None,
    )
    async with Sandbox() as sandbox:
        view.say("making the world: tasks, corpus, search index")
        world = build_world(recipe, sandbox)
        models = [profile.model for profile in world.pool]
        learners, parameters = _learners(recipe, folder.path, policies)
        rules = [*baselines(models, recipe.world.seed), await _knn(recipe, world, world.tasks("train"), ledger)]
        oracle = Contestant("oracle", "oracle", "per-task oracle (hindsight)")
        config, tasks = recipe.evaluate, world.tasks("test")
        scores = await evaluate_policies(
            [*rules, *learners],
            tasks,
            world,
            config.seeds,
            recipe.rollout,
            temperature=config.temperature,
            ledger=ledger,
        )
        scores += await evaluate_oracle(oracle, tasks, world, config.seeds, recipe.rollout, ledger=ledger)
    log.close()
    contestants = [entrant.contestant for entrant in (*rules, *learners)] + [oracle]
    header = Header("", tuple(policies), parameters, config.resamples, True)
    return build_report(contestants, scores, header)


async def _knn(recipe: Recipe, world: World, tasks: Sequence[Any], ledger: Ledger) -> Entrant:
    config = recipe.evaluate
    router = await fit_knn(
        tasks[: config.knn_tasks], world, recipe.rollout, config.knn_neighbours, progress=ledger.progress
    )
    return knn(router)


def _learners(recipe: Recipe, run: Path, policies: dict[int, Path]) -> tuple[list[Entrant], int]:
    """Load every seed's warmed-up and trained policy; also returns the number of parameters."""
    entrants: list[Entrant] = []
    parameters = 0
    for seed, folder in seed_folders(recipe, run).items():
        start, latest = checkpoints(folder)[0], policies[seed]
        stages: list[tuple[ContestantRole, Path, str]] = [
            ("warmup", start, "before RL"),
            ("trained", latest, "trained"),
        ]
        for role, place, label in stages:
            policy = build_policy(recipe, place, f"{role} (seed {seed})")
            parameters = sum(p.numel() for p in policy.model.parameters())
            entrants.append(Entrant(Contestant(policy.name, role, f"{label} (seed {seed})"), policy))
    return entrants, parameters


def _earlier_scores(recipe: Recipe, folder: RunFolder, policies: dict[int, Path], fresh: bool) -> dict[Key, Score]:
    """Read the scores of an earlier evaluation, if it judged the same checkpoints on the same terms."""
    from toolorchestra.configs import show_recipe

    shown = show_recipe(recipe)
    terms = {key: shown[key] for key in ("world", "preference", "rollout", "evaluate")}
    terms = json.loads(json.dumps(terms | {"checkpoints": {str(s): p.name for s, p in policies.items()}}))
    place, scores = folder.path / "evaluation.json", folder.path / "scores.jsonl"
    if fresh or not place.exists() or json.loads(place.read_text()) != terms:
        scores.unlink(missing_ok=True)
        folder.write_json("evaluation.json", terms)
        return {}
    if not scores.exists():
        return {}
    whole = scores.read_bytes()
    with scores.open("r+b") as file:  # a torn last line is scored again
        file.truncate(whole.rfind(b"\n") + 1)
    return {score.key: score for score in read_jsonl(Score, scores)}


def _write(report: dict[str, Any], recipe: Recipe, path: Path) -> str:
    folder = path / "plots"
    folder.mkdir(exist_ok=True)
    curves = {f"seed {seed}": _metrics(run) for seed, run in seed_folders(recipe, path).items()}
    save_plots(report, curves, folder)
    write_atomic(path / "report.json", json.dumps(report, indent=2) + "\n")
    text = render_markdown(report)
    write_atomic(path / "report.md", text)
    return text


def _metrics(run: Path) -> list[dict[str, Any]]:
    log = run / "metrics.jsonl"
    if not log.exists():
        raise RunFolderError(f"{run} has no metrics.jsonl; train with this recipe first")
    return [json.loads(line) for line in log.read_text().splitlines()]
