"""One script, one Worker that waits with the virtualenv's interpreter started: a Zygote per virtualenv.

The Worker says nothing that is believed. What it prints comes through its two pipes; how it ended, the Broker tells,
who was told by the kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
import os
import select
import socket
import time
from typing import Any

from .. import _backend, _broker, _program
from .._broker import BrokerGone, Connection, Lease, LeaseError
from .._output import WAKE_UP
from ..client import ATTEMPTS, GRACE_SECONDS, PAUSE_SECONDS, Canceller, raise_if_cancelled
from ..errors import SandboxStartupError
from ..guest.wire import MSG_DONTWAIT, MSG_NOSIGNAL
from .config import make_policy, output_bytes
from .request import Request
from .result import Ended
from .virtualenv import Mark

CHUNK = 64 << 10
QUEUE_SECONDS = 60.0
# A folder with very many files takes a while to look through.
END_SECONDS = 300.0
_ENDS = select.POLLHUP | select.POLLERR | select.POLLNVAL


class _NotStarted(Exception):
    """The Worker was gone before it had read the script: it is safe to give it to another one."""


def run_warm(request: Request, canceller: Canceller | None, backend: _backend.Backend) -> Ended:
    """Runs the script in a Worker. Raises SandboxStartupError if none can be had."""
    _program.require_linux()
    lease, done_and_lease = _packets(request, backend)
    register = canceller.register if canceller is not None else None
    for attempt in range(ATTEMPTS):
        try:
            connection = _broker.acquire(backend, lease, QUEUE_SECONDS, register)
        except LeaseError as error:
            raise SandboxStartupError(f"no box for the script: {error}") from None
        except BrokerGone as error:
            raise_if_cancelled(canceller)
            if attempt == ATTEMPTS - 1:
                raise SandboxStartupError(f"no box for the script: {error}\nhint: run `pctx-sandbox restart`") from None
            time.sleep(attempt * PAUSE_SECONDS)
            continue
        try:
            if request.folder is not None:
                _lend(connection, request.folder)
            ended = _Conversation(connection, request).run()
            if canceller is not None:
                canceller.release()
            raise_if_cancelled(canceller)
        except _NotStarted:
            connection.discard()
            raise_if_cancelled(canceller)
            continue
        except BrokerGone as error:
            connection.discard()
            raise_if_cancelled(canceller)
            raise SandboxStartupError(
                f"the Broker was lost while the script ran: {error}\nhint: the script may have run; look at its files"
            ) from None
        except BaseException:
            # Ctrl-C arrives here too: the closed connection kills the Worker before anything else happens.
            connection.discard()
            raise_if_cancelled(canceller)
            raise
        _broker.release(backend, connection, lease, done_and_lease, False)
        return ended
    raise SandboxStartupError(
        f"{ATTEMPTS} Workers were gone before they read the script\nhint: run `pctx-sandbox doctor`"
    )


_known_packets: dict[tuple[object, ...], tuple[bytes, bytes]] = {}
MOST_PACKETS = 256


def _packets(request: Request, backend: _backend.Backend) -> tuple[bytes, bytes]:
    """What asks for a Worker, and what ends one and asks for the next. Another virtualenv on disk, another Zygote."""
    marks = request.venv.fingerprint()
    if request.conf.enable_network and request.conf.allow_network is None:
        with contextlib.suppress(OSError):
            status = os.stat("/etc/resolv.conf")  # lent as a file, which others replace
            marks += ((status.st_ino, status.st_mtime_ns),)
    conf, limits = repr(request.conf), tuple(request.limits.values())
    key = (backend.name, request.folder is None, conf, limits, request.preload, marks)
    known = _known_packets.get(key)
    if known is None:
        if len(_known_packets) >= MOST_PACKETS:
            _known_packets.clear()
        known = _known_packets[key] = _make_packets(request, marks, backend)
    return known


def _make_packets(request: Request, marks: tuple[Mark, ...], backend: _backend.Backend) -> tuple[bytes, bytes]:
    policy = make_policy(request.conf, request.venv, request.limits, None, request.folder is None)
    policy["files"]["ro_as_is"] = [backend.sees(entry) for entry in policy["files"]["ro_as_is"]]
    lease = {
        "version": _program.VERSION,
        "python": request.venv.python,
        "scripts": True,
        "folder": request.folder is not None,
        "generation": int.from_bytes(hashlib.sha256(repr(marks).encode()).digest()[:8], "little") >> 1,
        "preload": list(request.preload),
        "policy": policy,
        "queue_timeout_ms": int(QUEUE_SECONDS * 1000),
        "support": [backend.see_support(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))],
    }
    return json.dumps({"lease": lease}).encode(), json.dumps({"done": {}, "lease": lease}).encode()


def _lend(connection: Connection, folder: str) -> None:
    """The Worker waits already: the folder is mounted now, and is no reason for another Zygote."""
    try:
        connection.mount(json.dumps({"mount": {"path": folder}}).encode())
    except LeaseError as error:
        if error.kind == "gone":
            raise _NotStarted from None
        raise SandboxStartupError(f"no box for the script: {error}") from None
    except BrokerGone:
        raise _NotStarted from None


class _Conversation:
    """One script with its Worker: the call, its input, its output, its end."""

    def __init__(self, connection: Connection, request: Request) -> None:
        assert connection.lease is not None
        self.connection = connection
        self.lease: Lease = connection.lease
        self.request = request
        self.left = output_bytes(request.limits)
        self.kept: dict[int, list[bytes]] = {self.lease.out_fd: [], self.lease.err_fd: []}
        self.too_much = False
        place = request.place
        call = marshal.dumps(
            ([place, *request.args], request.code, bool(request.stdin), "/mnt" if request.code is not None else None), 2
        )
        self.rest = memoryview(len(call).to_bytes(8, "little") + call + request.stdin)

    def run(self) -> Ended:
        request, connection = self.request, self.connection
        self._feed(first=True)
        connection.begin()
        milliseconds = 0 if request.timeout is None else max(1, int(request.timeout * 1000))
        connection.start(b'{"start": {"timeout_ms": %d}}' % milliseconds)
        deadline = None if request.timeout is None else time.monotonic() + request.timeout + GRACE_SECONDS
        poll = self.lease.watch(connection.fd)
        if self.rest:
            poll.modify(self.lease.sock_fd, select.POLLOUT)
        else:
            poll.unregister(self.lease.sock_fd)
        open_ends = set(self.kept)
        while open_ends:
            wait = None if deadline is None else max(1, int((deadline - time.monotonic()) * 1000))
            if deadline is not None and time.monotonic() > deadline:
                raise SandboxStartupError("the Broker does not answer\nhint: run `pctx-sandbox restart`")
            if connection.backend.socket:
                wait = min(wait or _backend.LOOK_MILLISECONDS, _backend.LOOK_MILLISECONDS)
            events = poll.poll(wait)
            if not events and connection.backend.socket:
                _backend.look_after(connection.backend)
            for fd, event in events:
                if fd in open_ends:
                    if not self._pump(fd):
                        open_ends.discard(fd)
                        poll.unregister(fd)
                elif fd == self.lease.sock_fd:
                    if event & _ENDS:
                        self.rest = self.rest[:0]  # it reads no more: its own business
                    else:
                        self._feed()
                    if not self.rest:
                        poll.unregister(fd)
                elif fd == connection.fd:
                    # How it ended, or the Broker has gone. What was printed is in the pipes: the box is dead.
                    poll.unregister(fd)
                    connection.wait_for_end(END_SECONDS)
        report = connection.wait_for_end(END_SECONDS)
        if self.too_much:
            message = f"too much output: limit {request.limits['output_mb']} MiB (output_mb)"
            outcome = {"kind": "output_limit", "exit_code": None, "signal": 9, "limit": "output", "message": message}
            report = {**report, "outcome": outcome}
        out, err = (b"".join(self.kept[fd]) for fd in (self.lease.out_fd, self.lease.err_fd))
        _count(report, len(out), len(err), self.too_much)
        return Ended(report, out, err, self.too_much)

    def _feed(self, first: bool = False) -> None:
        try:
            while self.rest:
                self.rest = self.rest[self.lease.sock.send(self.rest[: 1 << 20], MSG_DONTWAIT | MSG_NOSIGNAL) :]
        except BlockingIOError:
            return
        except OSError:
            # Without the whole call nothing has run. With it the script may have, and has closed its input.
            if first and len(self.rest) > len(self.request.stdin):
                raise _NotStarted from None
            self.rest = self.rest[:0]
        with contextlib.suppress(OSError):
            self.lease.sock.shutdown(socket.SHUT_WR)  # the end of its input

    def _pump(self, fd: int) -> bool:
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            self._charge(WAKE_UP)
            return True
        if not chunk:
            return False
        self.kept[fd].append(chunk[: self.left])
        self._charge(len(chunk))
        return True

    def _charge(self, size: int) -> None:
        if size > self.left and not self.too_much:
            self.too_much = True
            self.connection.send(_broker.DONE)  # the Broker kills it; what it said until here is all
        self.left = max(0, self.left - size)


def _count(report: dict[str, Any], out: int, err: int, too_much: bool) -> None:
    """What went through our own hands, the Broker cannot know."""
    receipt = report.get("receipt")
    if isinstance(receipt, dict):
        receipt["truncated"] = too_much
        if isinstance(receipt.get("usage"), dict):
            receipt["usage"].update(stdout_bytes=out, stderr_bytes=err)
