"""A recipe on the command line: the file gives the defaults, flags override single knobs.

In: words. Out: a checked recipe and the command's own options. Flags and help come from the config classes.
Source: project.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from toolorchestra.configs import Recipe, check_recipe, load_recipe
from toolorchestra.errors import ConfigError

_PATH_FLAGS = ("--run", "--world.experts")
"""Flags whose value may end in .toml as a recipe does."""


@dataclass(frozen=True)
class RunOptions:
    """Options that commands on a recipe share.

    Attributes:
        file: the recipe, a TOML file.
        run: the run's folder; `runs/NAME` when left out.
        quiet: print no progress.
        knobs: the recipe's knobs.
    """

    file: tyro.conf.Positional[Path]
    run: Path | None = None
    quiet: bool = False
    knobs: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)


Options = TypeVar("Options", bound=RunOptions)


def read_options(kind: type[Options], words: Sequence[str], command: str, about: str) -> tuple[Options, Recipe]:
    """Parse the words of a command; the recipe file's values are the defaults that the flags override.

    Raises:
        ConfigError: the recipe or a flag is wrong, or the recipe is missing.
    """
    asks_for_help = any(word in {"-h", "--help"} for word in words)
    path = _recipe_in(words)
    if path is None and not asks_for_help:
        raise ConfigError(f"which recipe? toolorchestra {command} RECIPE.toml")
    recipe = load_recipe(path) if path is not None else Recipe()
    default = kind(file=path or Path("RECIPE.toml"), knobs=recipe)
    options = parse(kind, words, command, about, default)
    return options, check_recipe(options.knobs, "the command line")


def _recipe_in(words: Sequence[str]) -> Path | None:
    """Find the recipe: the first word that ends in .toml and is not a flag's value."""
    pairs = zip(["", *words], words, strict=False)
    return next((Path(word) for before, word in pairs if word.endswith(".toml") and before not in _PATH_FLAGS), None)


Parsed = TypeVar("Parsed")


def parse(kind: type[Parsed], words: Sequence[str], command: str, about: str, default: Parsed | None = None) -> Parsed:
    """Parse words into a dataclass; prints help and exits when asked to.

    Raises:
        ConfigError: a word is wrong.
    """
    said = io.StringIO()
    prog = f"toolorchestra {command}"
    try:
        with contextlib.redirect_stderr(said):
            if default is None:
                return tyro.cli(kind, args=list(words), prog=prog, description=about)
            return tyro.cli(kind, args=list(words), prog=prog, description=about, default=default)
    except SystemExit as end:
        if not end.code:
            raise
        raise ConfigError(_first_sentence(said.getvalue(), command)) from None


def _first_sentence(text: str, command: str) -> str:
    """Take the sentence out of the parser's box, whose first line is a title."""
    lines = [line.lstrip(" │╭╰─|+").rstrip(" │╮╯─|+-") for line in text.splitlines()]
    told = [line for line in lines if line][1:]
    count = 2 if told and told[0].endswith(":") else 1
    return f"{' '.join(told[:count]) or 'wrong arguments'}; see toolorchestra {command} --help"
