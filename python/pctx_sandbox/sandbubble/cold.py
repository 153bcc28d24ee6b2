"""One script, one new interpreter: `pctx-sandbox run` with pipes. No daemon takes part."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import itertools
import json
import os
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from .. import _program
from ..client import Canceller
from ..errors import SandboxStartupError
from .config import make_policy, output_bytes
from .elsewhere import sources
from .request import CODE_PLACE, Request
from .result import Ended

CHUNK = 64 << 10
LONGEST_REPORT = 64 << 20
# What we say ourselves when no box could be made; the guest has printed nothing then.
LONGEST_WORDS = 64 << 10


def run_cold(request: Request, canceller: Canceller | None) -> Ended:
    """Runs the script in a box of its own."""
    _program.require_linux()
    with _files() as (policy, script, report):
        command = _command(request, policy, script, report)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if request.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        try:
            if canceller is not None:
                canceller.register(process)
            stdout, stderr = _converse(process, request.stdin, output_bytes(request.limits) + LONGEST_WORDS)
            process.wait()
        except BaseException:
            process.kill()  # its box ends with it
            raise
        finally:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            if canceller is not None:
                canceller.release()
        if canceller is not None and canceller.cancelled:
            raise concurrent.futures.CancelledError
        return Ended(_read_report(report, process.returncode, stderr), stdout, stderr)


_folder: tuple[int, str] | None = None
_numbers = itertools.count()


@contextlib.contextmanager
def _files() -> Iterator[tuple[str, str, str]]:
    """Where the policy, the script and the report of one run lie, in a folder that nobody but this process uses.

    It stays until the process ends: to make and remove one for every run would take longer than the rest of our part.
    """
    global _folder
    folder = _folder
    if folder is None or folder[0] != os.getpid() or not os.path.isdir(folder[1]):
        folder = _folder = os.getpid(), tempfile.mkdtemp(prefix="pctx-sandbox-")
        atexit.register(_remove, *folder)
    number = next(_numbers)
    names = tuple(os.path.join(folder[1], f"{number}.{name}") for name in ("policy", "script", "report"))
    try:
        yield names[0], names[1], names[2]
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)


def _remove(pid: int, folder: str) -> None:
    if pid == os.getpid():  # not in a process that was forked from ours
        shutil.rmtree(folder, ignore_errors=True)


def _command(request: Request, policy_file: str, script: str, report: str) -> list[str]:
    policy = make_policy(request.conf, request.venv, request.limits, request.timeout, request.folder is None)
    options = ["--quiet", "--die-with-parent", "--report", report]
    if request.folder is not None:
        policy["files"]["mnt"] = request.folder
        options.append("--changed")
    if request.code is not None:
        with open(script, "wb") as file:
            file.write(request.code)
        os.chmod(script, 0o444)
        policy["files"]["ro"].append(f"{script}:{CODE_PLACE}")
        policy["identity"]["env"].setdefault("PYTHONPATH", "/mnt")
    for source in sources(request.venv):
        options += ["--lend", source]
    with open(policy_file, "w") as file:
        json.dump(policy, file)
    program = _program.find_program()
    return [program, "run", *options, "--policy", policy_file, "--", *request.command]


def _converse(process: subprocess.Popen[bytes], data: bytes, most: int) -> tuple[bytes, bytes]:
    """Feeds the input and collects the output. The engine ends a script that prints too much."""
    kept: dict[int, list[bytes]] = {}
    left = most
    rest = memoryview(data)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            kept[stream.fileno()] = []
            selector.register(stream, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select():
                stream_end: Any = key.fileobj
                if stream_end is process.stdin:
                    rest = _feed(key.fd, rest)
                    done = not rest
                else:
                    chunk = os.read(key.fd, CHUNK)
                    kept[key.fd].append(chunk[:left])
                    left = max(0, left - len(chunk))
                    done = not chunk
                if done:
                    selector.unregister(stream_end)
                    stream_end.close()
    stdout, stderr = (b"".join(parts) for parts in kept.values())
    return stdout, stderr


def _feed(fd: int, rest: memoryview) -> memoryview:
    try:
        return rest[os.write(fd, rest[:CHUNK]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]  # it reads no more: its own business


def _read_report(path: str, status: int, stderr: bytes) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            text = file.read(LONGEST_REPORT)
        if text:
            report = json.loads(text)
            if isinstance(report, dict):
                return report
    except (OSError, ValueError):
        pass
    words = stderr.decode("utf-8", "replace").strip()[-4000:].removeprefix("pctx-sandbox: ")
    raise SandboxStartupError(
        f"no box for the script: {words or f'the engine ended with status {status}'}\nhint: run `pctx-sandbox doctor`"
    )
