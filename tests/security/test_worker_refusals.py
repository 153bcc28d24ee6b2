"""Refused calls of Workers: each is answered and written down, whoever lives beside its Worker and whatever became of
the Zygote that it has its filter from."""

import concurrent.futures
import contextlib
import os
import shutil
import signal
import time

import pctx_sandbox
from conftest import named
from pctx_sandbox import sandbox
from waiting import in_time, wait_until

# What a Worker's calls are answered: shared memory is there in every mode, mount() in none.
PROBE = """
import ctypes, errno, mmap
libc = ctypes.CDLL(None, use_errno=True)
def answers():
    try:
        mmap.mmap(-1, 4096)[0] = 1
        mapped = "mapped"
    except OSError as error:
        mapped = errno.errorcode[error.errno]
    refused = libc.mount(b"x", b"/mnt", b"tmpfs", 0, None)
    return [mapped, refused and errno.errorcode[ctypes.get_errno()]]
"""
ANSWERS = ["mapped", "EPERM"]


def before_and_after(probe):
    """Tells when it has begun, and goes on when it is told to."""
    import os
    import time

    names = {}
    exec(probe, names)
    first = names["answers"]()
    open("/mnt/begun", "w").close()
    while not os.path.exists("/mnt/over"):
        time.sleep(0.02)
    return [first, names["answers"]()]


def at_once(probe):
    names = {}
    exec(probe, names)
    return names["answers"]()


def listeners(broker):
    """How many the Broker holds."""
    found = 0
    for name in os.listdir(f"/proc/{broker.pid}/fd"):
        with contextlib.suppress(OSError):
            found += "seccomp" in os.readlink(f"/proc/{broker.pid}/fd/{name}")
    return found


def mounts(result):
    """How many refused mount() the receipt tells of."""
    assert result.receipt["denials_recorded"]
    return sum(denial["count"] for denial in result.receipt["denials"] if denial["syscall"] == "mount")


def test_a_worker_outlives_its_zygote_with_all_answers(own, tmp_path):
    tmp_path.chmod(0o777)
    settings = {"mnt_dir": tmp_path, "timeout_sec": 600}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        running = threads.submit(sandbox(**settings)(before_and_after).run, PROBE)
        try:
            wait_until((tmp_path / "begun").exists)
            own.kill_zygotes()
            after = [sandbox(**settings)(at_once).run(PROBE) for _ in range(4)]  # those that waited, and new ones
        finally:
            (tmp_path / "over").touch()
        result = running.result(120)
    assert result.value == [ANSWERS, ANSWERS]
    assert mounts(result) == 2
    assert [(each.value, mounts(each)) for each in after] == [(ANSWERS, 1)] * 4


def test_a_zygote_that_is_killed_while_it_starts_is_replaced(own):
    assert sandbox(at_once)(PROBE) == ANSWERS
    own.kill_zygotes()
    own.kill_zygotes()  # its Python has hardly begun
    assert sandbox(at_once)(PROBE) == ANSWERS


def test_a_zygotes_listener_goes_with_the_last_of_its_workers(own):
    function = sandbox(at_once)
    assert function(PROBE) == ANSWERS
    wait_until(lambda: own.victims("worker"))
    assert listeners(own) == 1
    own.kill_zygotes()
    assert in_time(lambda: listeners(own) == 2), "the control: Workers of the first one wait"
    # Calls use them up.
    assert in_time(lambda: function(PROBE) == ANSWERS and listeners(own) == 1)


# Threads that do nothing but call what is refused. `count` is how many answers each of them got.
FLOOD = """
import ctypes, threading
libc = ctypes.CDLL(None)
count, stop = [0] * 200, threading.Event()
def flood(number):
    while not stop.is_set():
        libc.unshare(0x10000000)
        count[number] += 1
threads = [threading.Thread(target=flood, args=(number,)) for number in range(len(count))]
"""


def flooder(flood):
    """How many answers the flood got while its neighbour worked, and in all."""
    import os
    import time

    names = {}
    exec(flood, names)
    for thread in names["threads"]:
        thread.start()
    while sum(names["count"]) < 1000:
        time.sleep(0.01)
    open("/mnt/flooded", "w").close()
    seen = []
    for name in ("/mnt/begun", "/mnt/done"):
        while not os.path.exists(name):
            time.sleep(0.001)
        seen.append(sum(names["count"]))
    names["stop"].set()
    for thread in names["threads"]:
        thread.join()
    return [seen[1] - seen[0], sum(names["count"])]


def flooded(probe, times):
    names = {}
    exec(probe, names)
    open("/mnt/begun", "w").close()
    answers = [names["answers"]() for _ in range(times)]
    open("/mnt/done", "w").close()
    return answers


def test_a_flood_of_refusals_delays_nobody_else(own, tmp_path):
    """No clock: in one queue with 200 threads every call of the neighbour would wait for an answer to each."""
    tmp_path.chmod(0o777)
    settings = {"mnt_dir": tmp_path, "timeout_sec": 600, "pids": 256, "memory_mb": 1024}
    mine = 50
    with concurrent.futures.ThreadPoolExecutor() as threads:
        flood = threads.submit(sandbox(**settings)(flooder).run, FLOOD)
        wait_until((tmp_path / "flooded").exists)
        beside = sandbox(**settings)(flooded).run(PROBE, mine)
        while_mine, in_all = flood.result(120).value
    assert len(own.victims("zygote")) == 1, "both are of one pool"
    assert beside.value == [ANSWERS] * mine and mounts(beside) == mine
    (refused,) = flood.result().receipt["denials"]
    assert (refused["syscall"], refused["count"]) == ("unshare", in_all), "every call was answered"
    assert while_mine < mine * 100, f"{while_mine} answers of others for {mine}"


def test_a_worker_whose_memory_cannot_be_read_delays_nobody_else(own, tmp_path, mapping_holder):
    """The paths of its refused calls are read for its report. No clock: it runs for as long as the others need."""
    shutil.copy(mapping_holder, tmp_path)
    tmp_path.chmod(0o755)
    name = mapping_holder.name
    code = f"import os; os.execv('/mnt/{name}', ['{name}', '600', '6'])"
    limits = {"memory_mb": 1024}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        attack = threads.submit(pctx_sandbox.run, code, mnt_dir=tmp_path, timeout=600, limits=limits)
        try:
            wait_until(lambda: named(name))
            time.sleep(3)  # it asks by now, or soon
            others = threads.submit(lambda: [sandbox(at_once)(PROBE) for _ in range(20)])
            done, _ = concurrent.futures.wait([others], 60)
            assert not attack.done()
        finally:
            for pid in named(name):
                os.kill(pid, signal.SIGKILL)
        assert done and others.result() == [ANSWERS] * 20
