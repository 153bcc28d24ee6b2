"""The container of the Podman backend, seen from outside."""

import os
import subprocess
from pathlib import Path

from boxes import CGROUPS, SLOW

LIMIT = 60 * max(1, SLOW / 4)


def podman(*words, check=True):
    done = subprocess.run(["podman", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT)
    assert not check or done.returncode == 0, f"podman {words}: {done.stderr}"
    return done


def run(binary, environment, *words):
    command = [binary, "run", "--backend", "podman", "--timeout", "250s", *words]
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=LIMIT
    )


def cgroup(container):
    """The container's own cgroup; its processes are in a leaf of it, beside those of boxes."""
    pid = podman("inspect", "--format", "{{.State.Pid}}", container).stdout.strip()
    own = CGROUPS / Path(f"/proc/{pid}/cgroup").read_text().split("::", 1)[1].strip().lstrip("/")
    return own.parent if own.name == "supervisor" else own


def lends_io():
    """Root has the io controller; systemd lends it to a user only where an administrator says so."""
    user = os.geteuid()
    lent = CGROUPS / f"user.slice/user-{user}.slice/user@{user}.service/cgroup.controllers"
    return user == 0 or "io" in lent.read_text().split()


def as_podman(*words):
    """A command that may do what Podman may: without root that takes the user namespace of its containers."""
    prefix = [] if os.geteuid() == 0 else ["podman", "unshare"]
    subprocess.run([*prefix, *map(str, words)], check=True, stdin=subprocess.DEVNULL, timeout=LIMIT)


def write_limit(file, value):
    as_podman("sh", "-c", f"echo {value} > {file}")
