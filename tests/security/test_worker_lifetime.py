"""However a call ends, it ends with its value or a clear exception, the next one works, and nothing is left."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from pctx_sandbox import SandboxError, sandbox
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed
from waiting import in_time

from broker import alive, children_of, comm, own_cgroups

# Minutes of killing and hanging on purpose: part of `make test-all`.
pytestmark = pytest.mark.chaos


@sandbox(queue_timeout_sec=30)
def add(a, b):
    return a + b


@sandbox(timeout_sec=60, queue_timeout_sec=30)
def sleeper(seconds):
    import time

    time.sleep(seconds)
    return "slept"


def busy(broker):
    """Processes of Workers at work: a box's init has no name of ours, the Worker beside it is a Python."""
    return sum(pool["busy"] for pool in broker.status()["pools"])


def run_caller(broker, code, **settings):
    head = "import os, signal, sys, threading, time\nfrom pctx_sandbox import sandbox, SandboxError\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        env=broker.env | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def test_ctrl_c_stops_the_call_at_once_and_the_next_works(broker):
    caller = run_caller(
        broker,
        """
        @sandbox
        def wait():
            import time
            print("started", flush=True)
            time.sleep(25)
        @sandbox
        def add(a, b): return a + b
        add(1, 1)
        try:
            wait()
        except KeyboardInterrupt:
            began = time.monotonic()
            print("interrupted", add(1, 2), flush=True)
        """,
    )
    assert caller.stdout.readline() == "started\n"
    before = busy(broker)
    began = time.monotonic()
    caller.send_signal(signal.SIGINT)
    out, err = caller.communicate(timeout=30)
    assert out == "interrupted 3\n", err
    assert time.monotonic() - began < 10
    assert before >= 1 and in_time(lambda: busy(broker) < before)


def test_a_caller_that_is_killed_takes_its_workers_along(broker):
    add(1, 1)
    before = busy(broker)
    caller = run_caller(
        broker,
        """
        @sandbox
        def wait():
            import os, time
            print("started", flush=True)
            if os.fork() == 0:
                time.sleep(25)
            time.sleep(25)
        wait()
        """,
    )
    assert caller.stdout.readline() == "started\n"
    caller.kill()
    caller.communicate()
    assert in_time(lambda: busy(broker) <= before)
    assert add(1, 2) == 3


def start_sleeping():
    """A call that sleeps, in a thread, well under way; and the list that will hold what came of it."""
    outcome = []

    def call():
        try:
            outcome.append(sleeper(20))
        except SandboxError as error:
            outcome.append(error)

    assert sleeper(0) == "slept"  # so that its pool stands, and the call below begins at once
    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(1)
    return thread, outcome


@pytest.mark.parametrize("kind", ["worker", "init", "zygote", "maker", "broker"])
def test_whoever_is_killed_the_call_ends_and_the_next_works(own, kind):
    assert add(1, 1) == 2
    thread, outcome = start_sleeping()
    everything, pid = own.everything(), own.pid
    targets = own.victims(kind)
    assert targets, kind
    began = time.monotonic()
    for target in targets:
        own.kill(target)
    if kind != "zygote":
        thread.join(15)
        assert not thread.is_alive() and isinstance(outcome[0], SandboxError), outcome
        assert "hint:" in str(outcome[0])
    assert [add(number, 1) for number in range(5)] == [1, 2, 3, 4, 5]
    assert time.monotonic() - began < 30
    if kind == "zygote":
        thread.join(40)
        assert outcome == ["slept"]
    if kind in ("broker", "maker"):
        assert in_time(lambda: not [each for each in everything if each != pid and alive(each) and kind == "broker"])
    if kind == "broker":
        assert in_time(lambda: not own_cgroups(pid)), own_cgroups(pid)


def test_a_killed_binder_is_replaced_and_scripts_that_run_go_on(own, tmp_path):
    """It alone sees the host's folders, and whoever made it cannot make another: the pool is replaced."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    conf = SandboxConfig(venv_path=tmp_path / "venv")
    wait = "import os, time\nopen('/mnt/up', 'w').close()\nwhile not os.path.exists('/mnt/go'): time.sleep(0.05)"
    ended = []
    with tempfile.TemporaryDirectory(prefix="pctx-f-") as name:
        folder = Path(name)
        (folder / "first").mkdir()

        def run(code, place):
            return run_sandboxed(conf, code=code, mnt_dir=folder / place, timeout=120)

        running = threading.Thread(target=lambda: ended.append(run(wait, "first")))
        running.start()
        assert in_time((folder / "first" / "up").exists, 60)
        for number in range(3):
            (place := folder / str(number)).mkdir()
            assert run("open('/mnt/here', 'w').close()", place.name)[1] == ["here"]  # the control: this one lends
            binders = [pid for maker in own.makers() for pid in children_of(maker) if comm(pid) == "pctx-binder"]
            assert binders
            for binder in binders:
                own.kill(binder)
            results = [run(f"open('/mnt/after{each}', 'w').close()", place.name) for each in range(3)]
            assert [changed for _, changed in results] == [[f"after{each}"] for each in range(3)]
        assert running.is_alive()
        (folder / "first" / "go").touch()
        running.join(60)
    assert [result.returncode for result, _ in ended] == [0]


@pytest.mark.parametrize("kind", ["worker", "init", "zygote", "maker", "broker"])
def test_kills_under_load_give_values_or_clear_exceptions(own, kind):
    add(1, 1)
    wrong, good, failed, stop = [], [], [], threading.Event()

    def load():
        number = 0
        while not stop.is_set():
            number += 1
            try:
                value = add(number, 1)
                (good if value == number + 1 else wrong).append(value)
            except SandboxError as error:
                failed.append(str(error))
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for round_ in range(6):
        time.sleep(0.15 + 0.07 * round_)
        try:
            for target in own.victims(kind)[: 1 + round_ % 3]:
                own.kill(target)
        except (OSError, ValueError, KeyError, TypeError, StopIteration):
            continue  # it was gone before we looked
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong, wrong
    assert len(good) > 10
    assert all("hint:" in text for text in failed), failed
    assert add(1, 2) == 3


def test_stop_during_a_call_ends_it_clearly(own):
    thread, outcome = start_sleeping()
    assert own.run("stop").returncode == 0
    thread.join(20)
    assert not thread.is_alive() and isinstance(outcome[0], SandboxError), outcome
    assert add(2, 2) == 4


def test_many_first_calls_start_one_broker(own):
    code = """
        @sandbox
        def who(): return 1
        sys.stdin.readline()
        print(who())
    """
    callers = [run_caller(own, code, stdin=subprocess.PIPE) for _ in range(6)]
    for caller in callers:
        caller.stdin.write("\n")
        caller.stdin.flush()
    assert [caller.communicate(timeout=60)[0] for caller in callers] == ["1\n"] * 6
    serving = subprocess.run(["pgrep", "-x", "pctx-broker"], capture_output=True, text=True).stdout.split()
    environments = []
    for pid in serving:
        try:
            environments.append(Path(f"/proc/{pid}/environ").read_text())
        except OSError:
            continue
    assert sum(own.socket in text for text in environments) == 1


def test_a_stale_socket_is_replaced(own):
    assert add(1, 1) == 2
    everything = own.everything()
    own.kill()
    assert in_time(lambda: not any(map(alive, everything)))  # a call that it finds running is no new one
    assert os.path.exists(own.socket)
    assert add(1, 2) == 3


def test_it_leaves_when_idle_though_a_caller_lives(own):
    own.run("serve", "--idle", "1")
    assert add(1, 1) == 2
    pid = own.pid
    assert alive(pid)
    assert in_time(lambda: not alive(pid), 25, 0.3), "an idle Broker stays for a caller that asks nothing"
    assert add(1, 2) == 3


def test_brokers_of_two_versions_live_side_by_side(monkeypatch):
    from pctx_sandbox import _program

    monkeypatch.delenv("PCTX_SANDBOX_SOCKET", raising=False)
    own = _program.socket_path()
    assert _program.VERSION in own
    monkeypatch.setattr(_program, "VERSION", "0.1.9")
    assert "0.1.9" in _program.socket_path() != own


@pytest.mark.chaos
def test_ten_thousand_calls_from_sixteen_threads(own):
    def memory(pid):
        return int(next(line for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS")).split()[1])

    def descriptors(pid):
        return len(os.listdir(f"/proc/{pid}/fd"))

    lock, left, wrong = threading.Lock(), list(range(10_000)), []

    def load():
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            try:
                if add(number, 1) != number + 1:
                    wrong.append(number)
            except SandboxError as error:
                wrong.append(str(error))

    def spend(count):
        threads = [threading.Thread(target=load) for _ in range(16)]
        with lock:
            kept, left[:] = left[count:], left[:count]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left[:] = kept

    add(1, 1)
    spend(2000)
    time.sleep(1)
    pid = own.pid
    before = {
        "broker": memory(pid),
        "caller": memory(os.getpid()),
        "fds": descriptors(pid),
        "own": descriptors(os.getpid()),
    }
    began = time.monotonic()
    spend(8000)
    seconds = time.monotonic() - began
    time.sleep(12)  # the pool shrinks again
    after = {
        "broker": memory(pid),
        "caller": memory(os.getpid()),
        "fds": descriptors(pid),
        "own": descriptors(os.getpid()),
    }
    print(f"8000 calls in {seconds:.1f} s, {8000 / seconds:.0f}/s; before {before}, after {after}")
    assert not wrong, wrong[:5]
    assert own.pid == pid
    assert after["broker"] < before["broker"] + 4096 and after["caller"] < before["caller"] + 8192
    assert after["fds"] <= before["fds"] + 8 and after["own"] <= before["own"] + 8
