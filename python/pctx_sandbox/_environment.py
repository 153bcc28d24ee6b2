"""Asks the engine for the Environment of a set of dependencies; built once, then found by its key."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

from . import _program
from ._output import escape
from ._settings import Settings
from .errors import DependencyInstallError, SandboxStartupError

QUIET_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where it lies, which interpreter it is for, and what a Zygote imports ahead of calls."""

    path: str | None
    python: str
    preload: tuple[str, ...]
    generation: int = 0  # another one if it was built again in the same place, where Workers of the first still live


_lock = threading.Lock()
_building: dict[tuple[str, ...], threading.Lock] = {}
_known: dict[tuple[str, ...], Environment] = {}


def _after_fork() -> None:
    """Another thread may have held a lock at the fork; what is known stays true."""
    global _lock
    _lock = threading.Lock()
    _building.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def own_python() -> str:
    """The caller's own interpreter, without the virtual environment around it."""
    found = getattr(sys, "_base_executable", None) or sys.executable
    if not found:
        raise SandboxStartupError(
            "this program does not know its own Python interpreter (sys.executable is empty)\n"
            "hint: run it with a python executable"
        )
    return os.path.realpath(found)


def environment_for(settings: Settings, backend: str, register: Any = None) -> Environment:
    """The Environment, built if need be. Many threads asking at once build once."""
    python = own_python()
    if not settings.dependencies:
        return Environment(None, python, ())
    key = (backend, python, *settings.dependencies)
    with _lock:
        building = _building.setdefault(key, threading.Lock())
    with building:
        known = _known.get(key)
        if known is None or settings.disable_cache or not os.path.isdir(known.path or ""):
            known = _known[key] = _build(settings, python, backend, register)
    return known


def _build(settings: Settings, python: str, backend: str, register: Any) -> Environment:
    command = [_program.find_program(), "env", "build", "--json", "--python", python]
    if backend != "namespaces":
        command += ["--backend", backend]
    if settings.disable_cache:
        command.append("--no-cache")
    command += ["--", *settings.dependencies]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    if register is not None:
        register(process)
    words = _Words(process)
    words.start()
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(settings.build_timeout_sec, stop)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout as stream:
            output = stream.read()
        process.wait()
    except BaseException:
        process.kill()  # Ctrl-C: no build goes on for a caller who has left
        raise
    finally:
        timer.cancel()
        process.wait()
        words.join()
    if late.is_set():
        raise DependencyInstallError(
            f"installing {list(settings.dependencies)} took longer than "
            f"build_timeout_sec={settings.build_timeout_sec}\n"
            "hint: raise it, or build ahead with `pctx-sandbox env build`"
        )
    if process.returncode == 1:
        raise DependencyInstallError(
            f"{list(settings.dependencies)} could not be installed:\n{words.text()}\n"
            "hint: check names and versions, and that the package index can be reached"
        )
    if process.returncode != 0:
        raise SandboxStartupError(
            f"the Environment for {list(settings.dependencies)} could not be made: {words.text()}\n"
            "hint: run `pctx-sandbox doctor`"
        )
    return _parse(output, python)


def _parse(output: bytes, python: str) -> Environment:
    try:
        record = json.loads(output)
        preload = [module for modules in record["modules"].values() for module in modules]
        path = str(record["path"])
        modules = tuple(dict.fromkeys(preload))
        return Environment(path, str(record.get("python") or python), modules, os.stat(path).st_ino)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise SandboxStartupError(
            f"`pctx-sandbox env build` answered with something unknown: {error!r}\nhint: install the package again"
        ) from None


class _Words(threading.Thread):
    """Collects the builder's words, and shows them on a terminal once the build has taken more than a moment."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True, name="pctx-sandbox build")
        self._process = process
        self._lines: list[str] = []
        self._began = time.monotonic()

    def run(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for raw in stream:
                self._lines.append(raw.decode("utf-8", "replace").rstrip())
                del self._lines[:-200]
                terminal = sys.stderr is not None and sys.stderr.isatty()
                if terminal and time.monotonic() - self._began > QUIET_SECONDS:
                    print(escape(self._lines[-1]), file=sys.stderr)

    def text(self) -> str:
        return "\n".join(self._lines)[-8000:]
