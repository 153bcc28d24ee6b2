"""A Broker of the tests' own: where it listens, what runs below it, and what it may not leave behind."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from waiting import wait_until


def children_of(pid):
    found = []
    with contextlib.suppress(OSError):  # it may end while we look
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def comm(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def alive(pid):
    """Running, not merely waited for."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def descendants(pid):
    found = []
    for child in children_of(pid):
        found += [child, *descendants(child)]
    return found


def depth_of(pid):
    """How many pid namespaces it is in."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return len(next(line for line in lines if line.startswith("NSpid")).split()) - 1


def own_cgroups(prefix):
    """The cgroups of boxes that a Broker with this pid made."""
    found = os.walk("/sys/fs/cgroup")  # which, unlike glob, does not mind folders that vanish
    return [folder for folder, _, _ in found if os.path.basename(folder).startswith(f"pctx-box-{prefix}-")]


class Broker:
    """The Broker behind one socket; it may be started and ended many times."""

    def __init__(self, program, socket):
        self.program = program
        self.socket = str(socket)
        self.env = os.environ | {"PCTX_SANDBOX_SOCKET": self.socket, "PCTX_SANDBOX_BINARY": program}

    def run(self, *words, timeout=60):
        return subprocess.run(
            [self.program, *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def status(self):
        return json.loads(self.run("status", "--json").stdout)

    @property
    def pid(self):
        status = self.status()
        return status["pid"] if status["running"] else None

    def makers(self):
        return [pid for pid in children_of(self.pid) if comm(pid) == "pctx-maker"]

    def below(self, name):
        """Processes of one kind below the Broker: zygotes and workers are Python, inits are told by their parent."""
        return [pid for maker in self.makers() for pid in children_of(maker) if comm(pid).startswith(name)]

    def victims(self, kind):
        """The processes of one kind that the Broker has now."""
        if kind == "broker":
            return [self.pid]
        makers = self.makers()
        if kind == "maker":
            return makers
        found = []
        for maker in makers:
            for pid in children_of(maker):
                try:
                    depth = depth_of(pid)
                except (OSError, StopIteration):
                    continue
                below_makers = depth - depth_of(maker)
                python = comm(pid).startswith("python")
                if {"zygote": python and below_makers == 0, "worker": python and below_makers == 1}.get(
                    kind, not python and below_makers == 1
                ):
                    found.append(pid)
        return found

    def kill_zygotes(self):
        """Those that there are. Others have taken their place when it is over, though they may not be ready yet."""
        killed = wait_until(lambda: self.victims("zygote"))
        for zygote in killed:
            self.kill(zygote)
        wait_until(lambda: (now := self.victims("zygote")) and not set(killed) & set(now))

    def kill(self, pid=None):
        os.kill(pid or self.pid, signal.SIGKILL)

    def stop(self):
        self.run("stop")

    def everything(self):
        """The Broker and all processes below it, to ask later whether they are gone."""
        pid = self.pid
        return [] if pid is None else [pid, *descendants(pid)]
