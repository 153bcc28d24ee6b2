"""After any end there is no process, mount, cgroup or temporary file of a box: also after kill -9 at any moment."""

import contextlib
import glob
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from waiting import in_time


def processes(marker):
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


# What tests make for themselves, in a file like this one or in a suite that runs beside it.
OF_TESTS = re.compile(r"pctx-(tests|open|folders|[a-z])-|pytest-")


def traces():
    """What boxes of this user leave on a host, apart from processes; others may be at work at the same time."""
    return {
        "cgroups": set(glob.glob("/sys/fs/cgroup/**/pctx-box-*", recursive=True)),
        "mounts": {
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if "pctx" in line and "/containers/storage/" not in line  # Podman's own, in a tree of that name
        },
        "files": {
            name
            for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", os.environ.get("XDG_RUNTIME_DIR", "/run"))
            for name in glob.glob(f"{place}/*pctx*")
            if not OF_TESTS.match(os.path.basename(name)) and is_own(name)
        },
    }


def is_own(path):
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path).st_uid == os.geteuid()
    return False


def own_cgroups(pids):
    return {path for path in traces()["cgroups"] if any(f"pctx-box-{pid}-" in path for pid in pids)}


@pytest.fixture
def marker():
    word = f"marker{os.urandom(8).hex()}"
    yield word
    for pid in processes(word):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


ENDS = {
    "exit": ["true"],
    "signal": ["sh", "-c", "kill -9 $$"],
    "missing command": ["/nonexistent"],
    "time limit": ["sleep", "20"],
    "memory limit": ["python3", "-c", "bytearray(10**9)"],
    "background process": ["sh", "-c", "sleep 100 &"],
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_after(sandbox_bin, marker, tmp_path, end):
    before = traces()
    command = [sandbox_bin, "run", "--timeout", "1s", "--memory", "64M", "--mnt", tmp_path, "--env", f"X={marker}"]
    process = subprocess.Popen([*command, "--", *ENDS[end]], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    process.communicate(timeout=30)
    assert processes(marker) == [] and own_cgroups([process.pid]) == set()
    after = traces()
    assert after["mounts"] <= before["mounts"] and after["files"] <= before["files"]


def killed_at_random(command, marker, rounds):
    pids = []
    for _ in range(rounds):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        pids.append(process.pid)
        time.sleep(random.uniform(0, 0.04))
        process.kill()
        process.wait()
    return pids


def test_kill_9_of_the_supervisor_leaves_nothing(sandbox_bin, pctx, marker):
    before = traces()
    command = [sandbox_bin, "run", "-q", "--env", f"X={marker}", "--", "sh", "-c", "sleep 100 & sleep 100"]
    pids = killed_at_random(command, marker, 40)
    assert in_time(lambda: not processes(marker)), [Path(f"/proc/{p}/cmdline").read_bytes() for p in processes(marker)]
    # Killed before its janitor was there, a supervisor leaves an empty cgroup to the next run's sweep.
    assert in_time(lambda: not own_cgroups(pids), seconds=3) or pctx("run", "-q", "--", "true").returncode == 0
    assert own_cgroups(pids) == set()
    after = traces()
    assert after["mounts"] <= before["mounts"] and after["files"] <= before["files"]


@pytest.mark.root_only
def test_kill_9_while_a_folder_is_lent_leaves_nothing(sandbox_bin, marker, tmp_path):
    lent = [word for n in range(40) for word in ("--ro", f"{tmp_path}:/lent{n}")]
    command = [sandbox_bin, "run", "-q", "--env", f"X={marker}", *lent, "--", "sleep", "100"]
    for _ in range(25):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and not children.read_text():
            pass
        process.kill()  # its first child is there: one that holds an id map
        process.wait()
    assert in_time(lambda: not processes(marker), seconds=3)


def test_next_run_sweeps_when_supervisor_and_janitor_were_killed(sandbox_bin, pctx, layers, marker):
    if not layers["cgroups"]["on"]:
        pytest.skip(f"needs cgroups, or there is nothing to sweep: {layers['cgroups']['detail']}")
    command = [sandbox_bin, "run", "-q", "--env", f"X={marker}", "--", "sh", "-c", "echo up; sleep 100"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    own = os.readlink("/proc/self/ns/pid")
    janitors = [int(pid) for pid in children if os.readlink(f"/proc/{pid}/ns/pid") == own]
    assert janitors and own_cgroups([process.pid])
    os.kill(process.pid, signal.SIGSTOP)  # it must not tidy up between the two kills
    for pid in janitors:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    process.stdout.close()
    assert in_time(lambda: not processes(marker))  # init notices by itself
    assert own_cgroups([process.pid])
    assert pctx("run", "-q", "--", "true").returncode == 0
    assert own_cgroups([process.pid]) == set()


def test_janitor_alone_killed_changes_nothing(sandbox_bin, layers, marker):
    if not layers["cgroups"]["on"]:
        pytest.skip(f"needs cgroups, or there is no janitor: {layers['cgroups']['detail']}")
    command = [sandbox_bin, "run", "-q", "--env", f"X={marker}", "--", "sh", "-c", "echo up; read line; exit 3"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    own = os.readlink("/proc/self/ns/pid")
    for pid in children:
        if os.readlink(f"/proc/{pid}/ns/pid") == own:
            os.kill(int(pid), signal.SIGKILL)
    process.communicate(b"go\n", timeout=20)
    assert process.returncode == 3 and own_cgroups([process.pid]) == set() and processes(marker) == []
