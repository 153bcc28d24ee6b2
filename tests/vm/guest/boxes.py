"""Boxes and the machine they run on, seen from outside: what the tests compare the program's own words with."""

import contextlib
import ctypes
import os
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SLOW = float(os.environ.get("PCTX_TEST_SLOW", "1"))
PROFILE = "pctx-sandbox-guest"
# Made by image.sh on Debian's root.
VENV = "/home/tester/venv"
RESTRICTION = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def wait_until(condition, seconds=2.0):
    """The condition's first true value; patience is multiplied on slow machines. None when the time is up."""
    deadline = time.monotonic() + seconds * SLOW
    while not (value := condition()):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return value


def with_own_broker(binary, folder):
    """The environment of a program whose calls go to a Broker of its own, with the package of this tree."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "python"),
        "PCTX_SANDBOX_BINARY": binary,
        "PCTX_SANDBOX_SOCKET": str(folder / "broker.sock"),
    }


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

    def bound_by(self, limit):
        """The mechanism that the receipt names for a limit."""
        return self.report["receipt"]["limits"][limit]["by"]

    def usage(self, name):
        return self.report["receipt"]["usage"][name]


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
