"""The usage of a receipt: CPU time and memory of the whole box, however it ends, or null where nobody counts.

Guests use at least a known amount, by their own clock, and the bounds leave room for a machine that is busy.
"""

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

MIB = 1 << 20
FOR_EVER = "while :; do :; done"
# Half a second of its own CPU time, and what else is asked for.
BUSY = "import os, signal, sys, time\nwhile time.process_time() < 0.5: pass\n"
ENOUGH_MS = 300


def peak(ended):
    """Peak memory in bytes; kernels with cgroup v2 count it from 5.19 on."""
    found = ended["receipt"]["usage"]["peak_memory_bytes"]
    if found is None and ended["receipt"]["limits"]["memory"]["by"] == "cgroup v2":
        assert tuple(map(int, platform.release().split("-")[0].split(".")[:2])) < (5, 19)
        pytest.skip("needs memory.peak, which came with Linux 5.19")
    return found


def cpu(ended):
    return ended["receipt"]["usage"]["cpu_ms"]


def test_usage_is_measured(report):
    code = "x = bytearray(50 << 20); sum(range(3 * 10**6)); print('done')"
    ended = report("--", "python3", "-c", code)
    usage = ended["receipt"]["usage"]
    assert usage["stdout_bytes"] == 5 and usage["stderr_bytes"] == 0
    assert 0 < cpu(ended) <= usage["wall_ms"] * 4
    assert peak(ended) > 50 * MIB


# --- CPU time --------------------------------------------------------------------------------------------------------


def test_idle_guests_use_little(report):
    """The control of those below: it is not the wall clock that is shown."""
    ended = report("--timeout", "2s", "--", "sleep", "60")
    assert ended["outcome"]["limit"] == "timeout" and cpu(ended) < ENOUGH_MS


def test_cpu_time_until_the_timeout(report):
    ended = report("--timeout", "3s", "--", "sh", "-c", FOR_EVER)
    assert ended["outcome"]["limit"] == "timeout" and cpu(ended) >= ENOUGH_MS


def test_cpu_time_of_a_tree_until_the_timeout(report):
    tree = f"(sh -c '{FOR_EVER}'; :) & sleep 60; :"
    ended = report("--timeout", "3s", "--", "sh", "-c", tree)
    assert ended["outcome"]["limit"] == "timeout" and cpu(ended) >= ENOUGH_MS


def test_cpu_time_that_is_used_up(report):
    ended = report("--cpu-time", "1s", "--", "sh", "-c", FOR_EVER)
    assert ended["outcome"]["limit"] == "cpu-time" and cpu(ended) >= 900


@pytest.mark.parametrize(
    "options, end, kind",
    [
        ([], "sys.exit(3)", "exited"),
        ([], "os.kill(os.getpid(), signal.SIGKILL)", "signaled"),
        (["--memory", "64M"], "bytearray(10**9)", "out_of_memory"),
        (["--output", "1K"], "print('x' * 10**6, flush=True); time.sleep(60)", "output_limit"),
    ],
)
def test_cpu_time_whatever_the_end(report, options, end, kind):
    ended = report(*options, "--", "python3", "-c", BUSY + end)
    assert ended["outcome"]["kind"] == kind and cpu(ended) >= ENOUGH_MS


def test_cpu_time_of_what_a_guest_leaves_behind(report):
    code = f"""
import os
told, tell = os.pipe()
if os.fork() == 0:
    {BUSY.replace(chr(10), chr(10) + "    ")}
    os.write(tell, b"x")
    while True: pass
os.read(told, 1)
"""
    ended = report("--", "python3", "-c", code)
    assert ended["outcome"]["exit_code"] == 0 and cpu(ended) >= ENOUGH_MS


def test_cpu_time_of_orphans_that_have_ended(report):
    code = f"""
import os
told, tell = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        {BUSY.replace(chr(10), chr(10) + "        ")}
    os._exit(0)
os.wait()
os.close(tell)
os.read(told, 1)
"""
    ended = report("--", "python3", "-c", code)
    assert ended["outcome"]["exit_code"] == 0 and cpu(ended) >= ENOUGH_MS


@pytest.mark.rootless_only
def test_cpu_time_of_children_that_nobody_waits_for(report):
    """With SIGCHLD ignored the kernel drops their account: then what the watchdog saw counts, or the cgroup."""
    code = f"""
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
told, tell = os.pipe()
if os.fork() == 0:
    {BUSY.replace(chr(10), chr(10) + "    ")}
    os._exit(0)
os.close(tell)
os.read(told, 1)
"""
    ended = report("--", "python3", "-c", code)
    assert ended["outcome"]["exit_code"] == 0 and cpu(ended) >= ENOUGH_MS


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def test_cpu_time_is_right_or_null_when_init_is_killed_from_outside(sandbox_bin, tmp_path):
    """Nobody has waited for the guest then."""
    said = tmp_path / "report.json"
    run = [sandbox_bin, "run", "-q", "--report", said, "--", "python3", "-uc", BUSY + "print('used'); time.sleep(60)"]
    with subprocess.Popen(run, stdout=subprocess.PIPE) as box:
        assert box.stdout.readline() == b"used\n"
        os.kill(next(pid for pid in children(box.pid) if command(pid)[0] == b"init"), 9)
        box.wait(60)
    ended = json.loads(said.read_text())
    assert ended["outcome"]["signal"] == 9
    assert cpu(ended) is None or cpu(ended) >= ENOUGH_MS


# --- memory ----------------------------------------------------------------------------------------------------------


def test_small_guests_hold_little(report):
    """The control of those below."""
    assert 0 < peak(report("--", "true")) < 32 * MIB


def test_peak_memory_of_a_guest_that_ran_out_of_it(report):
    ended = report("--memory", "64M", "--", "python3", "-c", "bytearray(10**9)")
    assert ended["outcome"]["kind"] == "out_of_memory" and peak(ended) >= 60 * MIB


def test_peak_memory_that_is_held_until_the_timeout(report):
    code = "import time; held = bytearray(300 << 20); time.sleep(60)"
    ended = report("--memory", "1G", "--timeout", "5s", "--", "python3", "-c", code)
    assert ended["outcome"]["limit"] == "timeout" and 300 * MIB <= peak(ended) < 400 * MIB


def test_peak_memory_counts_what_is_stored(report):
    ended = report("--memory", "1G", "--disk", "200M", "--", "sh", "-c", "head -c 100000000 /dev/zero > /tmp/x")
    assert ended["outcome"]["exit_code"] == 0 and 95 * MIB <= peak(ended) < 200 * MIB


FAMILY = """
import os, time
if {before}: held = bytearray(100 << 20)
told, tell = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        if not {before}: held = bytearray(100 << 20)
        os.write(tell, b"x")
        time.sleep(60)
for _ in range(4): os.read(told, 1)
time.sleep(0.5)
"""


def test_peak_memory_is_the_sum_of_all_processes(report):
    ended = report("--memory", "1G", "--", "python3", "-c", FAMILY.format(before=False))
    assert ended["outcome"]["exit_code"] == 0 and 400 * MIB <= peak(ended) < 520 * MIB


def test_peak_memory_counts_shared_pages_once(report):
    ended = report("--memory", "1G", "--", "python3", "-c", FAMILY.format(before=True))
    assert ended["outcome"]["exit_code"] == 0 and 100 * MIB <= peak(ended) < 200 * MIB


# --- warm calls ------------------------------------------------------------------------------------------------------


def spin():
    import time

    while time.process_time() < 0.5:
        pass
    print("done")


def leave_spinning():
    import os
    import time

    told, tell = os.pipe()
    if os.fork() == 0:
        while time.process_time() < 0.5:
            pass
        os.write(tell, b"x")
        while True:
            pass
    os.read(told, 1)


def leave_an_orphan():
    import os
    import time

    told, tell = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            while time.process_time() < 0.5:
                pass
        os._exit(0)
    os.wait()
    os.close(tell)
    os.read(told, 1)


def hold():
    import time

    held = bytearray(200 << 20)
    time.sleep(0.5)
    return len(held)


@pytest.mark.parametrize("function", [spin, leave_spinning, leave_an_orphan])
def test_cpu_time_of_a_call(own_broker, function):
    from pctx_sandbox import sandbox

    call = sandbox(function)
    # Several: whether the box's init has ended when the Worker's end is heard of differs from call to call.
    used = [call.run().receipt["usage"]["cpu_ms"] for _ in range(4)]
    assert min(used) >= ENOUGH_MS


def test_a_call_that_does_nothing_uses_little(own_broker):
    from pctx_sandbox import sandbox

    ended = {"receipt": sandbox(lambda: 1).run().receipt}
    assert cpu(ended) < ENOUGH_MS and 0 < peak(ended) < 64 * MIB


def test_peak_memory_of_a_call(own_broker):
    from pctx_sandbox import sandbox

    assert 200 * MIB <= peak({"receipt": sandbox(hold, memory_mb=1024).run().receipt}) < 300 * MIB


def test_output_of_a_call_is_counted(own_broker):
    from pctx_sandbox import sandbox

    usage = sandbox(spin).run().receipt["usage"]
    assert (usage["stdout_bytes"], usage["stderr_bytes"]) == (5, 0)
