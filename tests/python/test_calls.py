"""Many calls at once, calls that are stopped, and callers that fork, thread, await or end."""

import asyncio
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time

import neighbours
import pytest
from pctx_sandbox import SandboxExecutor, _broker, sandbox, sandbox_async
from waiting import in_time

pytestmark = pytest.mark.usefixtures("broker")


@sandbox
def square(x):
    return x * x


def sleep_and_mark(path):
    import time

    print("running", flush=True)
    time.sleep(3)
    open(path, "w").close()


@pytest.fixture
def marks(tmp_path):
    """(settings, path inside, path here): where a function can leave a mark that the test sees, box or no box."""
    tmp_path.chmod(0o777)
    if os.environ.get("PCTX_TEST_BROKER") == "real":
        return {"mnt_dir": tmp_path}, "/mnt/mark", tmp_path / "mark"
    return {}, str(tmp_path / "mark"), tmp_path / "mark"


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_submit_gives_a_future():
    future = square.submit(4)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(20) == 16
    assert future.done() and not future.running() and not future.cancelled()
    with pytest.raises(ZeroDivisionError):
        sandbox(lambda: 1 / 0).submit().result(20)


def test_map_keeps_order_and_bounds_what_is_in_flight():
    active, most = 0, 0
    lock = threading.Lock()

    def items():
        yield from range(12)

    original = square._prepared.call

    def counting(*args):
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        try:
            return original(*args)
        finally:
            with lock:
                active -= 1

    square._prepared.call = counting
    try:
        assert list(square.map(items(), concurrency=3)) == [n * n for n in range(12)]
    finally:
        del square._prepared.call
    assert 1 < most <= 3


def test_map_reads_only_as_far_as_it_needs():
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    results = square.map(items(), concurrency=2)
    assert next(results) == 0
    results.close()
    assert len(taken) <= 10


def test_map_shows_progress_on_request(capsys):
    assert list(square.map([1, 2, 3], progress=True)) == [1, 4, 9]
    assert "3/3" in capsys.readouterr().err
    with pytest.raises(ValueError, match="at least 1"):
        square.map([1], concurrency=0)


def test_map_raises_what_a_call_raised():
    results = sandbox(lambda x: 1 / x).map([1, 0, 2], concurrency=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_cancelling_a_future_kills_the_worker(marks):
    settings, path, mark = marks
    future = sandbox(**settings)(sleep_and_mark).submit(path)
    assert in_time(future.running)
    time.sleep(0.3)
    assert future.cancel()
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(1)
    assert concurrent.futures.wait([future], timeout=1).not_done == set()
    time.sleep(3.2)
    assert not mark.exists()
    assert square(3) == 9


def test_without_cancelling_the_worker_goes_on(marks):
    settings, path, mark = marks
    sandbox(**settings)(sleep_and_mark).submit(path).result(30)
    assert mark.exists()


def test_cancelling_a_task_kills_the_worker(marks):
    settings, path, mark = marks
    waits = sandbox_async(**settings)(sleep_and_mark)

    async def main():
        task = asyncio.ensure_future(waits(path))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(waits(path), 0.3)

    asyncio.run(main())
    time.sleep(3.2)
    assert not mark.exists()


def test_the_event_loop_goes_on_meanwhile_and_sees_the_output(capsys):
    @sandbox_async
    def slow(x):
        import time

        time.sleep(0.3)
        print("said", x)
        return x

    async def main():
        ticks = 0
        tasks = asyncio.gather(*(slow(n) for n in range(3)))
        while not tasks.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return ticks, await tasks

    for _ in range(2):  # several event loops, one after the other
        ticks, values = asyncio.run(main())
        assert values == [0, 1, 2]
        assert ticks > 5
    assert capsys.readouterr().out.count("said") == 6


def test_event_loops_in_several_threads():
    later = sandbox_async(square.plain_function())

    def run(n):
        return asyncio.run(later(n))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(8))) == [n * n for n in range(8)]


def test_many_threads_share_the_pool_and_leave_no_descriptors():
    square(1)
    before = descriptors()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(square, range(100))) == [n * n for n in range(100)]
    assert descriptors() <= before + _broker.MOST_FREE
    _broker.close_all()
    assert in_time(lambda: descriptors() <= before)


def test_the_executor_is_an_executor():
    def double(x):
        return x * 2

    with SandboxExecutor(memory_mb=256, max_workers=3) as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert executor.submit(double, 4).result(20) == 8
        assert list(executor.map(double, range(10))) == [n * 2 for n in range(10)]
        assert executor.submit(square, 3).result(20) == 9
    with pytest.raises(RuntimeError):
        executor.submit(double, 1)


def test_the_executor_kills_what_runs_when_told_to(tmp_path):
    executor = SandboxExecutor(max_workers=1)
    futures = [executor.submit(sleep_and_mark, str(tmp_path / str(n))) for n in range(3)]
    in_time(futures[0].running)
    began = time.monotonic()
    executor.shutdown(cancel_futures=True)
    assert time.monotonic() - began < 2
    assert all(future.cancelled() for future in futures)


def test_a_fork_starts_with_nothing_and_leaves_the_parents_calls_alone():
    assert square(2) == 4
    future = sandbox(lambda: __import__("time").sleep(1) or "parent")
    running = future.submit()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if square(5) == 25 and not running.done() and square.submit(2).result(20) == 4 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert running.result(20) == "parent"
    assert square(6) == 36


SCRIPT = """
import signal, sys, threading, time
from pctx_sandbox import sandbox
@sandbox
def waits(path):
    import time
    print("running", flush=True)
    time.sleep(3)
    open(path, "w").close()
@sandbox
def add(a, b):
    return a + b
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def start_script(tmp_path, lines):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + lines)
    command = [sys.executable, "-X", "dev", script, str(tmp_path / "mark")]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=neighbours.environment())


def test_one_interrupt_stops_the_call_and_the_next_one_works(tmp_path):
    process = start_script(
        tmp_path,
        "try:\n"
        "    waits(sys.argv[1])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "print(add(1, 2), flush=True)\n",
    )
    assert process.stdout.readline() == "running\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("interrupted\n3\n", "", 0)
    assert time.monotonic() - began < 2.5
    time.sleep(3)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "lines",
    [
        "print(add(1, 2))\n",
        "import atexit\natexit.register(lambda: print(add(1, 2)))\n",
        "print(add.submit(1, 2).result())\n",
        "import asyncio\nfrom pctx_sandbox import sandbox_async\n"
        "print(asyncio.run(sandbox_async(add.plain_function())(1, 2)))\n",
        "thread = threading.Thread(target=lambda: print(add(1, 2)))\nthread.start()\n",
    ],
)
def test_the_interpreter_ends_without_complaint(tmp_path, lines):
    out, err = start_script(tmp_path, lines).communicate(timeout=60)
    # In development mode asyncio complains about slow machines too.
    err = re.sub(r"^Executing <.* took [0-9.]+ seconds\n", "", err, flags=re.MULTILINE)
    assert (out, err) == ("3\n", "")


def test_a_caller_that_dies_takes_the_worker_along(tmp_path):
    process = start_script(tmp_path, "waits(sys.argv[1])\n")
    assert process.stdout.readline() == "running\n"
    process.kill()
    process.communicate()
    time.sleep(3.5)
    assert not (tmp_path / "mark").exists()
