"""What the virtual machine's tests share: what machine this is, how to run a box, and where its cgroup is.

These tests run inside the machine that tests/vm/run.sh boots, as root and as an ordinary user.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
SLOW = float(os.environ.get("PCTX_TEST_SLOW", "1"))
PROFILE = "pctx-sandbox-guest"


def pytest_collection_modifyitems(items):
    """On a host without the machine these tests claim nothing."""
    if os.environ.get("PCTX_VM") != "1":
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="runs inside the virtual machine only (tests/vm/run.sh)"))


def wait_until(condition, seconds=2.0):
    """The condition's first true value; patience is multiplied on slow machines. None when the time is up."""
    deadline = time.monotonic() + seconds * SLOW
    while not (value := condition()):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return value


class Machine:
    """What this machine has, read from the kernel and not from the program under test."""

    root = os.geteuid() == 0
    kernel = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    systemd = Path("/proc/1/comm").read_text().strip() == "systemd"

    @property
    def controllers(self):
        return set((CGROUPS / "cgroup.controllers").read_text().split())

    @property
    def lends_cgroups(self):
        """Root may always make cgroups; a user may where systemd lends some."""
        return self.root or self.systemd

    @property
    def landlock_abi(self):
        return max(0, ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1))

    @property
    def apparmor(self):
        with contextlib.suppress(OSError):
            return Path("/sys/module/apparmor/parameters/enabled").read_text().strip() == "Y"
        return False


class Ended:
    """A box that ended: status, output and the report."""

    def __init__(self, status, stdout, stderr, report):
        self.status, self.stdout, self.stderr, self.report = status, stdout, stderr, report

    def __repr__(self):  # what pytest prints for a failed claim
        output = f"stdout {self.stdout[-1500:]!r}\nstderr {self.stderr[-1500:]!r}"
        return f"status {self.status}\n{output}\nreport {self.report}"

    @property
    def outcome(self):
        return self.report["outcome"]["kind"]

    def layer(self, name):
        return self.report["receipt"]["layers"][name]


class Running:
    """A box that runs: found by a word that only its guest's command line has."""

    def __init__(self, process, marker):
        self.process, self.marker = process, marker

    @property
    def guest(self):
        """The guest's process id outside, or None."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    # Ours and our helpers' lines hold the whole command; the guest's starts with it.
                    if words[0].endswith(b"sleep") and self.marker.encode() in words:
                        return int(entry.name)
        return None

    @property
    def cgroup(self):
        path = Path(f"/proc/{self.guest}/cgroup").read_text().split("::", 1)[1].strip()
        return CGROUPS / path.lstrip("/")

    def limit(self, name):
        """The value of a limit file, from the guest's cgroup or the nearest one above that sets it."""
        directory = self.cgroup
        while directory != CGROUPS:
            with contextlib.suppress(OSError):
                text = (directory / name).read_text().strip()
                if text and not text.startswith("max"):
                    return text
            directory = directory.parent
        return None


@pytest.fixture(scope="session")
def machine():
    return Machine()


@pytest.fixture(scope="session")
def binary():
    return os.environ["PCTX_SANDBOX_BIN"]


@pytest.fixture
def box(binary, tmp_path):
    """box("--memory", "64M", "--", "true") runs a box to its end."""

    def run(*arguments, prefix=(), env=None, limit=60):
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        command = [*prefix, binary, "run", "--report", str(report), *map(str, arguments)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=limit * max(1, SLOW / 4)
        )
        text = report.read_text() if report.exists() else ""
        return Ended(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
            json.loads(text) if text else None,
        )

    return run


@pytest.fixture
def running(binary):
    """running("--pids", "9") starts a box whose guest sleeps; whatever is left of it is killed after the test."""
    started = []

    def start(*arguments, prefix=()):
        marker = f"{86000 + len(started)}.{os.getpid()}"
        command = [*prefix, binary, "run", "--timeout", "600s", *map(str, arguments), "--", "/usr/bin/sleep", marker]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(Running(process, marker))
        if not wait_until(lambda: started[-1].guest or process.poll() is not None) or process.poll() is not None:
            process.kill()
            pytest.fail(f"no guest appeared: {process.communicate()[0].decode(errors='replace')}")
        return started[-1]

    yield start
    for item in started:
        item.process.kill()
        item.process.communicate()


@pytest.fixture
def cgroups_left():
    """cgroups_left() names the directories of /sys/fs/cgroup that were not there when the test began, once they stay.

    Only names that are ours count: systemd makes and removes units of its own meanwhile.
    """

    def below():
        found = set()
        for directory, folders, _ in os.walk(CGROUPS):
            found.update(os.path.join(directory, folder) for folder in folders)
        return found

    before = below()

    def left(seconds=2.0):
        def news():
            return sorted(path for path in below() - before if "pctx" in path)

        wait_until(lambda: not news(), seconds)
        return news()

    return left
