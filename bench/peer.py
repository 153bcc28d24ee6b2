"""pctx-sandbox 0.1.0 as a contestant: installs it from the index into a virtual environment of its own, once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
VERSION = "0.1.0"
INSIDE = TREE / "bench" / "peer_inside.py"


class PeerMissing(Exception):
    """It cannot be installed or started here; the message says why."""


class Peer:
    """Its agent and a client of it. `call(name)` gives the milliseconds of one call."""

    def __init__(self, home: Path = TREE / "build" / f"peer-{VERSION}") -> None:
        self._processes: list[subprocess.Popen[str]] = []
        python = _install(home)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        # It calls `uv` by name.
        env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with open(home / "agent.log", "w") as log:
            agent = [python, str(INSIDE), "agent", str(port), str(home / "cache")]
            # A session of its own: its workers outlive it, and are found by their group.
            self._processes.append(
                subprocess.Popen(agent, env=env, stdout=log, stderr=log, text=True, start_new_session=True)
            )
            self._driver = subprocess.Popen(
                [python, str(INSIDE), "drive", str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._processes.append(self._driver)
        if self._read() != "ready":
            self.close()
            raise PeerMissing(f"its agent does not start: {_last_line(home / 'agent.log')}")
        try:
            for name in ("noop", "frame"):  # the first calls install pandas and start the workers
                self.call(name)
        except PeerMissing:
            self.close()
            raise PeerMissing(f"its first call fails: {_last_line(home / 'agent.log')}") from None

    def call(self, name: str) -> float:
        assert self._driver.stdin is not None
        try:
            self._driver.stdin.write(f"{name}\n")
            self._driver.stdin.flush()
            return float(self._read())
        except (OSError, ValueError):
            raise PeerMissing("its client ended") from None

    def _read(self) -> str:
        assert self._driver.stdout is not None
        return self._driver.stdout.readline().strip()

    def close(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _install(home: Path) -> str:
    python = home / "bin" / "python"
    package = f"pctx-sandbox=={VERSION}"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", home], check=True, capture_output=True, text=True)
        installed = subprocess.run([python, "-c", "import pctx_sandbox.agent.simple_agent"], capture_output=True)
        if installed.returncode != 0:
            print(f"installing {package} into build/{home.name}", file=sys.stderr)
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
            subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        words = (error.stderr or "").strip().splitlines() or [str(error)]
        raise PeerMissing(f"{package} cannot be installed: {words[-1]}") from None
    return str(python)


def _last_line(log: Path) -> str:
    return (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
