"""Many runs at a time, one in four of them killed at random with kill -9: the supervisor, the guest or the janitor. No
run may end in a way that nobody asked for, and nothing may be left behind."""

import collections
import concurrent.futures
import contextlib
import glob
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

RUNS = int(os.environ.get("PCTX_CHAOS_RUNS", "1000"))
AT_A_TIME = 16
SEED = int(os.environ.get("PCTX_CHAOS_SEED", str(random.randrange(1 << 32))))

# What a run does and how it must end when nobody kills it: (kind, exit status).
KINDS = {
    "quick": (["true"], [], ("exited", 0)),
    "status": (["sh", "-c", "exit 7"], [], ("exited", 7)),
    "child": (["sh", "-c", "sleep 50 & exit 3"], [], ("exited", 3)),
    "signal": (["sh", "-c", "kill -TERM $$"], [], ("signaled", 143)),
    "late": (["sleep", "50"], ["--timeout", "600ms"], ("timed_out", 124)),
    "memory": (["python3", "-c", "bytearray(10**9)"], ["--memory", "32M"], ("out_of_memory", 137)),
    "output": (["yes"], ["--output", "64K"], ("output_limit", 153)),
}
# How a run may end whose guest was killed under it, besides as if nothing had happened.
GUEST_KILLED = ("signaled", 137)


def children(pid):
    with contextlib.suppress(OSError, ValueError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def victims(supervisor, whom):
    """Only processes that the run itself started: they are found from its pid downwards."""
    if whom == "supervisor":
        return [supervisor]
    own = os.readlink("/proc/self/ns/pid")
    janitors, guests = [], []
    for child in children(supervisor):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{child}/ns/pid") == own:
                janitors.append(child)  # and the lookout
            else:
                guests += children(child)
    return {"janitor": janitors, "guest": guests, "both": [*janitors, supervisor]}[whom]


def one_run(binary, marker, folder, number):
    draw = random.Random(SEED + number)
    name = draw.choice(list(KINDS))
    command, options, expected = KINDS[name]
    report = folder / f"{number}.json"
    if draw.random() < 0.3:
        lent = folder / f"mnt{number}"
        lent.mkdir()
        options = [*options, "--mnt", str(lent)]
    process = subprocess.Popen(
        [binary, "run", "-q", "--env", f"X={marker}", "--report", report, *options, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    whom = draw.choice(["supervisor", "guest", "janitor", "both"]) if draw.random() < 0.25 else None
    killed = False
    if whom:
        time.sleep(draw.uniform(0, 0.25))
        for pid in victims(process.pid, whom):
            # Not reaped before wait() below, so the supervisor's number cannot be another's by now.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed = True
    status = process.wait(60)
    if status == -signal.SIGKILL:
        right = killed and whom in ("supervisor", "both")
        return name, whom, right, "supervisor killed", process.pid
    try:
        outcome = json.loads(report.read_text())["outcome"]
    except (OSError, ValueError, KeyError):
        return name, whom, False, f"exit {status} without a report", process.pid
    ended = (outcome["kind"], status)
    right = ended == expected or (killed and whom == "guest" and ended == GUEST_KILLED)
    return name, whom, right, ended, process.pid


def left_processes(marker):
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.chaos
def test_nothing_is_left_and_no_outcome_is_wrong(sandbox_bin, pctx, tmp_path):
    marker = f"chaos{os.urandom(8).hex()}"
    mounts = Path("/proc/self/mountinfo").read_text().count("pctx")
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        ends = list(pool.map(lambda n: one_run(sandbox_bin, marker, tmp_path, n), range(RUNS)))
    wrong = collections.Counter((name, whom, ended) for name, whom, right, ended, _ in ends if not right)
    assert not wrong, f"seed {SEED}: {dict(wrong)}"

    deadline = time.monotonic() + 20
    while left_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = left_processes(marker)
    shown = [Path(f"/proc/{pid}/status").read_text().splitlines()[0] for pid in left]
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"seed {SEED}: {shown}"

    assert pctx("run", "-q", "--", "true").returncode == 0  # sweeps what supervisor and janitor left, killed both
    names = {f"pctx-box-{pid}-" for *_, pid in ends}
    cgroups = [
        path for path in glob.glob("/sys/fs/cgroup/**/pctx-box-*", recursive=True) if any(n in path for n in names)
    ]
    assert not cgroups, f"seed {SEED}: {cgroups}"
    assert Path("/proc/self/mountinfo").read_text().count("pctx") <= mounts
