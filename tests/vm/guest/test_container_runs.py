"""Each run in the container of the Podman backend has a cgroup of its own; the container's limits stay as they are."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import CGROUPS, wait_until
from containers import LIMIT, as_podman, cgroup, lends_io, podman, run

pytestmark = [pytest.mark.vm, pytest.mark.podman]

PYTHON = "/usr/bin/python3"


def report_of(done):
    assert done.stdout.startswith("{"), f"status {done.returncode}: {done.stdout} {done.stderr}"
    return json.loads(done.stdout)


@pytest.fixture
def started(binary, environment, container):
    """started(code, "--pids", "9") gives the cgroup of a run whose guest does this in Python until the test ends."""
    runs = []

    def start(code, *options):
        marker = f"pctx-marker-{os.getpid()}-{len(runs)}"
        words = [*options, "--timeout", "600s", "--", PYTHON, "-c", code, marker]
        command = [binary, "run", "--backend", "podman", *words]
        runs.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE))
        found = wait_until(lambda: find(marker) or runs[-1].poll() is not None, 20)
        assert isinstance(found, Path), runs[-1].communicate()[1]
        return found

    def find(marker):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    path = (entry / "cgroup").read_text().split("::", 1)[1].strip()
                    if words[0].decode() == PYTHON and marker.encode() in words and "/pctx-box-" in path:
                        return CGROUPS / path.lstrip("/")
        return None

    yield start
    folder = cgroup(container)
    for process in runs:
        process.kill()
        process.communicate()
    # Who is killed takes its run along, and that its cgroup.
    assert wait_until(lambda: not list(folder.glob("pctx-box-*")), 20), list(folder.glob("pctx-box-*"))


SLEEP = "import time; time.sleep(3600)"
BUSY = "while True: pass"


def test_limits_of_a_run_bind_by_a_cgroup_below_the_containers(binary, environment, container, started):
    options = ("--memory", "77M", "--pids", "9", "--cpus", "0.5")
    receipt = report_of(run(binary, environment, *options, "--json", "--", "true"))["receipt"]
    assert receipt["layers"]["cgroups"]["on"], receipt
    assert {receipt["limits"][name]["by"] for name in ("memory", "pids", "cpus")} == {"cgroup v2"}, receipt
    folder = started(SLEEP, *options)
    assert folder.parent == cgroup(container)
    assert (folder / "memory.max").read_text().strip() == str(77 << 20)
    assert int((folder / "pids.max").read_text()) in (9, 10)  # our own init in the box is one of them, or is not
    quota, period = map(int, (folder / "cpu.max").read_text().split())
    assert quota * 2 == period
    # The control: another one has others.
    assert (started(SLEEP, "--memory", "99M") / "memory.max").read_text().strip() == str(99 << 20)


def test_memory_of_a_run_is_bound_by_the_kernel(binary, environment, container):
    folder = cgroup(container)

    def killed():
        return int(dict(line.split() for line in (folder / "memory.events").read_text().splitlines())["oom_kill"])

    code = "print(len(bytearray(150 << 20)))"
    before = killed()
    control = report_of(run(binary, environment, "--json", "--memory", "400M", "--", PYTHON, "-c", code))
    assert (control["outcome"]["kind"], control["stdout"]) == ("exited", f"{150 << 20}\n"), control
    assert killed() == before
    ended = report_of(run(binary, environment, "--json", "--memory", "64M", "--", PYTHON, "-c", code))
    assert ended["outcome"]["kind"] == "out_of_memory", ended
    assert killed() > before


def cpu(folder, name):
    return int(dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())[name])


def test_a_run_gets_a_part_of_a_cpu_and_no_more(started):
    whole = started(BUSY, "--cpus", str(os.cpu_count()))
    assert wait_until(lambda: cpu(whole, "usage_usec") > 1_000_000, 20)
    assert cpu(whole, "nr_throttled") == 0  # the control: one thread, and a CPU for it
    part = started(BUSY, "--cpus", "0.5")
    assert wait_until(lambda: cpu(part, "nr_throttled") > 3, 20)


FORK = """
import os, time
made = 0
try:
    for _ in range(40):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""


def test_processes_of_a_run_are_counted(binary, environment, container):
    assert run(binary, environment, "-q", "--pids", "60", "--", PYTHON, "-c", FORK).stdout == "40\n"  # the control
    made = int(run(binary, environment, "-q", "--pids", "12", "--", PYTHON, "-c", FORK).stdout)
    assert 5 < made < 12


def test_disk_rates_of_a_run_bind_where_the_controller_is_lent(binary, environment, container, started):
    if lends_io():
        assert "wbps=10485760" in (started(SLEEP, "--io-write", "10M") / "io.max").read_text()
        assert "wbps" not in (started(SLEEP) / "io.max").read_text()  # the control
    else:
        refused = run(binary, environment, "--io-write", "10M", "--", "true")
        assert refused.returncode == 125 and "--io-write" in refused.stderr, refused


CALL = """
import os
from pctx_sandbox import sandbox, SandboxMemoryError

def take(size):
    return len(bytearray(size << 20)), os.path.exists("/sys/fs/cgroup")

limited = sandbox(backend="podman", memory_mb=100, cpus=0.5, timeout_sec=250)(take).run(10)
print(limited.receipt["limits"]["memory"]["by"], limited.receipt["limits"]["cpus"]["by"], limited.value)
print(sandbox(backend="podman", memory_mb=400, timeout_sec=250)(take)(200)[0])
try:
    sandbox(backend="podman", memory_mb=100, timeout_sec=250)(take)(200)
except SandboxMemoryError as error:
    print("too much:", str(error).splitlines()[0])
"""


def test_a_warm_call_is_bound_as_well(environment, container):
    done = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, env=environment, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    limits, control, refused = done.stdout.splitlines()
    assert limits == f"cgroup v2 cgroup v2 {(10 << 20, False)}", done.stdout
    assert control == str(200 << 20)
    assert refused.startswith("too much:"), done.stdout


def test_a_guest_sees_nothing_of_it(binary, environment, container):
    look = "import os; print(open('/proc/self/cgroup').read().strip(), os.path.exists('/sys/fs/cgroup'))"
    assert run(binary, environment, "-q", "--", PYTHON, "-c", look).stdout == "0::/ False\n"
    # The control: in the container, outside all boxes, there is something to see.
    assert podman("exec", container, PYTHON, "-c", look).stdout == "0::/supervisor True\n"


# What a Broker in wrong hands could try, as the Broker's user in the container: each file of the container's cgroup as
# it is, and once more from a namespace below, for whose inhabitants the container's cgroup is no root any more.
RAISE = """
import ctypes, os, sys

root = "/sys/fs/cgroup"
below = f"{root}/pctx-try-{os.getpid()}"

def attempt(path, value):
    try:
        with open(path, "w") as file:
            file.write(value)
        return "written"
    except OSError as error:
        return error.strerror

print("own child:", attempt(f"{root}/cgroup.subtree_control", "+memory"))
os.mkdir(below)
print("its limit:", attempt(f"{below}/memory.max", str(64 << 20)))
if os.fork() == 0:
    print("move:", attempt(f"{below}/cgroup.procs", "0"), flush=True)
    for space in ("same", "below"):
        if space == "below" and ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x02000000) != 0:
            print("no namespace", os.strerror(ctypes.get_errno()), flush=True)
        print(f"{space}:", open("/proc/self/cgroup").read().strip(), flush=True)
        for name in sys.argv[1:]:
            print(f"{space} {name}:", attempt(f"{root}/{name}", "max"), flush=True)
    os._exit(0)
os.wait()
while True:  # the kernel keeps a cgroup busy for a moment after its last process
    try:
        os.rmdir(below)
        break
    except OSError as error:
        if error.errno != 16:
            raise
"""
LIMITS = ("memory.max", "memory.swap.max", "pids.max", "cpu.max")


def test_who_holds_the_broker_cannot_raise_the_containers_limits(container):
    folder = cgroup(container)
    before = {name: (folder / name).read_text() for name in LIMITS}
    assert not any(text.startswith("max") for text in before.values()), before

    def attack():
        lines = podman("exec", container, PYTHON, "-c", RAISE, *LIMITS).stdout.splitlines()
        return dict(line.split(": ", 1) for line in lines)

    said = attack()
    # The Broker can do what it must,
    assert said.pop("own child") == said.pop("its limit") == said.pop("move") == "written", said
    assert said.pop("same").startswith("0::/pctx-try-") and said.pop("below") == "0::/", said
    # and nothing to the container.
    assert len(said) == 2 * len(LIMITS) and set(said.values()) == {"Permission denied"}, said
    assert {name: (folder / name).read_text() for name in LIMITS} == before
    # The control: were the files the Broker's, as runtimes leave them without root, a namespace below would do.
    file = folder / "memory.max"
    owner = file.stat().st_uid
    try:
        as_podman("chown", "--reference", folder, file)
        assert attack()["below memory.max"] == "written"
    finally:
        as_podman("sh", "-c", f"echo {before['memory.max'].strip()} > {file}")
        as_podman("chown", "0:0" if owner == 0 else "1:1", file)
    assert (file.read_text(), file.stat().st_uid) == (before["memory.max"], owner)


def test_where_nobody_hands_the_cgroup_over_limits_bind_without_it(binary, environment, container):
    """`podman start` by hand: nobody is outside. The next call of ours has a container with all that belongs to it."""
    inside = ("exec", container, "/pctx-sandbox", "run", "--timeout", "250s")
    layer = report_of(podman(*inside, "--json", "--", "true"))["receipt"]["layers"]["cgroups"]
    assert layer["on"]  # the control
    podman("stop", container)
    podman("start", container)
    receipt = report_of(podman(*inside, "--json", "--", "true"))["receipt"]
    assert not receipt["layers"]["cgroups"]["on"] and "delegated" in receipt["layers"]["cgroups"]["detail"], receipt
    assert receipt["limits"]["memory"]["by"] == "watchdog", receipt
    refused = podman(*inside, "--cpus", "0.5", "--", "true", check=False)
    assert refused.returncode == 125 and "a part of a CPU" in refused.stderr, refused.stderr
    assert report_of(run(binary, environment, "--json", "--", "true"))["receipt"]["layers"]["cgroups"]["on"]


def test_podmans_own_commands_work_as_before(container, started):
    """Some of the files that they write have another owner now."""
    folder = started(SLEEP)
    podman("pause", container)
    try:
        assert wait_until(lambda: "frozen 1" in (folder / "cgroup.events").read_text(), 20)
    finally:
        podman("unpause", container)
    assert wait_until(lambda: "frozen 0" in (folder / "cgroup.events").read_text(), 20)
    processes = int(podman("stats", "--no-stream", "--format", "{{.PIDs}}", container).stdout)
    assert processes > int((folder / "pids.current").read_text()) > 0


def test_a_killed_container_leaves_no_cgroup(binary, environment, container):
    folder = cgroup(container)
    command = [binary, "run", "-q", "--backend", "podman", "--timeout", "600s", "--", "sleep", "3600"]
    guest = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert wait_until(lambda: list(folder.glob("pctx-box-*")), 20)  # the control: there is one to leave
        podman("kill", container)
        assert guest.communicate(timeout=LIMIT)[1] is not None and guest.returncode != 0
    finally:
        guest.kill()
        guest.communicate()
    assert wait_until(lambda: not folder.exists(), 20), list(folder.iterdir())


def test_doctor_says_that_runs_are_limited_too(binary):
    doctor = subprocess.run([binary, "doctor", "--json"], capture_output=True, text=True, timeout=LIMIT)
    found = {each["name"]: each for each in json.loads(doctor.stdout)["backends"]}["podman"]
    assert found["usable"] and "of the container and of each run in it" in found["why"], found
