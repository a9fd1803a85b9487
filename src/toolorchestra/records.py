"""Records on disk: JSON lines, TOML, and run folders.

A run is a folder, `{config.json, trajectories.jsonl, metrics.jsonl, timing.jsonl, checkpoints/, report.json, …}`.
Logs are append-only. A process holds a lock on the folder while it writes. After a crash, `AppendLog` is cut back to
the length that the latest checkpoint recorded, and the lost steps are done again, so that a resumed run has the bytes
of an undisturbed one. Wall-clock times differ between runs and go to `timing.jsonl` alone.
Source: project.
"""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from toolorchestra.errors import ConfigError, DataError, RunFolderError

T = TypeVar("T")


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def to_json(record: Any) -> str:
    """Write a record as one line of JSON; NaN and the infinities stay themselves, so that nothing is read back changed.

    Raises:
        DataError: it holds what JSON in UTF-8 cannot: a lone surrogate, nesting past some 250 levels, a foreign object.
    """
    try:
        return pydantic_core.to_json(record, inf_nan_mode="constants", fallback=_plain).decode()
    except (pydantic_core.PydanticSerializationError, TypeError) as error:
        raise DataError(f"a {type(record).__name__} cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # a read-only view of a dict, for one
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not data")


def from_json(kind: type[T], line: str | bytes) -> T:
    """Read a record that `to_json` wrote.

    Raises:
        DataError: it is not such a record, or has a key too many; the message names the first field that is wrong.
    """
    try:
        return _adapter(kind).validate_json(line, extra="forbid")
    except (ValidationError, ConfigError) as error:
        raise DataError(f"not a {kind.__name__}: {_said(error)}") from None


def from_mapping(kind: type[T], data: Any, place: str) -> T:
    """Check plain data from a file against a dataclass; unknown keys are refused, and so is `true` or "3" for a number.

    Raises:
        ConfigError: names `place`, the key, and what it should be.
    """
    try:
        # As JSON, because there strictness lets a list be a tuple.
        return _adapter(kind).validate_json(json.dumps(data, default=str), strict=True, extra="forbid")
    except (ValidationError, ConfigError) as error:
        raise ConfigError(f"{place}: {_said(error)}") from None


def _said(error: ValidationError | ConfigError) -> str:
    return first_problem(error) if isinstance(error, ValidationError) else str(error)


def first_problem(error: ValidationError) -> str:
    """Say the first problem of a pydantic error in one sentence."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "the record"
    if problem["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        return f"unknown key '{where}'"
    if problem["type"].startswith("missing"):
        return f"'{where}' is missing"
    said = problem["msg"].removeprefix("Value error, ")
    return f"'{where}': {said} (got {str(problem['input'])[:80]!r})"


def cache_folder() -> Path:
    """Return the folder for what is built once and can be built again; `TOOLORCHESTRA_CACHE` moves it."""
    named = os.environ.get("TOOLORCHESTRA_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "toolorchestra"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: the file is missing or not TOML; names the path, and the line where there is one.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, not a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def read_jsonl(kind: type[T], path: Path) -> Iterator[T]:
    """Read the records of a file one by one. A torn last line (no newline) is left out: it was never finished.

    Raises:
        DataError: names the file, the line and the field.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield from_json(kind, line)
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from None


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class AppendLog:
    """A file of JSON lines that only grows while a run is undisturbed."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab")

    @property
    def length(self) -> int:
        """Bytes written so far; a checkpoint records it."""
        return self._file.tell()

    def append(self, *lines: str) -> None:
        """Append lines; they have reached the operating system when this returns, so a killed process keeps them."""
        self._file.writelines(f"{line}\n".encode() for line in lines)
        self._file.flush()

    def cut(self, length: int) -> None:
        """Drop what was written after `length` bytes: the work after a checkpoint, which is done again."""
        if length > self.length:
            raise RunFolderError(f"{self._file.name} is shorter than its checkpoint says; it was changed by hand")
        self._file.truncate(length)
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_run_config(run: Path) -> dict[str, Any]:
    """Read what a run was started with.

    Raises:
        RunFolderError: the folder holds no run, or its config.json was damaged.
    """
    place = run / "config.json"
    if not place.is_file():
        raise RunFolderError(f"{run} holds no run; train one first (make quickstart) or name it with --run")
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict) or "recipe" not in config:
        raise RunFolderError(f"{place} is damaged; choose another --run, or remove the folder and train anew")
    return config


class RunFolder:
    """A run's folder, locked for one writer while entered.

    Raises:
        RunFolderError: another process writes here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise RunFolderError(f"{self.path} is a file, not a run's folder; choose another --run") from None
        lock = (self.path / ".lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunFolderError(
                f"{self.path} is in use by another process; wait for it or choose another --run"
            ) from None
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go, one folder each."""
        return self.path / "checkpoints"

    def log(self, name: str) -> AppendLog:
        """Open one of the folder's logs for appending."""
        return AppendLog(self.path / f"{name}.jsonl")

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the folder, whole or not at all."""
        write_atomic(self.path / name, json.dumps(value, indent=2, sort_keys=True) + "\n")


def checkpoints(run: Path) -> list[Path]:
    """List a run's checkpoints, oldest first."""
    return sorted(p for p in (run / "checkpoints").glob("step-*") if p.suffix != ".part")


def latest_checkpoint(run: Path) -> Path | None:
    """Find a run's latest checkpoint, or None."""
    return next(reversed(checkpoints(run)), None)


def step_of(checkpoint: Path) -> int:
    """Read how many steps a checkpoint has seen off its name.

    Raises:
        RunFolderError: it is no checkpoint.
    """
    number = checkpoint.name.removeprefix("step-")
    if not number.isdigit():
        raise RunFolderError(f"{checkpoint} is no checkpoint; its name should be step-NNNNNN")
    return int(number)
