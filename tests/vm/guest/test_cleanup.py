"""After any end nothing of a box is left: no process, no cgroup, no mount."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from boxes import wait_until

pytestmark = pytest.mark.vm


def mounts():
    return Path("/proc/self/mountinfo").read_text()


ENDINGS = {
    "exit": (["--", "true"], 0),
    "out of memory": (["--memory", "32M", "--", "/usr/bin/python3", "-c", "bytearray(200 << 20)"], 137),
    "time": (["--timeout", "1s", "--", "sleep", "100"], 124),
    "daemon": (["--", "sh", "-c", "setsid sleep 300 > /dev/null 2>&1 & exit 3"], 3),
    "no such command": (["--", "/no/such/command"], 127),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_box_that_ended_leaves_no_cgroup_and_no_mount(box, cgroups_left, name):
    arguments, status = ENDINGS[name]
    before = mounts()
    assert box(*arguments).status == status
    assert cgroups_left() == []
    assert mounts() == before


@pytest.mark.lent
def test_a_running_box_has_a_cgroup_of_its_own(running, cgroups_left):
    """The control of this file: what the others find gone was there."""
    item = running("--memory", "77M", "--pids", "9")
    assert item.limit("memory.max") == str(77 << 20)
    assert item.cgroup != Path("/sys/fs/cgroup" + Path("/proc/self/cgroup").read_text().split("::")[1].strip())
    assert cgroups_left(seconds=0) != []


def test_the_guest_sees_nothing_of_the_cgroup_tree(box):
    ended = box("--", "cat", "/proc/self/cgroup")
    assert ended.stdout.strip() == "0::/", ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_the_box_dies_with_its_supervisor(running, cgroups_left, number):
    item = running()
    assert item.guest
    item.process.send_signal(number)
    item.process.wait()
    assert wait_until(lambda: item.guest is None), "the guest outlived its supervisor"
    assert cgroups_left() == []


def test_the_next_run_sweeps_after_supervisor_and_janitor_were_killed(running, box, cgroups_left):
    item = running()
    own = family(item.process.pid)
    for pid in own:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    item.process.wait()
    assert wait_until(lambda: item.guest is None), "the guest outlived its supervisor"
    assert box("--", "true").status == 0
    assert cgroups_left() == []


def family(pid):
    """The process and its descendants outside the box: those in our own pid namespace that we may signal."""
    found, table = [pid], {}
    for line in subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout.splitlines():
        child, parent = map(int, line.split())
        table.setdefault(parent, []).append(child)
    for parent in found:
        found += table.get(parent, [])
    home = os.readlink("/proc/self/ns/pid")
    ours = []
    for child in found:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{child}/ns/pid") == home:
                ours.append(child)
    return ours
