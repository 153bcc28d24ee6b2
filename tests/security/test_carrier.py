"""The ends of a stream against whoever is at the other one: wrong frames, floods, and the end at every byte."""

import contextlib
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from pctx_sandbox import _backend, sandbox
from pctx_sandbox.guest import wire

GREETING = b"pctx-sandbox stream 1\n"
OPEN, PACKET, PIECE, LEASED, DATA, CREDIT, END, DROP, CLOSE, PING = range(1, 11)
WINDOW = 256 << 10
PATIENCE = 120


def frame(kind, line=0, body=b"", lease=0, stream=0, reserved=0):
    return struct.pack("<IIIBBH", len(body), line, lease, kind, stream, reserved) + body


STATUS = b'{"status": {}}'
# Each ends the stream, whoever reads it.
WRONG = {
    "no such kind": frame(11, 1),
    "kind 0": frame(0, 1),
    "a huge body": struct.pack("<IIIBBH", 0xFFFFFFFF, 1, 0, PACKET, 0, 0),
    "a body too long": struct.pack("<IIIBBH", (128 << 10) + 1, 1, 0, PACKET, 0, 0),
    "data too long": struct.pack("<IIIBBH", (64 << 10) + 1, 1, 1, DATA, 0, 0),
    "an empty packet": frame(PACKET, 1),
    "reserved bits": frame(PING, reserved=1),
    "a line that there is not": frame(PACKET, 9, STATUS),
    "a lease that there is not": frame(DATA, 1, b"x", lease=1),
    "credit for nothing": frame(CREDIT, 1, struct.pack("<I", 1), lease=1),
    "no descriptor 3": frame(DATA, 1, b"x", lease=1, stream=3),
}


class Stream:
    """One end, spoken by the test."""

    def __init__(self, read, write):
        self._read, self._write, self._buffer = read, write, b""

    def send(self, *frames):
        data = b"".join(frames)
        while data:
            data = data[os.write(self._write, data) :]

    def read(self, size):
        deadline = time.monotonic() + PATIENCE
        while len(self._buffer) < size:
            assert select.select([self._read], [], [], deadline - time.monotonic())[0], "it says nothing"
            data = os.read(self._read, 1 << 16)
            if not data:
                raise EOFError
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def next(self):
        size, line, lease, kind, stream, _ = struct.unpack("<IIIBBH", self.read(16))
        return kind, line, lease, stream, self.read(size)

    def expect(self, kind, line):
        """The next frame of this kind for this line; others are passed over."""
        while True:
            found = self.next()
            if found[:2] == (kind, line):
                return found


@pytest.fixture(scope="module")
def place(sandbox_bin):
    """A folder with a Broker."""
    folder = Path(tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp"))
    env = {**os.environ, "PCTX_SANDBOX_SOCKET": str(folder / "b"), "PCTX_SANDBOX_BINARY": sandbox_bin}
    subprocess.run([sandbox_bin, "serve"], env=env, check=True)
    yield folder, env
    subprocess.run([sandbox_bin, "stop"], env=env, capture_output=True)
    shutil.rmtree(folder)


# --- the far end, which the Broker takes for a caller -----------------------------------------------------------------


@pytest.fixture
def far(place, sandbox_bin):
    process = subprocess.Popen(
        [sandbox_bin, "carry"], env=place[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    stream = Stream(process.stdout.fileno(), process.stdin.fileno())
    yield process, stream
    process.kill()
    process.communicate()


def broker_answers(place, sandbox_bin):
    done = subprocess.run([sandbox_bin, "status", "--json"], env=place[1], capture_output=True, text=True)
    return done.returncode == 0 and json.loads(done.stdout)["running"]


def greet(stream):
    stream.send(GREETING)
    assert stream.read(len(GREETING)) == GREETING


def test_a_caller_is_carried(far):
    """The control: with frames as they should be there is an answer."""
    greet(far[1])
    far[1].send(frame(OPEN, 1), frame(PACKET, 1, STATUS))
    assert "pools" in json.loads(far[1].expect(PACKET, 1)[4])


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_frame_ends_the_far_end(far, place, sandbox_bin, what):
    process, stream = far
    greet(stream)
    stream.send(frame(OPEN, 1), WRONG[what])
    words = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 125 and words.startswith("pctx-sandbox: the "), words
    assert broker_answers(place, sandbox_bin)


@pytest.mark.parametrize("kind", [LEASED, PIECE])
def test_frames_of_the_far_end_are_not_taken_by_it(far, kind):
    process, stream = far
    greet(stream)
    stream.send(frame(OPEN, 1), frame(kind, 1, b"" if kind == LEASED else b"x", lease=1 if kind == LEASED else 0))
    assert b"only a far end sends" in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 125


def test_a_line_cannot_be_opened_twice(far):
    process, stream = far
    greet(stream)
    stream.send(frame(OPEN, 2), frame(OPEN, 1))
    assert b"opened twice" in process.communicate(timeout=PATIENCE)[1]


def test_the_end_of_the_stream_at_every_byte_ends_the_far_end(place, sandbox_bin):
    whole = GREETING + frame(OPEN, 1) + frame(PACKET, 1, STATUS) + frame(PING)
    for size in range(len(whole) + 1):
        done = subprocess.run(
            [sandbox_bin, "carry"], env=place[1], input=whole[:size], capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == (0 if size >= len(GREETING) else 125), (size, done)
    assert broker_answers(place, sandbox_bin)


def lease_packet(function, place, monkeypatch):
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", str(place[0] / "b"))
    prepared = sandbox(timeout_sec=600, output_mb=512)(function)._prepared
    monkeypatch.setattr(_backend, "_resolved", {})
    call, _ = prepared._encode((), {})
    head = bytearray(call.parts[0])
    head[wire.FLAGS_AT] = wire.FLAG_INLINE
    return prepared._lease_spec(None).lease, b"".join([head, *call.parts[1:]])


def test_what_nobody_reads_is_not_read_from_the_guest(far, place, monkeypatch):
    """A flood on one line fills its window and no more, and another line goes on."""

    def flood():
        while True:
            print("x" * 10000)

    process, stream = far
    lease, call = lease_packet(flood, place, monkeypatch)
    greet(stream)
    stream.send(frame(OPEN, 1), frame(PACKET, 1, lease))
    stream.expect(LEASED, 1)
    stream.send(frame(DATA, 1, call, lease=1), frame(PACKET, 1, b'{"start": {}}'))
    got = 0
    while got < WINDOW:
        kind, line, _, number, body = stream.next()
        assert (kind, line, number) in ((DATA, 1, 1), (CREDIT, 1, 0)), (kind, line, number)
        got += len(body) if kind == DATA else 0
    assert got == WINDOW
    for line in range(2, 30):
        stream.send(frame(OPEN, line), frame(PACKET, line, STATUS))
        assert stream.next()[:2] == (PACKET, line)  # and no byte of the flood in between
    stream.send(frame(CREDIT, 1, struct.pack("<I", 1000), lease=1, stream=1))
    kind, line, _, _, body = stream.next()
    assert (kind, line, len(body)) == (DATA, 1, 1000)
    stream.send(frame(CREDIT, 1, struct.pack("<I", WINDOW + 1), lease=1, stream=1))
    assert b"more was taken than was sent" in process.communicate(timeout=PATIENCE)[1]


def test_more_than_a_window_for_a_guest_is_refused(far, place, monkeypatch):
    def wait():
        import time

        time.sleep(600)

    process, stream = far
    lease, call = lease_packet(wait, place, monkeypatch)
    greet(stream)
    stream.send(frame(OPEN, 1), frame(PACKET, 1, lease))
    stream.expect(LEASED, 1)
    stream.send(frame(DATA, 1, call, lease=1))
    piece = frame(DATA, 1, bytes(64 << 10), lease=1)
    with pytest.raises(BrokenPipeError):
        for _ in range(100):  # what the Worker's socket takes, and a window: far less than this
            stream.send(piece)
    assert b"more bytes than the window" in process.communicate(timeout=PATIENCE)[1]


# --- the near end, which callers take for the Broker ------------------------------------------------------------------


@pytest.fixture
def near(sandbox_bin, tmp_path):
    """near(): the process, our stream to it, and where callers connect."""
    folder = Path(tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp"))
    started = []

    def start():
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        # The command hands its standard streams to the test: the far end is played here.
        code = (
            "import os, socket, sys, threading\n"
            "sock = socket.socket(fileno=int(sys.argv[1]))\n"
            "def inward():\n"
            "    while data := os.read(0, 1 << 16): sock.sendall(data)\n"
            "    os._exit(0)\n"
            "threading.Thread(target=inward, daemon=True).start()\n"
            "while data := sock.recv(1 << 16):\n"
            "    while data: data = data[os.write(1, data):]\n"
        )
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        process = subprocess.Popen(
            [sandbox_bin, "carry", "--listen", str(folder / "n"), "--", *command],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        started.append((process, ours))
        return process, Stream(ours.fileno(), ours.fileno()), folder / "n"

    yield start
    for process, ours in started:
        ours.close()
        process.kill()
        process.communicate()
    shutil.rmtree(folder)


def connect(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(PATIENCE)
    sock.connect(str(path))
    return sock


def ready(near):
    process, stream, path = near()
    greet(stream)
    caller = connect(path)
    stream.expect(OPEN, 1)
    return process, stream, path, caller


def test_a_near_end_gives_the_answer_to_whom_it_is_for(near):
    process, stream, path, first = ready(near)
    with first, connect(path) as second:
        stream.expect(OPEN, 2)
        stream.send(frame(PACKET, 2, b"for the second"), frame(PACKET, 1, b"for the first"))
        assert (first.recv(100), second.recv(100)) == (b"for the first", b"for the second")


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_frame_ends_the_near_end(near, what):
    process, stream, path, caller = ready(near)
    with caller:
        stream.send(WRONG[what])
        assert caller.recv(100) == b""
    words = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 125 and words.startswith("pctx-sandbox: the "), words
    assert not path.exists()


HOSTILE = {
    "a lease out of turn": ([frame(LEASED, 1, lease=2)], "out of turn"),
    "what only a near end sends": ([frame(OPEN, 1)], "only a near end sends"),
    "bytes after the end": (
        [frame(LEASED, 1, lease=1), frame(END, 1, b"\0", lease=1), frame(DATA, 1, b"x", lease=1)],
        "takes none",
    ),
    "more than the window": (
        [frame(LEASED, 1, lease=1), *[frame(DATA, 1, bytes(64 << 10), lease=1, stream=1)] * 9],
        "more bytes than the window",
    ),
    "credit for what was not sent": (
        [frame(LEASED, 1, lease=1), frame(CREDIT, 1, struct.pack("<I", 1), lease=1)],
        "more was taken than was sent",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_far_end_is_left(near, what):
    frames, words = HOSTILE[what]
    process, stream, path, caller = ready(near)
    with caller:
        with contextlib.suppress(BrokenPipeError):  # it need not read all of them to be sure
            stream.send(*frames)
        said = process.communicate(timeout=PATIENCE)[1].decode()
        assert process.returncode == 125 and words in said, said


@pytest.mark.parametrize("what", ["reports", "packets"])
def test_a_flood_for_one_caller_costs_that_caller(near, what):
    """A report beyond the limit, packets that the caller does not read: its line is closed, and another one lives."""
    process, stream, path, first = ready(near)
    with first, connect(path) as second:
        stream.expect(OPEN, 2)
        piece = frame(PIECE, 1, bytes(64 << 10)) if what == "reports" else frame(PACKET, 1, bytes(64 << 10))
        for _ in range(1200):
            stream.send(piece)
        stream.expect(CLOSE, 1)
        stream.send(frame(PACKET, 2, b"still here"))
        assert second.recv(100) == b"still here"
        assert process.poll() is None


@pytest.mark.parametrize("said", [b"Welcome to Ubuntu!\n", b"\x1b]0;title\x07" + bytes(1000), GREETING[:-2] + b"2\n"])
def test_whatever_is_no_greeting_is_told_without_being_obeyed(near, said):
    process, stream, path = near()
    stream.send(said)
    words = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 125 and "the other end of the stream said" in words and "\x1b" not in words


def test_the_end_at_every_byte_of_an_answer_ends_the_near_end(near):
    whole = GREETING + frame(PACKET, 1, b"answer") + frame(LEASED, 1, lease=1) + frame(DATA, 1, b"x", lease=1)
    for size in range(len(GREETING), len(whole), 5):
        process, stream, path = near()
        stream.send(whole[: len(GREETING)])
        assert stream.read(len(GREETING)) == GREETING
        with connect(path) as caller:
            stream.expect(OPEN, 1)
            stream.send(whole[len(GREETING) : size])
            sock = socket.socket(fileno=os.dup(stream._read))
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()
            assert process.wait(PATIENCE) == 0
            while data := caller.recv(100):
                assert data in (b"answer", b'{"leased": {"carried": true}}')


def test_a_command_that_fails_is_quoted(sandbox_bin, tmp_path):
    done = subprocess.run(
        [sandbox_bin, "carry", "--listen", tmp_path / "n", "--", "sh", "-c", "echo no route to it >&2; exit 3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 125 and "no route to it" in done.stderr
    assert not (tmp_path / "n").exists()


def test_who_holds_a_command_says_so_until_it_has_come(sandbox_bin, place):
    """A stream may lose the first word: whoever waits for it would wait for ever."""
    path = place[0] / "string"
    holder = subprocess.Popen([sandbox_bin, "carry", "--hold", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.read(3) == b"111"
    with connect(path) as held:
        held.setblocking(False)
        with pytest.raises(BlockingIOError):  # the control: it holds
            held.recv(1)
        held.settimeout(PATIENCE)
        holder.communicate(timeout=PATIENCE)
        assert held.recv(1) == b"" and holder.returncode == 0 and not path.exists()
