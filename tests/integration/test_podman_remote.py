"""The Podman backend where Podman is a client: a real service, reached by its API only. No socket of ours is shared.

The service runs on this very machine, so that folders are there under their own names, as `podman machine` has them.
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

import podman_host
import pytest
from pctx_sandbox import SandboxError, SandboxStartupError, _backend, _broker, sandbox

# The same tests, over another way.
from test_backends import (  # noqa: F401
    boxed,
    test_a_known_exception_is_raised_as_itself,
    test_a_lent_folder_is_read_and_written,
    test_coroutines_and_maps_run,
    test_large_values_travel_both_ways,
    test_memory_is_bounded,
    test_output_is_bounded,
    test_output_is_passed_on_and_kept,
    test_packages_are_there,
    test_the_command_is_bounded,
    test_the_command_lends_files_and_brings_changes_back,
    test_time_is_bounded,
    test_values_come_back_as_they_were,
    test_what_is_not_data_is_refused,
)
from waiting import wait_until

if podman_host.trouble():
    pytest.skip(f"needs {podman_host.trouble()}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("machine")
PATIENCE = 180


class Machine:
    def __init__(self, folder):
        self.socket = folder / "p.sock"
        self.name = f"pctx-test-remote-{os.getpid()}"
        self.process = None

    def start(self):
        command = [*podman_host.command(), "system", "service", "--time=0", f"unix://{self.socket}"]
        env = {name: value for name, value in os.environ.items() if name != "CONTAINER_HOST"}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.podman("info").returncode == 0)

    def podman(self, *words):
        return subprocess.run(["podman", *words], capture_output=True, text=True, timeout=PATIENCE)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def machine(sandbox_bin):
    folder = Path(tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp"))
    machine = Machine(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINER_HOST", f"unix://{machine.socket}")
        patch.setenv("PCTX_SANDBOX_SOCKET", f"{folder}/s")
        patch.setenv("PCTX_SANDBOX_BINARY", sandbox_bin)
        patch.setenv("PCTX_SANDBOX_BACKEND", "podman")
        patch.setenv("PCTX_SANDBOX_CONTAINER", machine.name)
        _broker.close_all()
        _backend._resolved.clear()
        machine.start()
        try:
            _backend.resolve("auto").start()  # before a test changes HOME, where Podman has its storage
            yield machine
        finally:
            _broker.close_all()
            _backend._resolved.clear()
            machine.podman("rm", "--force", "--ignore", machine.name)
            machine.stop()
    shutil.rmtree(folder, ignore_errors=True)  # whoever carried callers takes its socket away itself


def carrier():
    """The process that callers find in place of a Broker."""
    backend = _backend.resolve("podman")
    connection = _broker.Connection(backend)
    try:
        data = connection.sock.getsockopt(_broker.socket.SOL_SOCKET, _broker.socket.SO_PEERCRED, 12)
        return int.from_bytes(data[:4], sys.byteorder)
    finally:
        connection.discard()


def test_it_is_a_stream_that_leads_there(machine):
    """The control of this whole file: no socket in a shared folder, and leases that were carried."""
    assert sandbox(lambda: 7)() == 7
    assert machine.podman("info", "--format", "{{.Host.ServiceIsRemote}}").stdout == "true\n"
    inspected = json.loads(machine.podman("inspect", machine.name).stdout)[0]
    assert "/run/pctx" not in [mount["Destination"] for mount in inspected["Mounts"]]
    connection = next(iter(_broker._prefetched.values()))
    assert connection.wait_for_lease(PATIENCE).carried


def test_a_machine_that_is_stopped_is_told_with_the_fix(machine, pctx):
    env = {**os.environ, "CONTAINER_HOST": f"unix://{machine.socket}.stopped"}
    done = pctx("serve", "--backend", "podman", env=env)
    assert done.returncode == 125 and len(done.stderr.splitlines()) == 2, done.stderr
    assert "is stopped, or does not answer" in done.stderr and "hint: podman machine start" in done.stderr
    report = pctx("doctor", env=env).stdout
    assert "is stopped, or does not answer" in report


def test_an_allow_list_is_refused_before_the_run(pctx):
    with pytest.raises(SandboxStartupError, match="no network by name"):
        sandbox(allow_network=["198.51.100.7:80"])(lambda: 1)()
    done = pctx("run", "--network", "allow:198.51.100.7:80", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "") and "no network by name" in done.stderr


@pytest.mark.parametrize("words", [("stop", "-t", "1"), ("kill",), ("rm", "-f"), ("pause",)])
def test_the_next_call_works_after(machine, words, skip_unless):
    same = sandbox(timeout_sec=PATIENCE)(lambda value: value)  # a lease is kept for it, which is of no use any more
    assert same(1) == 1
    done = machine.podman(*words, machine.name)
    skip_unless("cgroup V1" not in done.stderr, "cgroup v2, without which Podman pauses nothing for an ordinary user")
    assert done.returncode == 0, done.stderr
    assert same(2) == 2


def test_a_killed_way_is_made_anew_and_the_container_stays(machine):
    assert sandbox(lambda: 1)() == 1
    before = machine.podman("inspect", "--format", "{{.Id}} {{.State.Pid}}", machine.name).stdout
    os.kill(carrier(), signal.SIGKILL)
    assert sandbox(lambda: 2)() == 2
    assert machine.podman("inspect", "--format", "{{.Id}} {{.State.Pid}}", machine.name).stdout == before


def busy(pctx):
    done = pctx("status", "--backend", "podman", "--json")
    return sum(pool["busy"] for pool in json.loads(done.stdout)["pools"]) if done.returncode == 0 else -1


def test_a_call_whose_way_is_killed_is_told_and_its_worker_dies(machine, pctx):
    def wait():
        time.sleep(3600)

    sandbox(lambda: 1)()
    _broker.close_all()
    wait_until(lambda: busy(pctx) == 0)
    future = sandbox(timeout_sec=3600)(wait).submit()
    wait_until(lambda: busy(pctx) == 1)
    os.kill(carrier(), signal.SIGKILL)
    with pytest.raises(SandboxError, match="the Broker left while"):
        future.result(PATIENCE)
    assert sandbox(lambda: 2)() == 2
    _broker.close_all()
    wait_until(lambda: busy(pctx) == 0)


def test_a_command_dies_with_its_caller(machine, sandbox_bin):
    """`podman exec` outlives its client; a string from outside ends what it runs."""
    mark = "3599.25"
    command = [sandbox_bin, "run", "-q", "--timeout", "1h", "--", "sh", "-c", f"echo begun; sleep {mark}; true"]
    caller = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert caller.stdout.readline() == "begun\n"

    def alive():
        return mark in machine.podman("top", machine.name, "args").stdout

    assert alive()  # the control: it is seen while it runs
    caller.kill()
    caller.communicate()
    wait_until(lambda: not alive())
