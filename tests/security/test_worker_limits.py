"""Limits bind on exactly the call that has them: it ends with their name and value, neighbours and successors do not.

The control of each is the same function with a limit that it keeps.
"""

import os
import time
from pathlib import Path

import pytest
from pctx_sandbox import SandboxExecutionError, SandboxMemoryError, SandboxTimeoutError, sandbox
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("broker")


def neighbour():
    import os
    import time

    open("/mnt/begun", "w").close()
    while not os.path.exists("/mnt/over"):
        time.sleep(0.02)
    return "unharmed"


@pytest.fixture
def unharmed(tmp_path):
    """A call that runs all the while, and one afterwards."""
    tmp_path.chmod(0o777)
    beside = sandbox(mnt_dir=tmp_path, timeout_sec=600)(neighbour).submit()
    wait_until((tmp_path / "begun").exists)
    yield
    assert not beside.done(), beside.exception() or beside.result()
    (tmp_path / "over").touch()
    assert beside.result(120) == "unharmed"
    assert sandbox(lambda: 1)() == 1


def allocate(megabytes, stays):
    kept = bytearray(megabytes << 20)
    for at in range(0, len(kept), 4096):
        kept[at] = 1
    return len(kept) >> 20


def in_tmp(megabytes):
    with open("/tmp/big", "wb") as file:
        for _ in range(megabytes):
            file.write(b"x" * (1 << 20))
    return megabytes


def in_children(megabytes, stays):
    import os
    import time

    has, had = os.pipe()
    for _ in range(4):
        if os.fork() == 0:
            kept = b"x" * (megabytes << 18)
            os.write(had, b"x")
            time.sleep(60)
            os._exit(len(kept) & 1)
    for _ in range(4):
        os.read(has, 1)
    time.sleep(stays)
    return megabytes


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("hog", [allocate, in_children], ids=["heap", "children"])
def test_memory(hog):
    with pytest.raises(SandboxMemoryError, match="memory_mb=128"):
        sandbox(memory_mb=128)(hog)(400, 20)
    assert sandbox(memory_mb=768)(hog)(400, 1) == 400


def shared_with_forks(megabytes, forks, stays):
    import os
    import time

    kept = bytearray(megabytes << 20)
    for at in range(0, len(kept), 4096):
        kept[at] = 1
    for _ in range(forks):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    time.sleep(stays)
    return len(kept) >> 20


def test_memory_that_is_hard_to_count_costs_no_neighbour_its_time(broker, without_cgroups):
    """To tell who has which page takes the kernel a millisecond for 40 MiB, for each process that has them."""

    def worked():
        """Seconds; of the Broker itself, not of those whom it has look."""
        fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    assert sandbox(lambda: 1)() == 1
    held = sandbox(memory_mb=512, timeout_sec=100)(shared_with_forks).submit(300, 40, 8)
    time.sleep(4)
    before, began = worked(), time.monotonic()
    time.sleep(2)
    assert (worked() - before) / (time.monotonic() - began) < 0.5
    assert not held.done()
    assert held.result(60) == 300
    with pytest.raises(SandboxMemoryError, match="memory_mb=256"):
        sandbox(memory_mb=256)(shared_with_forks)(300, 40, 8)


def in_tcp(megabytes, stays):
    import socket
    import time

    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    kept, held, block = [listener], 0, bytes(1 << 16)
    while held < megabytes << 20:
        kept.append(socket.create_connection(listener.getsockname()))
        kept[-1].setblocking(False)
        try:
            while True:
                held += kept[-1].send(block)
        except BlockingIOError:
            pass
    time.sleep(stays)
    return megabytes


@pytest.mark.usefixtures("unharmed")
def test_memory_of_sockets(lists_sockets):
    with pytest.raises(SandboxMemoryError, match="memory_mb=128"):
        sandbox(memory_mb=128)(in_tcp)(160, 20)
    held = 160 if lists_sockets else 4  # those that are not listed count with what they could hold
    assert sandbox(memory_mb=900)(in_tcp)(held, 1) == held


def locks(files, stays):
    import fcntl
    import tempfile
    import time

    kept = [tempfile.TemporaryFile() for _ in range(files)]  # noqa: SIM115 - they stay open
    for file in kept:
        for at in range(300, 0, -1):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * at)
    time.sleep(stays)
    return files


@pytest.mark.usefixtures("unharmed")
def test_file_locks():
    with pytest.raises(SandboxMemoryError, match="more than 10000 file locks"):
        sandbox(locks)(100, 20)
    assert sandbox(locks)(10, 1) == 10


@pytest.mark.usefixtures("unharmed")
def test_disk():
    with pytest.raises(SandboxExecutionError, match="disk_mb=16") as caught:
        sandbox(disk_mb=16)(in_tmp)(40)
    assert isinstance(caught.value, OSError)
    assert sandbox(disk_mb=64)(in_tmp)(40) == 40


def shared(megabytes):
    import mmap

    mmap.mmap(-1, megabytes << 20)[0] = 1
    return megabytes


def test_shared_memory_is_each_calls_own():
    """Where no cgroup counts it a call gets a quarter of its memory, whatever calls before it had."""
    function = sandbox(shared, memory_mb=128)
    assert [function(24) for _ in range(3)] == [24] * 3


def many_files(count):
    for number in range(count):
        open(f"/tmp/{number}", "w").close()
    return count


def one_large_file(megabytes):
    import os
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it and raises OSError instead
    with open("/tmp/large", "wb") as file:
        os.truncate(file.fileno(), megabytes << 20)
    return megabytes


def test_a_file_that_grows_too_large():
    with pytest.raises(SandboxExecutionError, match=r"SIGXFSZ(?s:.*)8 MiB(?s:.*)disk_mb=16") as caught:
        sandbox(disk_mb=8)(one_large_file)(9)
    assert caught.value.error_type == "SIGXFSZ"
    assert sandbox(disk_mb=8)(one_large_file)(7) == 7


def test_inodes():
    with pytest.raises(SandboxExecutionError, match="inodes=100"):
        sandbox(inodes=100)(many_files)(300)
    assert sandbox(inodes=1000)(many_files)(300) == 300


def processes(count):
    import os
    import time

    made = 0
    try:
        for _ in range(count):
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            made += 1
    except OSError:
        pass
    return made


@pytest.mark.usefixtures("unharmed")
def test_pids_bind_on_each_call_alone():
    bounded = sandbox(pids=8)(processes)
    made = [call.result() for call in [bounded.submit(40) for _ in range(4)]]
    # Itself is one of them; each of four at once has all of its own.
    assert all(5 <= each <= 8 for each in made), made
    assert sandbox(pids=64)(processes)(40) == 40


def test_few_pids_do_not_keep_workers_from_being_made():
    for pids in (1, 2):
        small = sandbox(pids=pids)(lambda number: number)
        assert sorted(call.result() for call in [small.submit(number) for number in range(24)]) == list(range(24))
    assert sandbox(pids=1)(processes)(3) == 0


def threads(count):
    import threading
    import time

    made = 0
    try:
        for _ in range(count):
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
            made += 1
    except RuntimeError:
        pass
    return made


def test_threads_count_as_pids():
    assert sandbox(pids=8)(threads)(40) <= 8
    assert sandbox(pids=64)(threads)(40) == 40


def python_loop():
    while True:
        pass


def c_loop():
    sum(range(10**15))


def sleeps():
    import time

    time.sleep(600)


def stops_itself():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSTOP)


def ignores_everything():
    import contextlib
    import signal
    import time

    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    time.sleep(600)


def leaves_a_daemon():
    import os
    import time

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    time.sleep(600)


def closes_its_socket():
    import os
    import time

    os.close(3)
    time.sleep(600)


@pytest.mark.parametrize(
    "endless",
    [python_loop, c_loop, sleeps, stops_itself, ignores_everything, leaves_a_daemon],
    ids=lambda f: f.__name__,
)
def test_timeout(endless):
    bounded = sandbox(timeout_sec=1)(endless)
    bounded_plain = sandbox(timeout_sec=1)(lambda: "in time")
    assert bounded_plain() == "in time"
    began = time.monotonic()
    with pytest.raises(SandboxTimeoutError, match="timeout_sec=1 "):
        bounded()
    assert 0.9 < time.monotonic() - began < 60, "what it does takes for ever"
    assert bounded_plain() == "in time"


def naps():
    import time

    time.sleep(3)


def test_the_smallest_timeout_is_not_no_limit():
    with pytest.raises(SandboxTimeoutError, match=r"timeout_sec=0.0004 "):
        sandbox(timeout_sec=0.0004)(naps)()
    assert sandbox(timeout_sec=60)(naps)() is None


def test_a_worker_that_closes_its_socket_is_told_from_an_answer():
    began = time.monotonic()
    with pytest.raises((SandboxExecutionError, SandboxTimeoutError)):
        sandbox(timeout_sec=2)(closes_its_socket)()
    assert time.monotonic() - began < 20


def burn(seconds):
    import os
    import time

    # In a child: what counts is the box, not one process.
    if os.fork() == 0:
        began = time.process_time()
        while time.process_time() - began < seconds:
            pass
        os._exit(0)
    os.wait()
    return "burnt"


@pytest.mark.usefixtures("unharmed")
def test_cpu_time():
    with pytest.raises(SandboxTimeoutError, match="cpu_time_sec=1 "):
        sandbox(cpu_time_sec=1, timeout_sec=300)(burn)(6)
    assert sandbox(cpu_time_sec=20, timeout_sec=300)(burn)(1.5) == "burnt"


def test_cpu_time_is_each_calls_own():
    bounded = sandbox(cpu_time_sec=1, timeout_sec=300)(burn)
    assert [bounded(0.4) for _ in range(8)] == ["burnt"] * 8


def two_spinners():
    import os
    import time

    began, wall = time.process_time(), time.monotonic()
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            while time.monotonic() - wall < 2:
                pass
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    used = os.times()
    return (used.children_user + used.children_system + time.process_time() - began) / (time.monotonic() - wall)


def test_cpus():
    assert sandbox(cpus=1)(two_spinners)() < 1.3


@pytest.mark.usefixtures("unharmed")
def test_output():
    def flood():
        while True:
            print("x" * 10000)

    with pytest.raises(SandboxExecutionError, match="output_mb=1 "):
        sandbox(output_mb=1)(flood).run()
    assert len(sandbox(output_mb=4)(lambda: print("x" * (2 << 20))).run().stdout) > 2 << 20


def test_a_result_that_is_too_large_is_no_memory_of_the_callers():
    with pytest.raises((SandboxMemoryError, SandboxExecutionError)):
        sandbox(memory_mb=64)(lambda: bytes(1 << 30))()
