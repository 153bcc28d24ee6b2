"""One script, one new interpreter: `pctx-sandbox run` with pipes. No daemon takes part."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import itertools
import json
import os
import select
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from .. import _program
from ..client import Canceller
from ..errors import SandboxStartupError
from .config import make_policy, output_bytes
from .elsewhere import sources
from .engine import Engine
from .request import CODE_PLACE, Request
from .result import Ended

CHUNK = 64 << 10
LONGEST_REPORT = 64 << 20
# What we say ourselves when no box could be made; the guest has printed nothing then.
LONGEST_WORDS = 64 << 10


def run_cold(request: Request, canceller: Canceller | None) -> Ended:
    """Runs the script in a box of its own."""
    _program.require_linux()
    with _script(request) as script, _memory() as report, _memory() as policy:
        command = _command(request, policy, script)
        engine = Engine(command, {**os.environ, "NO_COLOR": "1"}, bool(request.stdin), (report, policy))
        try:
            if canceller is not None:
                canceller.register(engine)
            stdout, stderr = _converse(engine, request.stdin, output_bytes(request.limits) + LONGEST_WORDS)
            engine.wait()
        except BaseException:
            engine.kill()  # its box ends with it
            raise
        finally:
            engine.wait()
            engine.close()
            if canceller is not None:
                canceller.release()
        if canceller is not None and canceller.cancelled:
            raise concurrent.futures.CancelledError
        return Ended(_read_report(report, engine.wait(), stderr), stdout, stderr)


_folder: tuple[int, str] | None = None
_numbers = itertools.count()


@contextlib.contextmanager
def _script(request: Request) -> Iterator[str]:
    """Where the snippet lies during one run, in a folder that nobody but this process uses; empty without one.

    The folder stays until the process ends: to make and remove one for every run would take longer than the rest of our
    part.
    """
    global _folder
    if request.code is None:
        yield ""
        return
    folder = _folder
    if folder is None or folder[0] != os.getpid() or not os.path.isdir(folder[1]):
        folder = _folder = os.getpid(), tempfile.mkdtemp(prefix="pctx-sandbox-")
        atexit.register(_remove, *folder)
    path = os.path.join(folder[1], f"{next(_numbers)}.script")
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), "wb") as file:
            file.write(request.code)
            os.fchmod(file.fileno(), 0o444)  # whatever the umask is
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


@contextlib.contextmanager
def _memory() -> Iterator[int]:
    """A file that has no name: nothing to remove, nothing for others to see."""
    fd = os.memfd_create("pctx-sandbox")
    try:
        yield fd
    finally:
        os.close(fd)


def _remove(pid: int, folder: str) -> None:
    if pid == os.getpid():  # not in a process that was forked from ours
        shutil.rmtree(folder, ignore_errors=True)


def _command(request: Request, policy_file: int, script: str) -> list[str]:
    policy = make_policy(request.conf, request.venv, request.limits, request.timeout, request.folder is None)
    options = ["--quiet", "--die-with-parent", "--report", "/dev/fd/3"]
    if request.folder is not None:
        policy["files"]["mnt"] = request.folder
        options.append("--changed")
    if script:
        policy["files"]["ro"] = [f"{script}:{CODE_PLACE}"]
        policy["identity"]["env"].setdefault("PYTHONPATH", "/mnt")
    for source in sources(request.venv):
        options += ["--lend", source]
    with open(policy_file, "wb", closefd=False) as file:
        file.write(json.dumps(policy).encode())
    return [_program.find_program(), "run", *options, "--policy", "/dev/fd/4", "--", *request.command]


def _converse(engine: Engine, data: bytes, most: int) -> tuple[bytes, bytes]:
    """Feeds the input and collects the output. The engine ends a script that prints too much."""
    kept: dict[int, list[bytes]] = {engine.stdout: [], engine.stderr: []}
    left = most
    rest = memoryview(data)
    poll = select.poll()
    for fd in kept:
        poll.register(fd, select.POLLIN)
    open_ends = set(kept)
    if engine.stdin >= 0:
        os.set_blocking(engine.stdin, False)
        poll.register(engine.stdin, select.POLLOUT)
    while open_ends:
        for fd, _ in poll.poll():
            if fd == engine.stdin:
                rest = _feed(fd, rest)
                if not rest:
                    poll.unregister(fd)
                    engine.close_stdin()
                continue
            chunk = os.read(fd, CHUNK)
            kept[fd].append(chunk[:left])
            left = max(0, left - len(chunk))
            if not chunk:
                poll.unregister(fd)
                open_ends.discard(fd)
    stdout, stderr = (b"".join(parts) for parts in kept.values())
    return stdout, stderr


def _feed(fd: int, rest: memoryview) -> memoryview:
    try:
        return rest[os.write(fd, rest[:CHUNK]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]  # it reads no more: its own business


def _read_report(fd: int, status: int, stderr: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        report = json.loads(os.pread(fd, LONGEST_REPORT, 0) or b"null")
        if isinstance(report, dict) and "error" not in report:
            return report
    words = stderr.decode("utf-8", "replace").strip()[-4000:].removeprefix("pctx-sandbox: ")
    raise SandboxStartupError(
        f"no box for the script: {words or f'the engine ended with status {status}'}\nhint: run `pctx-sandbox doctor`"
    )
