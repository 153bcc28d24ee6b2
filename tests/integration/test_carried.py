"""The conformance suite where no descriptor gets through: callers and Broker have only a stream of bytes between them.

The stream is a socket pair whose two halves are joined by a program that forwards bytes and drops descriptors.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import carried
import pytest
from pctx_sandbox import SandboxError, SandboxStartupError, _backend, _broker, run, sandbox

# The same tests, over another way.
from test_backends import (  # noqa: F401
    boxed,
    own_server,
    test_a_death_of_the_process_is_told,
    test_a_known_exception_is_raised_as_itself,
    test_a_lent_folder_is_read_and_written,
    test_an_allow_list_opens_what_it_names_and_nothing_else,
    test_an_own_exception_comes_back_as_text,
    test_coroutines_and_maps_run,
    test_cpu_time_is_bounded,
    test_disk_is_bounded,
    test_large_values_travel_both_ways,
    test_memory_is_bounded,
    test_output_is_bounded,
    test_output_is_passed_on_and_kept,
    test_packages_are_there,
    test_processes_are_bounded,
    test_time_is_bounded,
    test_values_come_back_as_they_were,
    test_what_is_not_data_is_refused,
)
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("carrier")
PATIENCE = 120


class Way:
    """A Broker at one socket, callers at another, and a stream between them."""

    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.broker, self.callers = self.folder / "b", self.folder / "n"
        self.env = {**os.environ, "PCTX_SANDBOX_SOCKET": str(self.broker)}
        self.process = None

    def start(self):
        command = [self.program, "carry", "--listen", str(self.callers), "--"]
        command += carried.command(self.program, "carry")
        self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        asks = {**self.env, "PCTX_SANDBOX_SOCKET": str(self.callers)}
        status = [self.program, "status", "--json"]
        wait_until(
            lambda: subprocess.run(status, env=asks, capture_output=True).returncode == 0
            or self.process.poll() is not None
        )
        assert self.process.poll() is None, self.process.stderr.read()

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stderr.close()
            self.process = None
        subprocess.run([self.program, "stop"], env=self.env, capture_output=True)


@pytest.fixture(scope="module")
def carrier(sandbox_bin):
    folder = tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp")
    way = Way(sandbox_bin, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCTX_SANDBOX_SOCKET", str(way.callers))
        patch.setenv("PCTX_SANDBOX_BINARY", sandbox_bin)
        patch.setenv("PCTX_SANDBOX_BACKEND", "namespaces")
        _broker.close_all()
        _backend._resolved.clear()
        way.start()
        yield way
        _broker.close_all()
        _backend._resolved.clear()
        way.stop()
    shutil.rmtree(folder)


def test_the_lease_says_that_it_is_carried(carrier):
    """The control of this whole file: calls go over the stream, and over nothing else."""
    connection = _broker.Connection(_backend.resolve("namespaces"))
    try:
        with pytest.raises(_broker.LeaseError):
            connection.send(b'{"lease": {}}')
            connection.wait_for_lease(30)
    finally:
        connection.discard()
    assert sandbox(lambda: 7)() == 7
    kept = [each.lease for each in _broker._prefetched.values()]
    [each.wait_for_lease(30) for each in _broker._prefetched.values()]
    assert kept and all(each.lease.carried for each in _broker._prefetched.values())


def busy(way):
    """Leased Workers, by the Broker's own word."""
    done = subprocess.run([way.program, "status", "--json"], env=way.env, capture_output=True, text=True)
    return sum(pool["busy"] for pool in json.loads(done.stdout)["pools"]) if done.returncode == 0 else -1


def test_with_descriptors_assumed_the_same_way_fails(carrier, tmp_path, monkeypatch):
    """The positive control: packets get through, a lease's descriptors do not, and the call says so."""
    socket = Path(tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp")) / "s"
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", str(socket))
    _broker.close_all()
    with carried.DroppingProxy(socket, carrier.broker):
        with pytest.raises(SandboxStartupError, match="drops the descriptors"):
            sandbox(lambda: 1)()
        _broker.close_all()
    shutil.rmtree(socket.parent)
    monkeypatch.undo()
    assert sandbox(lambda: 1)() == 1


# --- more than a window -----------------------------------------------------------------------------------------------


def test_buffers_larger_than_any_window_travel_both_ways():
    def turn(data):
        return bytes(data[::-1]), len(data)

    data = os.urandom(1 << 20) * 40
    assert boxed(turn, data, memory_mb=1024, timeout_sec=120) == (data[::-1], len(data))


def test_output_larger_than_any_window_comes_before_the_answer():
    def speak():
        import sys

        for number in range(20000):
            print(number, "x" * 40)
        print("last", file=sys.stderr)
        return "value"

    result = sandbox(timeout_sec=120)(speak).run()
    lines = result.stdout.splitlines()
    assert (result.value, len(lines), lines[-1][:5], result.stderr) == ("value", 20000, "19999", "last\n")
    assert result.receipt["layers"]["seccomp"]["on"]


def test_output_of_a_process_that_died_is_whole(capsys):
    def speak():
        import os
        import sys

        for number in range(20000):
            print(number, "x" * 40)
        sys.stdout.flush()
        os._exit(3)

    with pytest.raises(SandboxError):
        boxed(speak, timeout_sec=120)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1][:5]) == (20000, "19999")


def test_many_calls_share_the_stream():
    def work(number):
        print("x" * 100_000)
        return number, bytes([number]) * 300_000

    results = list(sandbox(work, timeout_sec=120).map(range(24), concurrency=6))
    assert results == [(number, bytes([number]) * 300_000) for number in range(24)]


# --- who stops, and who dies ------------------------------------------------------------------------------------------


@pytest.fixture
def nobody_else(carrier):
    """No lease is kept for the next call of this process."""
    _broker.close_all()
    wait_until(lambda: busy(carrier) == 0)


def sleep_long():
    print("begun", flush=True)
    time.sleep(3600)


def test_a_cancelled_call_leaves_no_worker(carrier, nobody_else):
    future = sandbox(timeout_sec=3600)(sleep_long).submit()
    wait_until(lambda: busy(carrier) == 1)
    assert future.cancel()
    wait_until(lambda: busy(carrier) == 0)
    assert sandbox(lambda: 2)() == 2


def start_caller():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nimport test_carried\nfrom pctx_sandbox import sandbox\n"
        "sandbox(timeout_sec=3600)(test_carried.sleep_long)()\n"
    )
    here = os.path.dirname(os.path.abspath(__file__))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.path.dirname(here), *filter(None, sys.path)])}
    process = subprocess.Popen(
        [sys.executable, "-c", code, here], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n", process.communicate()[1]
    return process


def test_a_caller_that_dies_takes_its_worker_along(carrier, nobody_else):
    caller = start_caller()
    wait_until(lambda: busy(carrier) == 1)
    caller.kill()
    caller.communicate()
    wait_until(lambda: busy(carrier) == 0)
    assert sandbox(lambda: 3)() == 3


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(each) for each in found]


def processes_of(way):
    """The near end, what stands in the middle, and the far end."""
    near = way.process.pid
    (middle,) = children(near)
    (far,) = children(middle)
    return {"near": near, "middle": middle, "far": far}


@pytest.mark.parametrize("victim", ["near", "middle", "far", "broker"])
def test_the_death_of_any_part_ends_the_call_and_leaves_nothing(carrier, nobody_else, victim):
    caller = start_caller()
    wait_until(lambda: busy(carrier) == 1)
    parts = processes_of(carrier)
    if victim == "broker":
        done = subprocess.run([carrier.program, "status", "--json"], env=carrier.env, capture_output=True, text=True)
        os.kill(json.loads(done.stdout)["pid"], signal.SIGKILL)
    else:
        os.kill(parts[victim], signal.SIGKILL)
    words = caller.communicate(timeout=PATIENCE)[1]
    assert caller.returncode == 1 and "SandboxError: the Broker left while" in words, words
    if victim != "broker":
        wait_until(lambda: busy(carrier) == 0)
    carrier.process.wait(PATIENCE)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in parts.values()))
    carrier.process.stderr.close()
    carrier.callers.unlink(missing_ok=True)  # a killed one leaves its name
    carrier.start()
    assert sandbox(lambda: 4)() == 4


# --- hostile guests ---------------------------------------------------------------------------------------------------


def forge():
    """Frames as an end would write them, for lines and leases that others have: close, end, data, packets."""
    import struct

    frames = []
    for line in range(1, 40):
        for kind, stream, lease, body in (
            (9, 0, 0, b""),
            (8, 0, 1, b""),
            (7, 0, 1, b"\1"),
            (5, 0, 1, b"forged"),
            (2, 0, 0, b'{"ended": {}}'),
        ):
            frames.append(struct.pack("<IIIBBH", len(body), line, lease, kind, stream, 0) + body)
    return b"".join(frames)


def test_a_guest_cannot_speak_for_others(carrier):
    """It says frames on all three of its descriptors, while another call runs on the same stream."""

    def attack(frames):
        import os

        for fd in range(1, 64):
            for _ in range(50):
                try:
                    os.write(fd, frames)
                except OSError:
                    break
        return "unchanged"

    def quiet():
        time.sleep(2)
        return "whole"

    other = sandbox(quiet).submit()
    before = carrier.process.pid
    for _ in range(3):
        with pytest.raises(SandboxError):
            boxed(attack, forge(), output_mb=64, timeout_sec=60)
    assert other.result(PATIENCE) == "whole"
    assert carrier.process.poll() is None and carrier.process.pid == before
    assert sandbox(lambda: 5)() == 5


def test_a_guest_that_sends_a_descriptor_sends_nothing():
    """A Worker that answers with a memfd, although it was asked not to: the descriptor is gone, and the call fails."""

    def send():
        import os
        import socket
        import struct
        import sys

        body = b""
        header = struct.pack("<4sBBBBQII", b"PCTX", 1, 2, sys.version_info[1], 1, len(body), 1, 0)
        for fd in range(3, 64):
            try:
                with socket.socket(fileno=os.dup(fd)) as sock:
                    if sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM:
                        read, _ = os.pipe()
                        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", read))]
                        sock.sendmsg([header + struct.pack("<QQ", 0, 5)], rights)
            except OSError:
                continue
        os._exit(0)

    with pytest.raises(SandboxError, match="memfd is missing"):
        boxed(send)


def test_a_guest_that_reads_nothing_stops_nobody():
    """Its call waits in the window; others go on, and its own time ends it."""

    def stop_reading():
        time.sleep(3600)

    big = os.urandom(8 << 20)
    slow = sandbox(timeout_sec=2, memory_mb=1024)(lambda data: stop_reading()).submit(big)
    for number in range(5):
        assert sandbox(lambda: 6)() == 6, number
    with pytest.raises(SandboxError):
        slow.result(PATIENCE)


def test_scripts_are_carried_with_all_that_they_print():
    code = "import sys\nfor n in range(20000): print(n, 'x' * 40)\nprint('last', file=sys.stderr)\nsys.exit(7)\n"
    result = run(code, timeout=120)
    lines = result.stdout.splitlines()
    assert (result.returncode, len(lines), lines[-1][:5], result.stderr) == (7, 20000, "19999", "last\n")
    kept = [connection for (_, lease), connection in _broker._prefetched.items() if b'"scripts": true' in lease]
    assert kept and all(connection.wait_for_lease(PATIENCE).carried for connection in kept)
