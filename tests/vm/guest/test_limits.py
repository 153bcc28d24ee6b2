"""Limits on cgroup v2. Every claim has its control: the same payload, which a larger limit lets through."""

import os
import shutil
import tempfile
import time

import pytest

pytestmark = pytest.mark.vm

PYTHON = "/usr/bin/python3"
MIB = 1 << 20


def memory_by(machine):
    return "cgroup v2" if machine.lends_cgroups else "watchdog"


# --- memory ----------------------------------------------------------------------------------------------------------

ALLOCATE = "b = bytearray(150 << 20); print('held', len(b) >> 20, flush=True); import time; time.sleep(2)"

# The parent outlives a child's death by memory unless the whole group is killed: it would print "alone".
IN_A_CHILD = """
import os, sys, time
child = os.fork()
if child == 0:
    b = bytearray(150 << 20)
    time.sleep(2)
    os._exit(0)
_, status = os.waitpid(child, 0)
print("child ended well" if status == 0 else "alone", flush=True)
"""

SPREAD_OVER_CHILDREN = """
import os, sys, time
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        b = bytearray(30 << 20)
        time.sleep(30 if len(sys.argv) > 1 else 2)
        os._exit(0)
    children.append(child)
print("alone" if any(os.waitpid(child, 0)[1] for child in children) else "held", flush=True)
"""

FILL_TMPFS = """
block = b"x" * (1 << 20)
with open("/tmp/fill", "wb") as file:
    for _ in range(150):
        file.write(block)
print("filled", flush=True)
"""

MEMORY_PAYLOADS = {
    "process": (ALLOCATE, "held 150"),
    "child": (IN_A_CHILD, "child ended well"),
    "children": (SPREAD_OVER_CHILDREN, "held"),
}


@pytest.mark.parametrize("name", MEMORY_PAYLOADS)
def test_memory_limit_kills_the_whole_box(box, machine, name):
    code, proof = MEMORY_PAYLOADS[name]
    control = box("--memory", "400M", "--", PYTHON, "-c", code)
    assert (control.status, control.stdout.strip()) == (0, proof), control

    ended = box("--memory", "64M", "--", PYTHON, "-c", code)
    assert (ended.status, ended.outcome) == (137, "out_of_memory"), ended
    assert proof not in ended.stdout and "alone" not in ended.stdout, ended
    assert "64 MiB" in ended.stderr and "--memory" in ended.stderr, ended
    assert ended.bound_by("memory") == memory_by(machine), ended


@pytest.mark.lent
def test_files_in_memory_count_against_the_memory_limit(box):
    control = box("--memory", "400M", "--disk", "300M", "--", PYTHON, "-c", FILL_TMPFS)
    assert (control.status, control.stdout.strip()) == (0, "filled"), control

    ended = box("--memory", "64M", "--disk", "300M", "--", PYTHON, "-c", FILL_TMPFS)
    assert (ended.status, ended.outcome) == (137, "out_of_memory"), ended


def test_a_guest_that_kills_itself_is_not_out_of_memory(box):
    ended = box("--memory", "64M", "--", PYTHON, "-c", "import os; os.kill(os.getpid(), 9)")
    assert (ended.status, ended.outcome) == (137, "signaled"), ended


@pytest.mark.lent
def test_peak_memory_is_what_the_guest_held(box, machine):
    if machine.kernel < (5, 19):
        pytest.skip("needs memory.peak, which came with Linux 5.19")
    ended = box("--memory", "400M", "--", PYTHON, "-c", ALLOCATE)
    assert 150 * MIB <= ended.usage("peak_memory_bytes") <= 250 * MIB, ended


SEMAPHORES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
held = 0
while held < 75 and libc.semget(0, 32000, 0o600) >= 0:  # of 64 bytes each
    held += 1
print("held", held, "sets", ctypes.get_errno(), flush=True)
"""


@pytest.mark.lent
def test_semaphores_count_or_are_refused(box, machine):
    if machine.kernel < (5, 15):  # charged to nobody: 150 MB of them in a box of 64
        assert box("--memory", "64M", "--", PYTHON, "-c", SEMAPHORES).stdout.strip() == "held 0 sets 1"
    else:
        control = box("--memory", "400M", "--", PYTHON, "-c", SEMAPHORES)
        assert control.stdout.strip() == "held 75 sets 0", control
        ended = box("--memory", "64M", "--", PYTHON, "-c", SEMAPHORES)
        assert (ended.status, ended.outcome) == (137, "out_of_memory"), ended


# --- processes -------------------------------------------------------------------------------------------------------

FORK_TWENTY = """
import errno, os, signal, time
children, refused = [], None
for _ in range(20):
    try:
        child = os.fork()
    except OSError as error:
        refused = error.errno
        break
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
time.sleep(1)  # a watchdog needs a moment
for child in children:
    os.kill(child, signal.SIGKILL)
print(len(children), errno.errorcode.get(refused), flush=True)
"""

THREAD_TWENTY = """
import threading, time
stop, started = threading.Event(), 0
try:
    for _ in range(20):
        threading.Thread(target=stop.wait, daemon=True).start()
        started += 1
    time.sleep(1)
    print(started, None, flush=True)
except RuntimeError:
    print(started, "EAGAIN", flush=True)
stop.set()
"""


@pytest.mark.parametrize("code", [FORK_TWENTY, THREAD_TWENTY], ids=["processes", "threads"])
def test_pids_limit_refuses_the_next_process(box, machine, code):
    control = box("--pids", "40", "--", PYTHON, "-c", code)
    assert control.stdout.split() == ["20", "None"], control

    ended = box("--pids", "8", "--", PYTHON, "-c", code)
    if ended.bound_by("pids") == "watchdog":  # kernels before 5.14: no limit per box, so the box is ended instead
        assert ended.outcome != "exited", ended
        return
    # The interpreter itself is one of the eight.
    assert ended.stdout.split() == ["7", "EAGAIN"], ended
    assert ended.bound_by("pids") == ("cgroup v2" if machine.lends_cgroups else "rlimit")


# --- processors ------------------------------------------------------------------------------------------------------

BUSY = """
import time
begun, end = time.process_time(), time.monotonic() + 4
while time.monotonic() < end:
    pass
print(time.process_time() - begun)
"""


@pytest.mark.lent
def test_a_part_of_a_cpu_is_all_the_guest_gets(box):
    control = box("--cpus", "1", "--", PYTHON, "-c", BUSY)
    assert float(control.stdout) > 3, control

    # 4 s at a quarter is 1 s. An emulated processor that the host takes away in the meantime counts as used, so a busy
    # host gets more than one try; unbound, each of them would give 4.
    for _ in range(5):
        ended = box("--cpus", "0.25", "--", PYTHON, "-c", BUSY)
        assert ended.bound_by("cpus") == "cgroup v2"
        if float(ended.stdout) < 2:
            break
    assert float(ended.stdout) < 2, ended


@pytest.mark.lent
def test_two_processes_share_one_cpu(box):
    both = "import os\nos.fork()\n" + BUSY
    control = box("--cpus", "2", "--", PYTHON, "-c", both + "\nimport time; time.sleep(1)")
    if sum(map(float, control.stdout.split())) < 5:
        pytest.skip("needs a second processor that is free: two busy processes got no more than one")
    for _ in range(5):  # as above
        ended = box("--cpus", "1", "--", PYTHON, "-c", both + "\nimport time; time.sleep(1)")
        if sum(map(float, ended.stdout.split())) < 5:
            break
    assert sum(map(float, ended.stdout.split())) < 5, ended


@pytest.mark.unlent
def test_without_cgroups_a_part_of_a_cpu_is_refused_with_cause_and_fix(box):
    control = box("--cpus", "1", "--", "true")
    assert control.status == 0, control
    ended = box("--cpus", "0.5", "--", "true")
    assert ended.status == 125, ended
    assert "cgroup" in ended.stderr and "--allow-degraded" in ended.stderr, ended


# --- input and output ------------------------------------------------------------------------------------------------

WRITE = """
import os, time
began = time.monotonic()
# A new file: the kernel charges writeback to the cgroup that dirtied a file first, and follows changes only slowly.
if os.path.exists("/mnt/data"):
    os.unlink("/mnt/data")
file = os.open("/mnt/data", os.O_RDWR | os.O_CREAT)
for _ in range(12):
    os.write(file, b"x" * (1 << 20))
os.fsync(file)
print(time.monotonic() - began)
"""

READ = """
import os, time
file = os.open("/mnt/data", os.O_RDONLY)
began = time.monotonic()
while os.read(file, 1 << 20):
    pass
print(time.monotonic() - began)
"""


@pytest.fixture
def disk():
    """A folder on the virtual disk: a memory file system has no device to throttle."""
    folder = tempfile.mkdtemp(prefix="pctx-io-", dir="/var/tmp")
    os.chmod(folder, 0o777)
    yield folder
    shutil.rmtree(folder)


def drop_from_memory(path):
    """From outside: for a guest that is answered as done, since others may need the pages."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


@pytest.mark.root_only
def test_io_limits_are_in_the_boxs_cgroup_while_it_runs(running, disk):
    plain = running("--mnt", disk)
    assert plain.limit("io.max") is None

    limited = running("--mnt", disk, "--io-read", "5M", "--io-write", "3M")
    text = limited.limit("io.max")
    assert text and f"rbps={5 * MIB}" in text and f"wbps={3 * MIB}" in text, text


@pytest.mark.root_only
@pytest.mark.parametrize("option, code", [("--io-write", WRITE), ("--io-read", READ)], ids=["write", "read"])
def test_io_limit_slows_the_virtual_disk(box, disk, option, code):
    made = box("--mnt", disk, "--", PYTHON, "-c", WRITE)
    assert made.status == 0, made
    drop_from_memory(f"{disk}/data")
    ended = box("--mnt", disk, option, "2M", "--", PYTHON, "-c", code)
    assert ended.status == 0, ended
    # 12 MiB at 2 MiB/s are 6 s; the kernel lets a first slice pass.
    assert float(ended.stdout) > 4, ended
    for _ in range(8):  # a busy host is slow by itself now and then; the limit is slow every time
        drop_from_memory(f"{disk}/data")
        control = box("--mnt", disk, "--", PYTHON, "-c", code)
        if float(control.stdout) < 3:
            break
    assert float(control.stdout) < 3, control


@pytest.mark.rootless_only
def test_io_limits_that_nobody_can_bind_are_refused(box, disk):
    """systemd delegates cpu, memory and pids to users, but not io: a limit that is not bound must not look bound."""
    control = box("--mnt", disk, "--", "true")
    assert control.status == 0, control
    ended = box("--mnt", disk, "--io-write", "3M", "--", "true")
    assert ended.status == 125, ended
    assert "--io" in ended.stderr and "--allow-degraded" in ended.stderr, ended


def test_time_limit_holds_beside_the_others(box):
    began = time.monotonic()
    ended = box("--timeout", "2s", "--", "/usr/bin/sleep", "100")
    assert (ended.status, ended.outcome) == (124, "timed_out"), ended
    assert time.monotonic() - began < 90
