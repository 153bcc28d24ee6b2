"""A folder lent to calls whose box cannot have the folder itself: the engine copies it in and brings changes back.

Calls that share a folder come one after the other: each sees what the one before left, as in the folder itself.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from . import _program
from ._backend import Backend
from .errors import SandboxError, SandboxStartupError


class LentFolder:
    """One folder of one process, and the place of its copy: Workers that wait have that place already."""

    def __init__(self, folder: str, backend: Backend, kind: str) -> None:
        self._folder = folder
        self._backend = backend
        self._lock = threading.Lock()
        # Each has a place that no box has seen before: what is left of one may go on writing for a moment.
        name = f"{kind}-{os.getpid()}-{next(_numbers)}"
        self.spoiled = False  # a call ended in a way that does not tell whether its box has
        self._copy = os.path.join(backend.lent[0], name)
        self.seen = os.path.join(backend.lent[1], name)
        self._make()

    def _make(self) -> None:
        """A Broker is asked for a box with the folder before a call fills it."""
        os.makedirs(self._copy, 0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(self._copy, self._backend.user, self._backend.user)

    def remove(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)

    @contextlib.contextmanager
    def lend(self) -> Iterator[dict[str, Any]]:
        """The folder's content stands in the copy meanwhile. Afterwards the dict says what changed."""
        changed: dict[str, Any] = {}
        with self._lock:
            process = self._start()
            try:
                self._expect_ready(process)
                try:
                    yield changed
                except BaseException:
                    self.spoiled = True
                    raise
                finally:
                    changed.update(self._bring_back(process))
            finally:
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()
                process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [_program.find_program(), "lend", self._folder, self._copy]
        if os.geteuid() == 0:
            command += ["--uid", str(self._backend.user), "--gid", str(self._backend.user)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt is the caller's: what the call did still comes back
        )

    def _expect_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() == b"ready\n":
            return
        words = process.stderr.read(8000).decode("utf-8", "replace").strip().removeprefix("pctx-sandbox: ")
        raise SandboxStartupError(f"mnt_dir={self._folder!r} cannot be lent: {words}")

    def _bring_back(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            process.stdin.write(b"back\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        except (OSError, ValueError):
            words = process.stderr.read(8000).decode("utf-8", "replace").strip().removeprefix("pctx-sandbox: ")
            raise SandboxError(
                f"what the call changed in mnt_dir={self._folder!r} could not be brought back: {words}"
            ) from None
        return answer if isinstance(answer, dict) else {}


_lock = threading.Lock()
_numbers = itertools.count()
_folders: dict[tuple[str, str], LentFolder] = {}
_in_turn: dict[str, tuple[threading.Lock, int]] = {}  # by folder, for scripts, and how many there are


def lent_folder(folder: str, backend: Backend) -> LentFolder:
    """The one for this folder in this process."""
    with _lock:
        known = _folders.get((backend.name, folder))
        if known is None or known.spoiled or not os.path.isdir(known._copy):
            if known is not None:
                known.remove()
            known = _folders[backend.name, folder] = LentFolder(folder, backend, "call")
    return known


@contextlib.contextmanager
def lend_once(folder: str, backend: Backend) -> Iterator[tuple[str, dict[str, Any]]]:
    """For a box that takes its folder when it is leased: a copy of its own, which goes with it. As the Broker sees it,
    and what changed, once the run is over."""
    with _lock:
        turn, others = _in_turn.get(folder) or (threading.Lock(), 0)
        _in_turn[folder] = turn, others + 1
    try:
        with turn:
            lent = LentFolder(folder, backend, "script")
            try:
                with lent.lend() as changed:
                    yield lent.seen, changed
            finally:
                lent.remove()
    finally:
        with _lock:
            turn, others = _in_turn.pop(folder)
            if others > 1:
                _in_turn[folder] = turn, others - 1


def _remove_all(owner: int = os.getpid()) -> None:
    if os.getpid() == owner:
        for each in _folders.values():
            each.remove()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _folders.clear()
    _in_turn.clear()


atexit.register(_remove_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
