"""A Worker that lies, stalls or dies: every call ends with a clear exception, nothing runs here, nothing is left open.

The Worker's part is played by a script that has the lease's socket as `sock` and may send anything.
"""

import contextlib
import io
import os
import textwrap
import time

import pytest
from pctx_sandbox import (
    SandboxError,
    SandboxExecutionError,
    SandboxStartupError,
    SandboxTimeoutError,
    SerializationError,
    _broker,
    sandbox,
)

PRELUDE = """
import json, os, pickle, socket, struct, sys, time
def read():
    return sock.recv(1 << 20)
def header(kind=2, body=0, buffers=0, flags=0, magic=b"PCTX", version=1, minor=sys.version_info[1]):
    return struct.pack("<4sBBBBQII", magic, version, kind, minor, flags, body, buffers, 0)
def frame(kind, body, **more):
    return header(kind, len(body), **more) + body
"""


@pytest.fixture
def hostile(misbehaving, tmp_path):
    """Runs a call whose Worker is the given script; checks that no descriptor stays open."""

    def run(script, timeout_sec=5, wait=0.0):
        path = tmp_path / "worker.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        misbehaving(f"script:{path}")

        @sandbox(timeout_sec=timeout_sec)
        def function():
            return None

        time.sleep(wait)
        _broker.close_all()
        before = len(os.listdir("/proc/self/fd"))
        try:
            return function()
        finally:
            _broker.close_all()
            assert len(os.listdir("/proc/self/fd")) == before

    return run


def test_the_control_a_well_behaved_script(hostile):
    assert hostile("read(); sock.sendall(frame(2, pickle.dumps([1, 2], 5)))") == [1, 2]


@pytest.mark.parametrize(
    "script",
    [
        "read(); sock.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n' + bytes(100))",
        "read(); sock.sendall(header(body=1 << 62))",
        "read(); sock.sendall(header(kind=3, body=1 << 30))",
        "read(); sock.sendall(header(buffers=0xffffffff))",
        "read(); sock.sendall(header(kind=1))",
        "read(); sock.sendall(header(kind=200))",
        "read(); sock.sendall(header(kind=5))",
        "read(); sock.sendall(header(version=9))",
        "read(); sock.sendall(header(minor=7))",
        "read(); sock.sendall(header(flags=1))",
        "read(); sock.sendall(header(flags=255))",
        "read(); sock.sendall(frame(3, b'[1, 2]'))",
        "read(); sock.sendall(frame(3, b'not json'))",
        "read(); sock.sendall(frame(3, b'[' * 200000))",
        "read(); sock.sendall(frame(4, b'\\xff\\xfe'))",
    ],
)
def test_forged_frames_are_refused(hostile, script):
    with pytest.raises(SandboxExecutionError, match=r"no answer|no JSON|no object") as caught:
        hostile(script + "; time.sleep(60)")
    assert caught.value.error_type == "ProtocolError"


@pytest.mark.parametrize(
    "script",
    [
        "class Evil:\n    def __reduce__(self):\n        return os.system, ('touch {mark}',)\n"
        "read(); sock.sendall(frame(2, pickle.dumps(Evil(), 5)))",
        "read(); sock.sendall(frame(2, b'cos\\nsystem\\n(S\"touch {mark}\"\\ntR.'))",
        "read(); sock.sendall(frame(2, b'garbage'))",
        "read(); sock.sendall(frame(2, b''))",
        "import marshal\nread(); sock.sendall(frame(2, marshal.dumps([1])))",
    ],
)
def test_a_value_that_would_run_code_does_not(hostile, tmp_path, script):
    mark = tmp_path / "mark"
    with pytest.raises(SerializationError):
        hostile(script.replace("{mark}", str(mark)))
    assert not mark.exists()


def test_strange_fields_of_an_exception_do_no_harm(hostile):
    script = """
    read()
    answer = {"error_type": 3, "message": {"a": 1}, "builtins": [None, {}, "SystemExit2", "eval", "Exception"],
              "chain": [1, {"frames": [[1], ["x", "y", 1, 2], ["/etc/passwd", 1, "f", ""]], "text": 5, "link": []}],
              "stage": [], "errno": "x", "module": 7}
    sock.sendall(frame(3, json.dumps(answer).encode()))
    """
    with pytest.raises(SandboxExecutionError) as caught:
        hostile(script)
    assert type(caught.value) is SandboxExecutionError
    assert "/etc/passwd" in str(caught.value)
    assert "root:" not in str(caught.value)  # a path that a guest names is not opened


def test_an_exception_cannot_be_one_that_ends_the_caller(hostile):
    script = """
    read()
    names = ["KeyboardInterrupt", "ValueError"]
    sock.sendall(frame(3, json.dumps({"error_type": "KeyboardInterrupt", "builtins": names}).encode()))
    """
    with pytest.raises(SandboxExecutionError) as caught:
        hostile(script)
    assert type(caught.value) is SandboxExecutionError


@pytest.mark.parametrize(
    "script",
    [
        "read(); time.sleep(60)",
        "read(); sock.sendall(header()[:10]); time.sleep(60)",
        "read(); sock.sendall(header(body=1000) + b'half'); time.sleep(60)",
        "time.sleep(60)",
    ],
)
def test_silence_and_half_messages_end_with_the_time_limit(hostile, script):
    with pytest.raises(SandboxTimeoutError, match="timeout_sec=1"):
        hostile(script, timeout_sec=1)


def test_one_byte_at_a_time_ends_with_the_time_limit(hostile):
    script = """
    read()
    for byte in frame(2, bytes(10000)):
        sock.send(bytes([byte]))
        time.sleep(0.05)
    """
    with pytest.raises(SandboxTimeoutError):
        hostile(script, timeout_sec=1)


def test_an_end_without_an_answer_is_told(hostile):
    with pytest.raises(SandboxExecutionError, match="before it returned"):
        hostile("read(); sock.close()")
    with pytest.raises(SandboxError):
        hostile_again = "read(); sock.sendall(header(body=10) + b'12345'); os._exit(5)"
        hostile(hostile_again)


def test_a_second_answer_is_not_looked_at(hostile):
    assert hostile("read(); good = frame(2, pickle.dumps(1, 5)); sock.sendall(good + b'junk' * 10000)") == 1


def test_an_answer_before_the_call_makes_the_lease_useless(hostile):
    with pytest.raises(SandboxStartupError, match="said something before"):
        hostile("sock.sendall(frame(2, pickle.dumps('early', 5))); time.sleep(60)", wait=1.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("fd = os.memfd_create('x', os.MFD_ALLOW_SEALING); os.write(fd, bytes(128))", "not sealed"),
        ("fd = os.open('/dev/null', os.O_RDONLY)", "not in a memfd"),
        ("fd = os.pipe()[0]", "not in a memfd"),
        (
            "import fcntl; fd = os.memfd_create('x', os.MFD_ALLOW_SEALING); os.ftruncate(fd, 1 << 40); "
            "fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 15)",
            "more than the limit",
        ),
        (
            "import fcntl; fd = os.memfd_create('x', os.MFD_ALLOW_SEALING); os.write(fd, bytes(64)); "
            "fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 15)",
            "outside",
        ),
    ],
)
def test_a_memfd_with_wrong_seals_or_sizes_is_refused(hostile, make, words):
    script = f"""
    read()
    {make}
    table = struct.pack("<QQ", 0, 100)
    socket.send_fds(sock, [header(body=1, buffers=1, flags=1) + table + b"x"], [fd])
    time.sleep(60)
    """
    with pytest.raises(SerializationError, match=words):
        hostile(script)


def test_a_flood_of_descriptors_leaves_none(hostile):
    script = """
    read()
    for _ in range(20):
        socket.send_fds(sock, [b"P"], [os.memfd_create("x") for _ in range(50)])
    """
    with pytest.raises(SandboxError):
        hostile(script)


def test_a_large_call_to_a_worker_that_never_reads_ends_with_the_time_limit(misbehaving, tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(PRELUDE + "time.sleep(60)")
    misbehaving(f"script:{path}")

    @sandbox(timeout_sec=1)
    def takes(text):
        return len(text)

    with pytest.raises(SandboxTimeoutError):
        takes(["x" * 1000 for _ in range(10_000)] + [str(n) for n in range(300_000)])


def test_output_of_a_hostile_worker_is_bounded(hostile):
    script = """
    read()
    while True:
        os.write(1, b"x" * 65536)
    """
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SandboxExecutionError, match="output_mb"):
        hostile(script)


def test_output_without_a_pause_does_not_put_off_the_time_limit(hostile):
    """The Broker counts from its `start`, which is sent when a call turns out not to be short."""
    script = """
    read()
    while True:
        os.write(1, b"x")
        time.sleep(0.0003)
    """
    began = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SandboxTimeoutError):
        hostile(script, timeout_sec=1)
    assert time.monotonic() - began < 8, "we gave up ourselves, long after the limit"
