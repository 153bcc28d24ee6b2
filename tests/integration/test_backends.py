"""One suite over all backends: what `@sandbox` and `pctx-sandbox run` promise holds whatever makes the box."""

import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from pctx_sandbox import (
    SandboxError,
    SandboxExecutionError,
    SandboxMemoryError,
    SandboxTimeoutError,
    SerializationError,
    sandbox,
    sandbox_async,
)

pytestmark = pytest.mark.usefixtures("each_backend")
VALUES = [None, True, -7, 2.5, "text é", b"bytes", [1, [2, (3,)]], {"a": {1, 2}}, {"deep": [{"er": [None]}]}]


def boxed(function, *args, **settings):
    return sandbox(**settings)(function)(*args)


# --- values and exceptions --------------------------------------------------------------------------------------------


def test_values_come_back_as_they_were():
    def same(value):
        return value

    assert boxed(same, VALUES) == VALUES


def test_large_values_travel_both_ways():
    def double(data):
        return data * 2

    data = os.urandom(3 << 20)
    assert boxed(double, data) == data * 2


def test_a_known_exception_is_raised_as_itself():
    def fail():
        raise ValueError("no such number")

    with pytest.raises(ValueError, match="no such number"):
        boxed(fail)


def test_an_own_exception_comes_back_as_text():
    def fail():
        class Mine(Exception):
            pass

        raise Mine("own words")

    with pytest.raises(SandboxExecutionError, match="own words") as caught:
        boxed(fail)
    assert "Mine" in caught.value.error_type


def test_what_is_not_data_is_refused():
    def give():
        return lambda: 1

    with pytest.raises(SerializationError):
        boxed(give)


def test_a_death_of_the_process_is_told():
    def die():
        import os

        os._exit(3)

    with pytest.raises(SandboxError):
        boxed(die)


def test_coroutines_and_maps_run():
    import asyncio

    @sandbox_async
    def add(a, b):
        return a + b

    assert asyncio.run(add(1, 2)) == 3
    square = sandbox(lambda x: x * x)
    assert list(square.map(range(5), concurrency=3)) == [0, 1, 4, 9, 16]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_output_is_passed_on_and_kept():
    def speak():
        import sys

        print("to stdout")
        print("to stderr", file=sys.stderr)
        return 1

    result = sandbox(speak).run()
    assert (result.value, result.stdout, result.stderr) == (1, "to stdout\n", "to stderr\n")


def test_output_is_bounded():
    def flood():
        while True:
            print("x" * 1000)

    with pytest.raises(SandboxError, match="output_mb"):
        boxed(flood, output_mb=1)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_time_is_bounded():
    def sleep():
        import time

        time.sleep(600)

    with pytest.raises(SandboxTimeoutError, match="timeout_sec=1"):
        boxed(sleep, timeout_sec=1)


def test_cpu_time_is_bounded():
    def spin():
        while True:
            pass

    with pytest.raises(SandboxTimeoutError):
        boxed(spin, cpu_time_sec=1, timeout_sec=60)


def test_memory_is_bounded():
    def take(size):
        return len(bytearray(os.urandom(1)) * size)

    assert boxed(take, 64 << 20, memory_mb=256) == 64 << 20
    with pytest.raises(SandboxMemoryError):
        boxed(take, 1 << 30, memory_mb=256)


def test_processes_are_bounded():
    def fork(count):
        import os
        import time

        for made in range(count):
            try:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
            except OSError:
                return made
        return count

    assert boxed(fork, 4, pids=16) == 4
    assert boxed(fork, 100, pids=16) < 16


def test_disk_is_bounded():
    def fill(size):
        with open("/tmp/large", "wb") as file:
            file.write(bytes(size))
        return size

    assert boxed(fill, 1 << 20, disk_mb=8) == 1 << 20
    with pytest.raises(OSError):
        boxed(fill, 32 << 20, disk_mb=8)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_lent_folder_is_read_and_written(tmp_path):
    (tmp_path / "in.txt").write_text("from the host")
    (tmp_path / "gone.txt").write_text("to be removed")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/old").write_text("old")

    @sandbox(mnt_dir=tmp_path)
    def work(number):
        from pathlib import Path

        here = Path("/mnt")
        here.joinpath("folder/old").write_text(f"new {number}")
        here.joinpath("made").mkdir(exist_ok=True)
        here.joinpath("made/out.txt").write_text(here.joinpath("in.txt").read_text().upper())
        here.joinpath("gone.txt").unlink(missing_ok=True)
        return sorted(path.name for path in here.iterdir())

    for number in (1, 2):
        assert work(number) == ["folder", "in.txt", "made"]
        assert (tmp_path / "made/out.txt").read_text() == "FROM THE HOST"
        assert (tmp_path / "folder/old").read_text() == f"new {number}"
        assert not (tmp_path / "gone.txt").exists()
        assert (tmp_path / "made/out.txt").stat().st_uid == os.geteuid()


def test_a_trap_in_a_lent_folder_does_not_reach_the_host(tmp_path, each_backend):
    """A link in place of a file: what a later write of the box goes to must be in the box."""
    outside = tmp_path / "outside"
    outside.write_text("the host's own")
    lent = tmp_path / "lent"
    lent.mkdir()
    (lent / "file").write_text("x")

    @sandbox(mnt_dir=lent)
    def trap(target):
        import os

        os.unlink("/mnt/file")
        os.symlink(target, "/mnt/file")
        try:
            with open("/mnt/file", "w") as file:
                file.write("overwritten")
        except OSError:
            pass
        return True

    assert trap(str(outside))
    assert outside.read_text() == "the host's own"


# --- network by name --------------------------------------------------------------------------------------------------


@pytest.fixture
def own_server():
    """A server of this host at an address that is not loopback's, which is always the box's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        pytest.skip("needs an address of this host beside loopback's")
    with socket.create_server((address, 0)) as server:

        def serve():
            try:
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(b"served")
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_an_allow_list_opens_what_it_names_and_nothing_else(own_server):
    def fetch(address, port):
        import socket

        try:
            with socket.create_connection((address, port), timeout=20) as connection:
                return connection.recv(100)
        except OSError as error:
            return type(error).__name__

    address, port = own_server
    assert fetch(address, port) == b"served"
    assert isinstance(boxed(fetch, address, port), str)
    result = sandbox(allow_network=[f"{address}:{port}"])(fetch).run(address, port)
    assert result.value == b"served", result.receipt
    entries = [entry for entry in result.receipt["network"]["connections"] if entry["allowed"]]
    assert [(entry["address"], entry["port"]) for entry in entries] == [(address, port)]
    other = sandbox(allow_network=["198.51.100.7:80"])(fetch)
    assert isinstance(other(address, port), str)


# --- receipts and environments ----------------------------------------------------------------------------------------


def test_the_receipt_names_the_backend_and_every_layer(each_backend):
    receipt = sandbox(lambda: 1).run().receipt
    limits = receipt["backend"].pop("limits", "")
    assert receipt["backend"] == {"name": each_backend, "reason": "asked for by name"}
    assert (limits != "") == (each_backend == "podman")
    for layer in ("user", "pid", "mount", "network", "ipc", "proc", "capabilities", "no-new-privs", "seccomp"):
        assert receipt["layers"][layer]["on"], layer
    assert set(receipt["limits"]) >= {"memory", "pids", "disk", "timeout"}


def test_what_cannot_be_had_is_said_before_the_run(each_backend):
    layers = sandbox(lambda: 1).run().receipt["layers"]
    missing = [name for name, layer in layers.items() if not layer["on"]]
    if not missing:
        pytest.skip("needs a host on which some layer is missing")
    with pytest.raises(SandboxError, match=missing[0]):
        sandbox(require=[missing[0]])(lambda: 1)()


def test_packages_are_there(skip_unless):
    skip_unless(os.environ.get("PCTX_VM") != "1", "a package index, which the virtual machine has no network for")

    @sandbox(dependencies=["six"])
    def version():
        import six

        return six.text_type.__name__

    assert version() == "str"


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_runs_with_its_streams_and_status(pctx, each_backend):
    code = "import sys; print(sys.stdin.read().upper(), end=''); print('err', file=sys.stderr); sys.exit(7)"
    done = pctx("run", "-q", "--", "python3", "-c", code, input="words")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (7, "WORDS", "err")
    report = pctx("run", "--json", "--", "true").json()
    assert report["receipt"]["backend"]["name"] == each_backend
    assert report["outcome"]["kind"] == "exited"


def test_the_command_lends_files_and_brings_changes_back(pctx, tmp_path):
    work, only = tmp_path / "work", tmp_path / "only"
    work.mkdir()
    (work / "a").write_text("old")
    only.write_text("read me")
    script = tmp_path / "script.py"
    script.write_text("open('/mnt/b', 'w').write(open('/lent').read())\nopen('/mnt/a', 'w').write('new')\n")
    report = tmp_path / "report.json"
    done = pctx("run", "--mnt", work, "--ro", f"{only}:/lent", "--changed", "--report", report, script)
    assert done.returncode == 0, done.stderr
    assert (work / "a").read_text() == "new" and (work / "b").read_text() == "read me"
    assert json.loads(report.read_text())["changed"]["created"] == ["b"]
    assert "created  b" in done.stderr


def test_the_command_is_bounded(pctx):
    assert pctx("run", "-q", "--timeout", "1s", "--", "sleep", "600").returncode == 124
    assert pctx("run", "-q", "--memory", "64M", "--", "python3", "-c", "bytearray(10**9)").returncode != 0
    assert pctx("run", "-q", "--output", "64K", "--", "yes", stdout=subprocess.DEVNULL).returncode == 153


def test_nothing_is_left_in_the_place_of_copies(pctx, tmp_path, each_backend):
    tmp_path.joinpath("file").write_text("x")
    assert pctx("run", "-q", "--mnt", tmp_path, "--", "true").returncode == 0
    place = Path(os.environ["PCTX_SANDBOX_SOCKET"] + ".podman/lent")
    assert place.is_dir() == (each_backend == "podman")  # the other lends folders as they are
    assert [path.name for path in place.glob("run-*")] == []


def test_podman_is_what_runs_it(each_backend):
    """The control of this whole file: the box of one backend is in a container, that of the other is not."""
    sandbox(lambda: 1)()
    names = []
    if shutil.which("podman"):
        command = ["podman", "ps", "--format", "{{.Names}}"]
        names = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split()
    assert (os.environ["PCTX_SANDBOX_CONTAINER"] in names) == (each_backend == "podman")
