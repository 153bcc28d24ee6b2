"""Makes the package of this tree importable, with the extension module of one of its builds."""

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent.parent
BUILDS = [TREE / "build" / name / "python" / "pctx_sandbox" for name in ("release", "dev", "native")]


def pytest_configure(config):
    sys.path.insert(0, str(TREE / "python"))
    package = importlib.import_module("pctx_sandbox")
    if os.environ.get("PCTX_NATIVE_DIR"):
        package.__path__.append(os.environ["PCTX_NATIVE_DIR"])
    package.__path__.extend(str(folder) for folder in BUILDS if (folder / "_native.abi3.so").exists())


class Encoder:
    """The guest's side in a process of its own: values go in as arguments of a call do, and come out as results do.

    PCTX_TEST_GUEST_PYTHON names another interpreter, with other versions of the libraries.
    """

    def __init__(self):
        program = str(Path(__file__).parent / "encoder_process.py")
        self.process = subprocess.Popen(
            [os.environ.get("PCTX_TEST_GUEST_PYTHON", sys.executable), program, str(TREE / "python")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def encode(self, value, allowed=()):
        from pctx_sandbox._arguments import encode_call

        call = encode_call((value, tuple(allowed)))
        self._send(len(call.buffers).to_bytes(8, "little"))
        for part in (call.payload, *call.buffers):
            self._send(memoryview(part).nbytes.to_bytes(8, "little"), part)
        status, payload, *buffers = self._receive()
        if status == b"refused":
            from pctx_sandbox.guest.tags import NotData

            raise NotData(payload.decode("utf-8", "replace"))
        return payload, [memoryview(bytearray(buffer)) for buffer in buffers]

    def _send(self, *parts):
        for part in parts:
            self.process.stdin.write(part)
        self.process.stdin.flush()

    def _receive(self):
        read = self.process.stdout.read
        count = int.from_bytes(read(8), "little")
        assert count, "the encoder died"
        return [read(int.from_bytes(read(8), "little")) for _ in range(count)]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def encoder():
    process = Encoder()
    yield process
    process.close()


@pytest.fixture
def through_a_box(encoder):
    """Encodes in another process and decodes here, as a result of a sandboxed call is."""

    def travel(value, *classes):
        from pctx_sandbox._results import decode
        from pctx_sandbox.guest.records import key_of

        types = {key_of(kind): kind for kind in classes}
        payload, buffers = encoder.encode(value, types)
        return decode(payload, buffers, types=types)

    return travel


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A Broker for protocol tests: the loopback one, or with PCTX_TEST_BROKER=real whatever the package starts."""
    if os.environ.get("PCTX_TEST_BROKER") == "real":
        yield None
        return
    with start_broker(tmp_path_factory.mktemp("broker")) as path:
        os.environ["PCTX_SANDBOX_SOCKET"] = path
        yield path
        del os.environ["PCTX_SANDBOX_SOCKET"]


@contextlib.contextmanager
def start_broker(folder, mode=""):
    """The loopback Broker in a process of its own, until the end of the block."""
    from pctx_sandbox import _broker

    path = str(folder / "broker.sock")
    program = str(Path(__file__).parent / "loopback_broker.py")
    process = subprocess.Popen([sys.executable, program, path, mode])
    deadline = time.monotonic() + 30
    while not accepts(path) and time.monotonic() < deadline:
        assert process.poll() is None, "the loopback Broker died"
        time.sleep(0.01)
    try:
        yield path
    finally:
        _broker.close_all()
        process.terminate()
        process.wait(timeout=10)


def accepts(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        return sock.connect_ex(path) == 0


@pytest.fixture
def misbehaving(tmp_path, monkeypatch):
    """Starts a loopback Broker in another mode for one test: misbehaving(mode)."""
    with contextlib.ExitStack() as stack:

        def start(mode):
            path = stack.enter_context(start_broker(tmp_path, mode))
            monkeypatch.setenv("PCTX_SANDBOX_SOCKET", path)
            return path

        yield start
