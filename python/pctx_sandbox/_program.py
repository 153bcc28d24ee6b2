"""Finds the engine's program and the Broker's socket, and starts the Broker."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from .errors import PlatformNotSupportedError, SandboxStartupError

VERSION = "0.2.0"
START_SECONDS = 60

WAYS = {
    "darwin": "run this program in a Linux machine: `brew install podman` or `brew install lima`, then Linux inside",
    "win32": "run this program in WSL2: `wsl --install`, then install pctx-sandbox inside",
}


def require_linux() -> None:
    """Raises PlatformNotSupportedError, with the way that works, where boxes cannot be made."""
    if not sys.platform.startswith("linux"):
        way = WAYS.get(
            sys.platform, "run this program on Linux, in a container or a virtual machine (podman, lima, WSL2)"
        )
        raise PlatformNotSupportedError(f"sandboxed calls need Linux, and this is {sys.platform}\nhint: {way}")


def find_program() -> str:
    """The program `pctx-sandbox`. The error lists every place that was looked at."""
    named = os.environ.get("PCTX_SANDBOX_BINARY")
    beside = Path(__file__).resolve().parent / "bin" / "pctx-sandbox"
    places = [named] if named else [str(beside), str(Path(sys.executable or "/").parent / "pctx-sandbox")]
    for place in places:
        if place and os.access(place, os.X_OK) and os.path.isfile(place):
            return place
    found = None if named else shutil.which("pctx-sandbox")
    if found is not None:
        return found
    looked = ", ".join(map(str, places)) + ("" if named else ", PATH")
    raise SandboxStartupError(
        f"the program pctx-sandbox was not found (looked at {looked})\n"
        "hint: install the package again, or set PCTX_SANDBOX_BINARY"
    )


def socket_path() -> str:
    """Where the Broker of this version and user listens."""
    named = os.environ.get("PCTX_SANDBOX_SOCKET")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_private(runtime):
        return os.path.join(runtime, "pctx-sandbox", f"broker-{VERSION}.sock")
    return f"/tmp/pctx-sandbox-{os.geteuid()}/broker-{VERSION}.sock"


def _is_private(folder: str) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def check_folder(path: str) -> None:
    """Refuses a socket whose folder others could have made: a link, another owner, writable for others."""
    if os.environ.get("PCTX_SANDBOX_SOCKET"):
        return
    folder = os.path.dirname(path)
    if os.path.lexists(folder) and not _is_private(folder):
        raise SandboxStartupError(
            f"{folder} is no private folder of this user, so its socket is not trusted\nhint: remove it and call again"
        )


def start_broker() -> None:
    """Runs `pctx-sandbox serve`, which returns once the socket accepts; many at once start one Broker."""
    program = find_program()
    try:
        done = subprocess.run(
            [program, "serve"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SandboxStartupError(
            f"the Broker did not start within {START_SECONDS} seconds\nhint: run `pctx-sandbox doctor`"
        ) from None
    except OSError as error:
        raise SandboxStartupError(f"{program} cannot be run: {error}\nhint: install the package again") from None
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip()[-4000:] or f"exit status {done.returncode}"
        raise SandboxStartupError(f"the Broker did not start: {words}\nhint: run `pctx-sandbox doctor`")
