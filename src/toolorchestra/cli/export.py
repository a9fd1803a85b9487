"""`toolorchestra export`: a trained policy as one whole model folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from toolorchestra.cli.options import parse
from toolorchestra.errors import RunFolderError
from toolorchestra.records import latest_checkpoint

ABOUT = (
    "Write a policy as one whole Hugging Face folder (float32), an adapter merged into its base, so that transformers, "
    "vLLM and others load it."
)


@dataclass(frozen=True)
class ExportOptions:
    """Options of `export`.

    Attributes:
        source: a run, whose latest checkpoint is taken (of a run with several seeds, name its seed-N folder), or the
            folder of a model or an adapter.
        target: the folder to write; it must not exist.
    """

    source: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="SOURCE")]]
    target: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="TARGET")]]


def run(words: Sequence[str]) -> None:
    """Run the command."""
    options = parse(ExportOptions, words, "export", ABOUT)
    source = _model_in(options.source)
    from toolorchestra.models.export import export_model

    weights = export_model(source, options.target)
    print(f"{options.target}: {weights / 1e6:.1f} M weights, from {source}")


def _model_in(folder: Path) -> Path:
    """Take a run's latest checkpoint, or the folder itself."""
    if not (folder / "checkpoints").is_dir():
        seeds = sorted(folder.glob("seed-*/checkpoints"))
        if seeds:
            raise RunFolderError(f"{folder} has several training seeds; name one, such as {seeds[0].parent}")
        return folder
    checkpoint = latest_checkpoint(folder)
    if checkpoint is None:
        raise RunFolderError(f"{folder} holds no checkpoint yet; train it first")
    return checkpoint
