"""Brokers come and go: a call that has not started finds another one by itself, one that has says so."""

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import start_broker
from pctx_sandbox import SandboxError, SandboxStartupError, _broker, _program, sandbox


@pytest.fixture(autouse=True)
def no_kept_connections():
    _broker.close_all()
    yield
    _broker.close_all()


@sandbox(queue_timeout_sec=5)
def add(a, b):
    return a + b


def test_a_broker_that_went_away_between_calls_is_replaced(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with start_broker(tmp_path / "one") as path:
        monkeypatch.setenv("PCTX_SANDBOX_SOCKET", path)
        assert add(1, 2) == 3
        kept = dict(_broker._prefetched)
        assert kept
        _broker._prefetched.clear()
    with start_broker(tmp_path / "two") as path:
        monkeypatch.setenv("PCTX_SANDBOX_SOCKET", path)
        _broker._prefetched.update(kept)  # a connection to the Broker that has gone
        assert add(3, 4) == 7


def test_a_lease_that_was_taken_back_is_replaced_silently(misbehaving):
    path = misbehaving("")
    assert add(1, 2) == 3
    connection = next(iter(_broker._prefetched.values()))
    lease = connection.wait_for_lease(10)
    worker = int(Path(path + ".leases").read_text())
    # What the Broker does with an unused lease: the Worker's end of the socket is closed.
    lease.sock.shutdown(socket.SHUT_RDWR)
    assert add(5, 6) == 11
    assert int(Path(path + ".leases").read_text()) > worker


def test_a_broker_that_dies_at_the_lease_is_started_again(tmp_path, monkeypatch):
    program = tmp_path / "pctx-sandbox"
    loopback = Path(__file__).parent / "loopback_broker.py"
    path = tmp_path / "broker.sock"
    # Plays `pctx-sandbox serve`: starts the loopback Broker in the background and returns once its socket accepts.
    program.write_text(
        f"#!/bin/sh\nrm -f {path}\necho start >> {tmp_path}/starts\n"
        f"mode=$(cat {tmp_path}/mode)\n"
        f"{sys.executable} {loopback} {path} $mode </dev/null >/dev/null 2>&1 &\n"
        f"echo $! >> {tmp_path}/pids\necho '' > {tmp_path}/mode\n"
        f"while [ ! -S {path} ]; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    (tmp_path / "mode").write_text("die-at-lease")
    monkeypatch.setenv("PCTX_SANDBOX_BINARY", str(program))
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", str(path))
    monkeypatch.setenv("LOOPBACK_STAYS", "1")
    try:
        assert add(1, 2) == 3
        assert (tmp_path / "starts").read_text().count("start") == 2
    finally:
        _broker.close_all()
        for pid in (tmp_path / "pids").read_text().split():
            subprocess.run(["kill", pid], check=False, capture_output=True)


def test_a_stale_socket_starts_a_broker(tmp_path, monkeypatch):
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(path))
    program = tmp_path / "pctx-sandbox"
    program.write_text("#!/bin/sh\necho 'this host has no user namespaces' >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("PCTX_SANDBOX_BINARY", str(program))
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", str(path))
    with pytest.raises(SandboxStartupError, match="no user namespaces") as caught:
        add(1, 2)
    assert "doctor" in str(caught.value)


def test_a_missing_program_lists_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.setenv("PCTX_SANDBOX_BINARY", str(tmp_path / "missing"))
    with pytest.raises(SandboxStartupError, match="missing"):
        add(1, 2)


def test_a_broker_that_dies_during_a_call_is_told(tmp_path, monkeypatch):
    with start_broker(tmp_path) as path:
        monkeypatch.setenv("PCTX_SANDBOX_SOCKET", path)

        @sandbox
        def waits():
            import os
            import time

            os.kill(os.getppid(), 9)
            time.sleep(0.2)
            os._exit(0)

        with pytest.raises(SandboxError, match="may have run in part"):
            waits()


@pytest.mark.parametrize(("mode", "words"), [("refuse", "no boxes here"), ("queue", "queue_timeout_sec=5")])
def test_what_the_broker_says_is_passed_on(misbehaving, mode, words):
    misbehaving(mode)
    with pytest.raises(SandboxStartupError, match=words):
        add(1, 2)


def test_the_next_lease_is_asked_for_with_the_end_of_this_one(misbehaving):
    path = misbehaving("")
    for n in range(5):
        assert add(n, 1) == n + 1
    time.sleep(0.3)
    assert int(Path(path + ".leases").read_text()) == 6
    assert len(_broker._all) == 1


def test_the_sockets_folder_must_be_private(tmp_path, monkeypatch):
    monkeypatch.delenv("PCTX_SANDBOX_SOCKET", raising=False)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert _program.socket_path() == str(runtime / "pctx-sandbox" / f"broker-{_program.VERSION}.sock")
    runtime.chmod(0o755)
    assert _program.socket_path().startswith(f"/tmp/pctx-sandbox-{os.geteuid()}/")
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(stat.S_IRWXU | stat.S_IRWXO)
    with pytest.raises(SandboxStartupError, match="private"):
        _program.check_folder(str(folder / "broker.sock"))
