"""The Broker takes a socket from whoever listens already, as systemd's user units do (packaging/systemd).

The protocol is sd_listen_fds(3)'s: the sockets are descriptors from 3 on, LISTEN_FDS counts them, LISTEN_PID names the
one process that they are meant for.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from waiting import wait_until

# Plays systemd: takes its place with the socket as descriptor 3 and its own pid in the environment.
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
pid = os.getpid() if sys.argv[2] == "mine" else 1
os.environ.update(LISTEN_PID=str(pid), LISTEN_FDS="1", LISTEN_FDNAMES="pctx-sandbox.socket")
os.execv(sys.argv[3], sys.argv[3:])
"""


def listen(path, kind=socket.SOCK_SEQPACKET):
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    listener.listen(16)
    return listener


@pytest.fixture
def place(tmp_path):
    return tmp_path / "broker.sock"


@pytest.fixture
def hand_over(sandbox_bin, place):
    """hand_over(listener) starts a Broker with it; all of them end with the test."""
    started = []

    def start(listener, whose="mine", **options):
        os.set_inheritable(listener.fileno(), True)
        command = [sys.executable, "-c", HAND_OVER, str(listener.fileno()), whose, sandbox_bin]
        command += ["serve", "--foreground", "--idle", "60"]
        env = os.environ | {"PCTX_SANDBOX_SOCKET": str(place)}
        options |= {"stderr": subprocess.PIPE, "text": True, "pass_fds": [listener.fileno()]}
        started.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, **options))
        return started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
        process.kill()


@pytest.fixture
def ask(pctx, place):
    def run(*words):
        return pctx(*words, env=os.environ | {"PCTX_SANDBOX_SOCKET": str(place)})

    return run


def status_over(connection):
    connection.settimeout(30)
    connection.send(b'{"status": {}}')
    return json.loads(connection.recv(65536))


def test_a_call_that_came_before_the_broker_is_answered_by_it(place, hand_over):
    with listen(place) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as early:
        early.connect(str(place))  # as a caller does whose call makes systemd start the service
        process = hand_over(listener)
        assert status_over(early)["pid"] == process.pid


def test_callers_see_the_broker_and_not_who_listened_before(place, hand_over, ask):
    with listen(place) as listener:
        process = hand_over(listener)
        wait_until(lambda: ask("status", "--json").returncode == 0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            caller.connect(str(place))
            pid = int.from_bytes(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        assert pid == process.pid


def test_serve_leaves_a_socket_that_systemd_keeps_alone(place, ask):
    with listen(place) as listener:  # no Broker yet: the next connection would start one
        inode = os.stat(place).st_ino
        assert ask("serve").returncode == 0
        assert os.stat(place).st_ino == inode
        connection, _ = listener.accept()  # what `serve` looked with
        connection.close()


def test_stop_ends_the_broker_and_never_who_listens_for_it(place, hand_over, ask):
    with listen(place) as listener:
        process = hand_over(listener)
        wait_until(lambda: ask("status").returncode == 0)
        assert ask("stop").returncode == 0
        assert process.wait(timeout=10) == 0
        assert os.path.exists(place), "the socket is systemd's"
        # No Broker now: this very process is the other end, and `stop` must not end it.
        began = time.monotonic()
        assert ask("stop").returncode == 0
        assert time.monotonic() - began < 30


def test_descriptors_meant_for_another_process_are_not_taken(place, hand_over, tmp_path):
    other = tmp_path / "other.sock"
    with listen(other) as listener:
        hand_over(listener, whose="another's")
        wait_until(place.exists)  # it listens where callers look, on a socket of its own


@pytest.mark.parametrize(("kind", "name"), [(socket.SOCK_STREAM, "broker.sock"), (socket.SOCK_SEQPACKET, "else.sock")])
def test_a_socket_that_callers_could_not_use_is_refused(place, hand_over, kind, name):
    with listen(place.parent / name, kind) as listener:
        process = hand_over(listener)
        _, said = process.communicate(timeout=30)
        assert process.returncode not in (0, None) and "hint:" in said, said


def test_what_is_no_socket_is_left_alone(place, ask):
    place.write_text("somebody's")
    done = ask("serve", "--foreground")
    assert done.returncode == 125 and "is no socket" in done.stderr and "hint:" in done.stderr
    assert place.read_text() == "somebody's"


def test_the_socket_of_a_killed_broker_is_taken_over(place, ask):
    listen(place).close()  # its name stays
    assert ask("serve").returncode == 0
    assert ask("stop").returncode == 0


def test_the_units_belong_to_this_version(pctx, tree):
    version = re.search(r"\d+\.\d+\.\d+", pctx("--version").stdout).group()
    unit = (tree / "packaging/systemd/pctx-sandbox.socket").read_text()
    assert f"%t/pctx-sandbox/broker-{version}.sock" in unit
