"""`toolorchestra doctor POLICY`: can this model be a policy, and if not, what is to be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolorchestra.cli.options import parse
from toolorchestra.configs import BUNDLED, NEW, Recipe, load_recipe
from toolorchestra.errors import ConfigError, ToolOrchestraError

ABOUT = (
    "Examine a policy on the CPU, in seconds: chat template, form of calls, turns by extension, history, context "
    "length in tokens, end-of-turn tokens, vocabulary, memory in GB, price in US dollars per million tokens. "
    "Exit code 0: it can be used; 1: something must be changed, and the table says what; 2: there is no such model."
)
_COLOURS = {"ok": "green", "note": "yellow", "FAIL": "bold red"}


@dataclass(frozen=True)
class DoctorOptions:
    """Options of `doctor`.

    Attributes:
        policy: `nano`, a name that `toolorchestra model` lists, a hub id (OWNER/NAME), or the folder of a Hugging Face
            causal language model or of an adapter, such as a run's checkpoint.
        recipe: TOML file whose policy knobs (price, history) are meant; the defaults when left out.
    """

    policy: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]
    recipe: Path | None = None


def run(words: Sequence[str]) -> None:
    """Run the command."""
    options = parse(DoctorOptions, words, "doctor", ABOUT)
    recipe = Recipe() if options.recipe is None else load_recipe(options.recipe)
    folder = _folder(options.policy)

    from toolorchestra.models.checkup import examine

    findings = examine(folder, recipe.policy)
    Console().print(_table(options.policy, [(f.question, f.verdict, f.found, f.fix) for f in findings]))
    failed = [f.question for f in findings if f.failed]
    if failed:
        raise ToolOrchestraError(f"{options.policy} cannot be a policy yet: {', '.join(failed)} failed")


def _folder(policy: str) -> Path:
    from toolorchestra.models.shelf import find_model

    if policy == NEW:
        raise ConfigError(f"'{NEW}' is made when a run starts, so there is nothing to examine yet; try {BUNDLED}")
    return find_model(policy)


def _table(policy: str, rows: Sequence[tuple[str, str, str, str]]) -> Table:
    table = Table(title=f"doctor: {escape(policy)}")
    for name in ("question", "", "found", "what to change or know"):
        table.add_column(name)
    for question, verdict, found, fix in rows:
        table.add_row(question, f"[{_COLOURS[verdict]}]{verdict}[/]", escape(found), escape(fix))
    return table
