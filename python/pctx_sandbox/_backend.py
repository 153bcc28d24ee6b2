"""Which backend makes a call's box, and how its Broker is reached.

A backend is an object with the attributes of `Backend`; `resolve` gives the one for a name, once for each process. What
a backend does to have a Broker is the engine's matter (`pctx-sandbox serve --backend NAME`): adding one there is all
that this module needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import Any

from . import _program
from .errors import LimaNotInstalledError, PlatformNotSupportedError, PodmanNotInstalledError, SandboxStartupError

# Building an image and starting a container on a slow disk.
START_SECONDS = 300
# Fetching a virtual machine's image and booting it for the first time.
MACHINE_SECONDS = 2000
# A Broker answers within a millisecond, on a busy machine within some.
ANSWER_SECONDS = 3.0
# After this long without a word a container is looked after: somebody may have paused it.
LOOK_MILLISECONDS = 3000
VARIABLE = "PCTX_SANDBOX_BACKEND"
_ANSWERED = ("backend", "reason", "socket", "uid", "user", "support", "lent", "notices", "limits")


@dataclasses.dataclass(eq=False)
class Backend:
    """Boxes straight from the kernel; the others say what differs."""

    name: str
    reason: str
    socket: str = ""
    uid: int = -1
    user: int = -1  # whose copies of lent folders must be
    support: tuple[str, str] = ("", "")  # a folder for our guest code, and how the Broker sees it
    lent: tuple[str, str] = ("", "")  # the same for copies of folders that calls lend
    notices: tuple[str, ...] = ()
    limits: str = ""  # of the container around all boxes, in words
    folders: dict[str, None] = dataclasses.field(default_factory=dict)  # what this process wants lent, in order
    copied: set[str] = dataclasses.field(default_factory=set)  # our guest code

    def address(self) -> tuple[str, int]:
        """The Broker's socket, and whose it must be."""
        return (self.socket or _program.socket_path()), (self.uid if self.uid >= 0 else os.geteuid())

    def start(self) -> None:
        """Returns once the Broker answers."""
        if not self.socket:
            _program.start_broker()
            return
        self._take(_reach(self.name, [folder for folder in self.folders if os.path.exists(folder)]))
        for folder in tuple(self.copied):
            _copy_support(folder, self.support[0])  # who cleans up folders of the last login takes these along

    def lend(self, folders: Iterable[str]) -> None:
        """Returns once boxes can have these folders of the host, read-only; a container may have to start again."""
        if self.socket:
            with _lock:
                self.folders.update(dict.fromkeys(folders))
            self.start()

    def shown(self) -> dict[str, str]:
        """What a receipt says about it."""
        shown = {"name": self.name, "reason": self.reason}
        return {**shown, "limits": self.limits} if self.limits else shown

    def see_support(self, folder: str) -> str:
        """Our guest code as the Broker finds it: the folder itself, or a copy that the container has."""
        here, there = self.support
        if not here:
            return folder
        self.copied.add(folder)
        if not os.path.isdir(here):
            self.start()
        return os.path.join(there, _copy_support(folder, here))

    def sees(self, path: str) -> str:
        """A path of this host as the Broker sees it."""
        here, there = self.support
        return there + path[len(here) :] if here and path.startswith(here + "/") else path

    def _take(self, answer: dict[str, Any]) -> None:
        self.socket, self.uid, self.user = str(answer["socket"]), int(answer["uid"]), int(answer["user"])
        self.support = (str(answer["support"][0]), str(answer["support"][1]))
        self.lent = (str(answer["lent"][0]), str(answer["lent"][1]))
        self.notices = tuple(map(str, answer["notices"]))
        self.limits = str(answer["limits"])


_lock = threading.Lock()
_resolved: dict[str, Backend] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def resolve(name: str) -> Backend:
    """The backend for a decorator's name. Starts its Broker where that takes a decision or a container."""
    wanted = name if name != "auto" else os.environ.get(VARIABLE) or "auto"
    with _lock:
        known = _resolved.get(wanted)
        if known is None:
            known = _resolved[wanted] = _find(wanted)
    return known


def _find(wanted: str) -> Backend:
    if wanted == "namespaces":
        return Backend("namespaces", "asked for by name")
    if wanted == "auto" and _answers(_program.socket_path()):
        return Backend("namespaces", "its Broker runs on this host")
    answer = _reach(wanted)
    backend = Backend(str(answer["backend"]), str(answer["reason"]))
    if backend.name != "namespaces":
        backend._take(answer)
    return backend


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
    return True


def _reach(name: str, folders: Iterable[str] = ()) -> dict[str, Any]:
    if name == "podman" and shutil.which("podman") is None:
        raise PodmanNotInstalledError(
            f'backend="podman" needs Podman, which is not installed\nhint: {_install_command()}, or use backend="auto"'
        )
    if name == "lima" and shutil.which("limactl") is None:
        raise LimaNotInstalledError(
            'backend="lima" needs Lima, which is not installed\nhint: brew install lima, or use backend="auto"'
        )
    command = [_program.find_program(), "serve", "--backend", name, "--json"]
    prefix = _interpreter_prefix()
    for folder in (*([prefix] if prefix else ()), *folders):
        command += ["--lend", folder]
    seconds = MACHINE_SECONDS if name == "lima" else START_SECONDS
    terminal = sys.stderr is not None and sys.stderr.isatty()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if terminal else subprocess.PIPE,  # progress is for people
            start_new_session=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SandboxStartupError(
            f"the backend {name} did not answer within {seconds} seconds\nhint: run `pctx-sandbox doctor`"
        ) from None
    except OSError as error:
        raise SandboxStartupError(f"{command[0]} cannot be run: {error}\nhint: install the package again") from None
    words = (done.stderr or b"").decode("utf-8", "replace").strip().removeprefix("pctx-sandbox: ")[-4000:]
    if done.returncode != 0:
        if "there is no backend" in words:
            raise PlatformNotSupportedError(
                f'backend="{name}" is not available in this version\nhint: use backend="auto"'
            )
        raise SandboxStartupError(
            words or f"the backend {name} did not start (see above)\nhint: run `pctx-sandbox doctor`"
        )
    try:
        answer = json.loads(done.stdout)
        return {key: answer[key] for key in _ANSWERED}
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxStartupError(
            f"`pctx-sandbox serve --backend` gave an unknown answer: {error!r}\nhint: install the package again"
        ) from None


def _interpreter_prefix() -> str:
    """The caller's own interpreter, where it is not part of the system that every box has."""
    from ._environment import own_python

    python = own_python()
    prefix, found, _ = python.rpartition("/bin/")
    return prefix if found and prefix and not python.startswith("/usr/") else ""


def _install_command() -> str:
    for program, line in (
        ("apt-get", "sudo apt-get install podman"),
        ("dnf", "sudo dnf install podman"),
        ("pacman", "sudo pacman -S podman"),
        ("brew", "brew install podman && podman machine init && podman machine start"),
    ):
        if shutil.which(program, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/opt/homebrew/bin"):
            return line
    return "install podman with this system's package manager"


def connect(backend: Backend) -> socket.socket:
    """A checked connection; starts the Broker if none listens."""
    for attempt in range(3):
        path, uid = backend.address()
        if not backend.socket:
            _program.check_folder(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(path)
            _check_peer(sock, uid)
            if backend.socket and attempt < 2:
                _expect_answer(sock)
            return sock
        except OSError as error:
            sock.close()
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EPROTOTYPE) or attempt == 2:
                raise SandboxStartupError(
                    f"the Broker's socket {path} cannot be used: {error}\nhint: run `pctx-sandbox restart`"
                ) from None
        except BaseException:
            sock.close()
            raise
        if attempt == 1:
            time.sleep(0.2)  # it was just stopped by someone else; the next start waits for its lock
        backend.start()
    raise AssertionError("unreachable")


def look_after(backend: Backend) -> None:
    """Wakes up a container that somebody has paused; one that has gone is the business of whoever waits for it."""
    path, _ = backend.address()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(path)
        except OSError:
            return
        try:
            _expect_answer(sock)
        except ConnectionRefusedError:
            backend.start()


def _expect_answer(sock: socket.socket) -> None:
    """A container that is paused takes connections and says nothing; one that `podman restart` started has no way to
    the relay. Starting it again helps both."""
    sock.settimeout(ANSWER_SECONDS)
    try:
        sock.send(b'{"status": {}}')
        status = sock.recv(1 << 17)
    except (TimeoutError, ConnectionError, BrokenPipeError):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "it does not answer") from None
    if not status or b'"relay":false' in status:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "it is leaving, or has no relay")
    sock.settimeout(None)


def _check_peer(sock: socket.socket, wanted: int) -> None:
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3I", data)[1]
    if uid != wanted:
        raise SandboxStartupError(
            f"the Broker's socket belongs to user {uid}, not to {wanted}\nhint: unset PCTX_SANDBOX_SOCKET"
        )


def _copy_support(folder: str, target: str) -> str:
    """Copies a package of ours to where the container sees it, once for each content: its path below `target`."""
    name = os.path.basename(folder)
    files = []
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in ("__pycache__", "bin"))
        files += [os.path.join(top, each) for each in sorted(names)]
    digest = hashlib.sha256()
    for path in files:
        digest.update(os.path.relpath(path, folder).encode() + b"\0")
        with open(path, "rb") as stream:
            digest.update(hashlib.sha256(stream.read()).digest())
    key = digest.hexdigest()[:32]
    place = os.path.join(target, key)
    if not os.path.isdir(place):
        fresh = tempfile.mkdtemp(prefix="new-", dir=target)
        os.chmod(fresh, 0o755)
        for path in files:
            copy = os.path.join(fresh, name, os.path.relpath(path, folder))
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(path, copy)
        for top, folders, names in os.walk(fresh):
            for each in folders:
                os.chmod(os.path.join(top, each), 0o755)
            for each in names:
                os.chmod(os.path.join(top, each), 0o644)
        with contextlib.suppress(OSError):
            os.rename(fresh, place)  # somebody else was faster: theirs is the same
        shutil.rmtree(fresh, ignore_errors=True)
    return os.path.join(key, name)
