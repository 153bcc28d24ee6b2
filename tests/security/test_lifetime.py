"""The whole tree dies: at the deadline, at a limit, with the guest's main process, with the supervisor. Nothing the
guest does keeps any part of it alive."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import PYTHON, named
from waiting import in_time, wait_until


def alive(marker):
    """Processes of this machine whose command line holds `marker`, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if marker.encode() in (entry / "cmdline").read_bytes() and ") Z" not in (entry / "stat").read_text():
                found.append(int(entry.name))
    return found


@pytest.fixture
def marker():
    """A word that no other command line has; what still carries it at the end is killed."""
    word = f"marker{os.urandom(8).hex()}"
    yield word
    for pid in alive(word):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(sandbox_bin):
    """Starts a run in the background; it is killed at the end of the test if it is still there."""
    started = []

    def run(*arguments, **options):
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        started.append(subprocess.Popen([sandbox_bin, *map(str, arguments)], **settings))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


def test_a_box_that_is_over_before_it_stands_does_not_go_on(inside):
    """Until the guest's process has its ids nobody may kill it; whoever tried only once let it run for a second."""
    code = "n=0; while [ $n -lt 6 ]; do echo $n; n=$((n+1)); sleep 0.1; done"
    for _ in range(15):
        ended = inside(["sh", "-c", code], "--timeout", "4ms")
        assert ended.kind == "timed_out" and "4" not in ended.stdout.split()
    assert "4" in inside(["sh", "-c", code]).stdout.split()


def children_of(pid):
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def guests_of(supervisor):
    """Processes of the box, init left out."""
    return [guest for child in children_of(supervisor) for guest in children_of(child)] + [
        below for child in children_of(supervisor) for guest in children_of(child) for below in children_of(guest)
    ]


def janitors_of(supervisor):
    """Children of the supervisor in our own pid namespace: init is in the box's."""
    own = os.readlink("/proc/self/ns/pid")
    found = []
    for pid in children_of(supervisor):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == own:
                found.append(pid)
    return found


ENDLESS = {
    "an endless loop in C code": "sum(range(10**18))",
    "all signals ignored": "import signal\nfor s in range(1, 65):\n"
    "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: signal.pause()",
    "itself stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "a stopped process group": "import os, signal; os.fork(); os.killpg(0, signal.SIGSTOP)",
    "a sleep": "import time; time.sleep(1000)",
    "a process that re-creates itself": "import os\nwhile True:\n    if os.fork(): os.wait()",
    "its own seccomp filter": "import ctypes, time; ctypes.CDLL(None).prctl(22, 1, 0, 0, 0); time.sleep(1000)",
}


@pytest.mark.parametrize("how", ENDLESS)
def test_guest_cannot_outlive_the_time_limit_by(inside, marker, how):
    code = ENDLESS[how] + f"  # {marker}"
    ended = inside(code, "--timeout", "500ms", "--pids", "16")
    if how == "its own seccomp filter":  # strict mode: the kernel kills it at the next call, before the deadline
        assert ended.kind in ("signaled", "timed_out")
    else:
        assert (ended.kind, ended.limit, ended.status) == ("timed_out", "timeout", 124)
    assert alive(marker) == []


def test_same_code_ends_by_itself_with_more_time(inside):
    code = "import time; time.sleep(0.7)"
    assert inside(code, "--timeout", "300ms").kind == "timed_out"
    assert inside(code).kind == "exited"


DAEMON = (
    "import os, sys, time  # {marker}\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        {keep}\n"
    "        time.sleep(1000)\n"
    "    os._exit(0)\n"
    "os.wait(); print('main is done')\n"
)


@pytest.mark.parametrize("keep", ["pass", "[os.close(fd) for fd in (0, 1, 2)]"], ids=["with stdout open", "closed"])
def test_daemon_dies_with_the_main_process(inside, marker, keep):
    ended = inside(DAEMON.format(marker=marker, keep=keep))
    assert (ended.kind, ended.stdout) == ("exited", "main is done\n")
    assert alive(marker) == []


def test_daemon_outside_lives_on(outside, marker):
    outside(DAEMON.format(marker=marker, keep="[os.close(fd) for fd in (0, 1, 2)]"))
    assert alive(marker) != []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_box_dies_with_the_supervisor(start, marker, number):
    process = start("run", "-q", "--", "sh", "-c", f"sleep 1000 & sleep 1000; : {marker}")
    assert in_time(lambda: len(alive(marker)) >= 2)
    process.send_signal(number)
    process.wait(15)
    assert in_time(lambda: not alive(marker))


def test_guest_cannot_signal_init(inside):
    code = (
        "import os, signal, time\n"
        "for name in ('KILL', 'STOP', 'TERM', 'SEGV', 'CHLD', 'ABRT'):\n"
        "    try: os.kill(1, getattr(signal, 'SIG' + name))\n"
        "    except PermissionError: pass  # Landlock's scope; without it the kernel drops what init does not ask for\n"
        "time.sleep(0.2)\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: os._exit(0)\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), open('/proc/1/stat').read().split()[2] in 'SR')\n"
    )
    ended = inside(code)
    assert (ended.kind, ended.stdout) == ("exited", "7 True\n")


def test_guest_cannot_blind_init(start, marker, tmp_path):
    code = (
        "import os, resource, time\n"
        "try: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))\n"
        "except PermissionError: pass\n"
        "if os.fork() == 0: os.fork() or time.sleep(0.1); os._exit(0)  # an orphan wakes init up\n"
        "time.sleep(0.5); print('ready', flush=True); time.sleep(1000)\n"
    )
    # Where there are cgroups a janitor ends the box; init alone must be able to.
    process = start("run", "-q", "--", "python3", "-c", code, marker)
    assert process.stdout.readline() == b"ready\n"
    for pid in janitors_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    assert in_time(lambda: not alive(marker), seconds=4)


@pytest.mark.parametrize("call", ["resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))"])
def test_guest_cannot_change_limits_of_init(inside, call):
    ended = inside(f"import resource\ntry: {call}\nexcept PermissionError as error: print(error.errno)")
    assert ended.stdout == "1\n" and ended.denied("prlimit64")


def test_guest_may_change_its_own_limits(inside):
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)); print('ok')"
    assert inside(code).stdout == "ok\n"


FLOOD = "import os\nout = os.fork()\nwhile True: os.write(1 if out else 2, b'y' * 4096)\n"


def test_time_limit_holds_while_nobody_reads_the_output(start, marker):
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    try:
        command = ["run", "-q", "--timeout", "3s", "--output", "64M", "--", "env", "-u", marker, "python3", "-c", FLOOD]
        process = start(*command, stdout=write_end, stderr=write_end)
        assert in_time(lambda: len(guests_of(process.pid)) >= 2)
        select.select([read_end], [], [], 10)
        time.sleep(1)
        os.read(read_end, 4096)  # room for one of the two streams that now wait
        assert in_time(lambda: not guests_of(process.pid), seconds=8)
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("line", ["y", "a longer line", "both streams"])
def test_time_limit_holds_while_nobody_reads_the_terminal(start, marker, line):
    """A terminal counts as writable with room for one byte: who then writes more waits for its reader."""
    master, slave = os.openpty()
    flood = f"yes {marker} & yes >&2" if line == "both streams" else f"yes {line}; : {marker}"
    try:
        command = ["run", "-q", "--timeout", "2s", "--output", "64M", "--", "sh", "-c", flood]
        process = start(*command, stdout=slave, stderr=slave)
        assert in_time(lambda: guests_of(process.pid))
        assert in_time(lambda: not guests_of(process.pid), seconds=8)
        assert os.read(master, 4096)
    finally:
        os.close(master)
        os.close(slave)


def test_supervisor_can_be_ended_while_nobody_reads_the_output(start, marker):
    process = start("run", "-q", "--timeout", "1s", "--output", "64M", "--", "sh", "-c", f"yes; : {marker}")
    assert in_time(lambda: alive(marker))
    time.sleep(2)  # the guest is dead by now, its output is not read
    process.terminate()
    assert in_time(lambda: process.poll() is not None, seconds=3)


def test_refused_calls_do_not_hold_up_the_time_limit(attack, marker):
    ended = attack("refusals", options=["--timeout", "4s", "--pids", "32"])
    assert (ended.kind, ended.limit) == ("timed_out", "timeout")
    assert ended.denied("mount")[0]["count"] > 10


READ = """
import ctypes, os, subprocess, sys
attacker = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
assert attacker.stdout.readline() == "asked\\n"
if sys.argv[2] != "1": assert attacker.stdout.readline() == "asking\\n"
libc = ctypes.CDLL(None)
class IoVec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
here = IoVec(ctypes.cast(ctypes.create_string_buffer(8), ctypes.c_void_p), 8)
there = IoVec(0x400000, 8)  # the program's own text
for _ in range(1000): assert libc.process_vm_readv(attacker.pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 8
print("read", flush=True)
attacker.kill()
"""


def test_a_guest_whose_memory_cannot_be_read_keeps_no_deadline_waiting(start, mapping_holder):
    """Paths of refused calls are read for the report. It ended when the guest did, which never does."""
    outside = subprocess.Popen([PYTHON, "-c", READ, mapping_holder, "600", "6"], start_new_session=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        outside.wait(10)
    held = outside.poll() is None
    os.killpg(outside.pid, signal.SIGKILL)
    outside.wait()
    assert held  # the control: whoever reads is held, and what is at peace is read at once
    quiet = subprocess.run([PYTHON, "-c", READ, mapping_holder, "1", "0"], capture_output=True, timeout=60)
    assert quiet.stdout == b"read\n", quiet.stderr
    box = start(
        "run", "--json", "--memory", "1G", "--timeout", "6s", "--ro", f"{mapping_holder}:/a", "--", "/a", "600", "6"
    )
    readers = set()

    def over():
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text()
            readers.update(set(named("pctx-reader")) & set(map(int, children.split())))
        return box.poll() is not None

    assert in_time(over, seconds=60)
    report = json.loads(box.stdout.read())
    assert (report["outcome"]["kind"], report["stdout"]) == ("timed_out", "asked\nasking\n")
    denials = {denial["detail"]: denial["count"] for denial in report["receipt"]["denials"]}
    assert denials["/asked"] >= 1 and set(denials) <= {"/asked", ""}, "what could be read is told, the rest without"
    assert readers and in_time(lambda: readers.isdisjoint(named("pctx-reader")))


def test_stopped_guest_gives_way_to_the_next(inside):
    code = "import os, signal\npid = os.fork()\nif not pid: os.kill(os.getpid(), signal.SIGSTOP)\nprint('done')"
    assert inside(code).stdout == "done\n"


@pytest.mark.parametrize("milliseconds", range(0, 40, 2))
def test_a_signal_that_comes_early_is_not_lost(start, milliseconds):
    """While the box is made, init may be there before the guest's process has taken on its ids."""
    process = start("run", "-q", "--", "sh", "-c", "sleep 1000 & sleep 1000")
    time.sleep(milliseconds / 1000)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)


def test_a_killed_lookout_is_replaced(sandbox_bin, attacker):
    """It counts what the memory limit cannot."""
    box = [sandbox_bin, "run", "-q", "--ro", f"{attacker('locks')}:/a", "--", "sh", "-c"]
    for many, status in (("10", 0), ("100", 137)):
        with subprocess.Popen([*box, f"sleep 2; /a posix {many} 300 3"]) as process:
            killed = set()
            for _ in range(2):
                lookout = wait_until(lambda pid=process.pid, old=killed: lookouts_of(pid) - old).pop()
                os.kill(lookout, signal.SIGKILL)
                killed.add(lookout)
            assert process.wait(60) == status


def lookouts_of(pid):
    found = set()
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            if Path(f"/proc/{child}/comm").read_text() == "pctx-lookout\n":
                found.add(child)
    return found
