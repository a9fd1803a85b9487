"""The script that runs inside the sandbox: a warm interpreter that forks a fresh process for every call.

In, on stdin: frames of JSON, `{"code": …, "variables": {…}}`. Out, on stdout: after one hello byte, a reply frame for
each (`REPLY`, then the output and the error as UTF-8). Standard library only, and it imports nothing of the package.

The caller trusts nothing that this worker says, and the worker nothing that the forked child says. The child has lost
the protocol's pipes before it runs a line of the code; what it prints, and what it reports on its own pipe, is text. It
may start neither process nor thread, so its memory limit is the call's limit, nothing outlives the call, and all that
it can do to the worker is to kill it.
Source: project; the system call filter follows seccomp(2).
"""

from __future__ import annotations

import ast
import codecs
import collections  # noqa: F401 (these imports warm the interpreter: code that imports them pays nothing)
import ctypes
import datetime  # noqa: F401
import fractions  # noqa: F401
import gc
import itertools  # noqa: F401
import json
import math  # noqa: F401
import os
import platform
import random
import re
import resource
import select
import signal
import statistics  # noqa: F401
import string  # noqa: F401
import struct
import sys
import traceback
import types
from typing import Any

LENGTH = struct.Struct(">I")
REPLY = struct.Struct(">?II")  # reusable?, bytes of output, bytes of error
HELLO = b"\x06"
FOLDER = "/tmp"
REPORT_FD = 3
MAX_OPEN_FILES = 64
MARKER_ROOM = 64

# System calls that the code may not make: number on x86_64, number on aarch64 (None where there is none).
DENIED: dict[str, tuple[int | None, int | None]] = {
    # new processes and threads, other programs: the limits are per process, so there is to be one
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    # a hand on the worker, which has the same user
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # memory outside the address space, and state that outlives a process
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the network, and parts of the kernel that arithmetic does not need
    "socket": (41, 198),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "mount": (165, 40),
    "perf_event_open": (298, 241),
    "setns": (308, 268),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


class Clip:
    """Text of any length in bounded memory: the head and the tail are kept, with a marker between them."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = self._tail = ""
        self._length = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, final: bool = False) -> None:
        """Add bytes; characters that are torn between two chunks are joined, others replaced."""
        text = self._decoder.decode(data, final)
        room = self._half - len(self._head)
        self._head += text[:room]
        self._tail = (self._tail + text[room:])[-self._half :]
        self._length += len(text)

    def text(self) -> str:
        """Return what was kept."""
        return join(self._head, self._length - len(self._head) - len(self._tail), self._tail)


def join(head: str, left_out: int, tail: str) -> str:
    """Put head and tail together, with the marker where something is missing between them."""
    return head + (f"\n[… {left_out} characters left out …]\n" if left_out else "") + tail


def clip(text: str, limit: int) -> str:
    """Cut one text as `Clip` does."""
    half = max(1, limit // 2)
    left_out = max(0, len(text) - 2 * half)
    return join(text[:half], left_out, text[half + left_out :])


def filter_program() -> bytes:
    """Compile `DENIED` for this machine: a denied call fails with EPERM, a foreign calling convention kills."""
    column, arch = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}[platform.machine()]
    numbers = [n[column] for n in DENIED.values() if n[column] is not None]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    steps = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, 0x80000000), (load, 0, 0, 0)]
    steps += [(at_least, len(numbers) + 1, 0, 0x40000000)]  # x86_64's second numbering, x32, would be a way round
    steps += [(equal, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    steps += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | 1)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def prctl(option: int, argument: int, pointer: bytes | None = None) -> None:
    """Set an attribute of this process; raise OSError where that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def install_filter(program: bytes) -> None:
    """Put the filter on this process, for ever."""
    code = ctypes.create_string_buffer(program, len(program))
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    prctl(22, 2, struct.pack("HP", len(program) // 8, ctypes.addressof(code)))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def limit_process(limits: dict[str, Any]) -> None:
    """Set the limits of the process that runs the code."""
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_mb"] << 20),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, limits["files_mb"] << 20),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),  # a second lock: the kernel does not hold root to it, the filter does
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def execute(code: str, variables: dict[str, Any]) -> tuple[bytes, str]:
    """Run the code. Return `V` and its last expression's text, or `E` and its exception's last line."""
    module = types.ModuleType("__main__")
    module.__dict__.update(variables, exit=sys.exit, quit=sys.exit)
    sys.modules["__main__"] = module
    sys.argv = ["code"]
    try:
        return b"V", evaluate(code, module.__dict__)
    except MemoryError:
        module.__dict__.clear()  # else there may be no memory left to say so
        return b"E", "MemoryError"
    except SystemExit as error:
        return (b"E", f"SystemExit: {error.code}") if error.code else (b"V", "")
    except BaseException as error:  # whatever the code raises is its result
        return b"E", last_line(error)


def evaluate(code: str, namespace: dict[str, Any]) -> str:
    """Run the statements; return the text of the last one's value if it is an expression with a value."""
    tree = ast.parse(code, "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec", dont_inherit=True), namespace)
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "<code>", "eval", dont_inherit=True), namespace)
    return "" if value is None else value if isinstance(value, str) else repr(value)


def last_line(error: BaseException) -> str:
    """Write an exception as the last line of its traceback does, without notes."""
    summary = traceback.TracebackException(type(error), error, None, compact=True)
    summary.__notes__ = None
    return list(summary.format_exception_only())[-1].strip()


def be_child(request: dict[str, Any], pipes: list[int], limits: dict[str, Any], program: bytes) -> None:
    """Become the process that runs the code: output, errors and report on 1, 2 and 3, no other descriptor but 0."""
    for descriptor, pipe in enumerate(pipes, 1):
        os.dup2(pipe, descriptor)
    os.closerange(REPORT_FD + 1, 4096)
    limit_process(limits)
    install_filter(program)
    random.seed(0)  # here, since a fork draws a new seed
    stdout = sys.stdout
    kind, text = execute(request["code"], request["variables"])
    if not stdout.closed:
        stdout.flush()
    write_all(REPORT_FD, kind + clip(text, limits["output_chars"]).encode("utf-8", "backslashreplace"))


def fork_child(request: dict[str, Any], limits: dict[str, Any], program: bytes) -> tuple[int, list[int]]:
    """Fork the process that runs the code. Return its id and the read ends of output, errors and report."""
    pipes = [os.pipe() for _ in range(REPORT_FD)]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            be_child(request, [write_end for _, write_end in pipes], limits, program)
            status = 0
        finally:
            os._exit(status)
    for _, write_end in pipes:
        os.close(write_end)
    return child, [read_end for read_end, _ in pipes]


def drain(pipes: list[int], limit: int) -> list[str]:
    """Read all pipes to their ends, in bounded memory."""
    clips = {pipe: Clip(limit + (MARKER_ROOM if pipe == pipes[-1] else 0)) for pipe in pipes}
    waiting = set(pipes)
    while waiting:
        for pipe in select.select(waiting, (), ())[0]:
            data = os.read(pipe, 1 << 16)
            clips[pipe].feed(data, final=not data)
            if not data:
                waiting.discard(pipe)
                os.close(pipe)
    return [clips[pipe].text() for pipe in pipes]


def steady(text: str) -> str:
    """Blank the addresses in default reprs: they differ between runs, and a record must not."""
    return re.sub(r" at 0x[0-9a-f]{6,16}(?=[>,])", " at 0x…", text)


def handle(request: dict[str, Any], limits: dict[str, Any], program: bytes) -> tuple[str, str]:
    """Answer one call: output and error."""
    child, pipes = fork_child(request, limits, program)
    output, _, report = drain(pipes, limits["output_chars"])  # warnings and the like are nobody's business
    _, status, used = os.wait4(child, 0)
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if killed_by in (signal.SIGKILL, signal.SIGXCPU) and used.ru_utime + used.ru_stime > limits["cpu_s"] * 0.9:
        return "", limits["time_error"]  # what was printed until then depends on the machine's speed
    if killed_by:
        return steady(output), f"ProcessError: {signal.strsignal(killed_by)}"
    if report[:1] == "V":
        return steady(output or report[1:]), ""
    return steady(output), steady(report[1:]) or f"ProcessError: ended with status {os.WEXITSTATUS(status)}"


def read_exactly(source: int, count: int) -> bytes:
    """Read `count` bytes; fewer where the stream ends."""
    data = b""
    while len(data) < count and (more := os.read(source, count - len(data))):
        data += more
    return data


def write_all(target: int, data: bytes) -> None:
    """Write all of `data`."""
    while data:
        data = data[os.write(target, data) :]


def take_pipes() -> tuple[int, int]:
    """Move the protocol away from 0 and 1; these and 2 become the end of an empty pipe, as there are no devices."""
    requests, replies = os.dup(0), os.dup(1)
    nothing, write_end = os.pipe()
    os.close(write_end)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    return requests, replies


def warm_up(limits: dict[str, Any], program: bytes) -> None:
    """Prepare what every child inherits, and run one, so that a sandbox that cannot work fails before its hello."""
    prctl(4, 0)  # PR_SET_DUMPABLE: the code can neither trace the worker nor read its memory
    sys.set_int_max_str_digits(0)  # the limit on CPU seconds covers what this guards
    _, error = handle({"code": "1", "variables": {}}, limits, program)
    if error:
        raise OSError(error)
    gc.collect()
    gc.freeze()


def serve_one(requests: int, replies: int, limits: dict[str, Any], program: bytes, untouched_ns: int) -> bool:
    """Answer the next request; return whether there may be another.

    This is a function of its own, so that no frame that a later child can look into holds this call's request.
    """
    header = read_exactly(requests, LENGTH.size)
    if not header:
        return False
    request = json.loads(read_exactly(requests, LENGTH.unpack(header)[0]))
    output, error = (text.encode() for text in handle(request, limits, program))
    # A file that came, even if it went, or a changed mode is state: then the next call gets a new sandbox.
    reusable = os.stat(FOLDER).st_ctime_ns == untouched_ns
    write_all(replies, REPLY.pack(reusable, len(output), len(error)) + output + error)
    return reusable


def main() -> None:
    """Serve requests until stdin ends or a call left something behind."""
    limits = json.loads(sys.argv[1])
    requests, replies = take_pipes()
    program = filter_program()
    warm_up(limits, program)
    write_all(replies, HELLO)
    untouched_ns = os.stat(FOLDER).st_ctime_ns
    while serve_one(requests, replies, limits, program, untouched_ns):
        pass


if __name__ == "__main__":
    main()
