"""Connections to the Broker. Each carries one lease at a time; closing one kills its Worker, whatever it does.

After a call the next lease is asked for in the same packet that ends this one, so that the next call finds a Worker
waiting. What is shared between threads is only the two lists of connections that nobody uses.
"""

from __future__ import annotations

import _socket
import atexit
import contextlib
import json
import logging
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from . import _backend
from ._backend import Backend
from .errors import SandboxError
from .guest.wire import MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, take_descriptors

log = logging.getLogger("pctx_sandbox")

LARGEST_PACKET = 128 << 10
LEASE_DESCRIPTORS = 3
_THREE = struct.Struct("3i")
_LEASE_SPACE = socket.CMSG_SPACE(4 * LEASE_DESCRIPTORS) if hasattr(socket, "CMSG_SPACE") else 0
MOST_FREE = 16
# How long the Broker itself may take to answer before it counts as hanging.
PATIENCE = 30.0
_RECEIVE_FLAGS = MSG_DONTWAIT | MSG_CMSG_CLOEXEC
_AF_UNIX = int(getattr(socket, "AF_UNIX", 0))
_SOCK_STREAM = int(socket.SOCK_STREAM)
_MSG_TRUNC = int(getattr(socket, "MSG_TRUNC", 0))
START = b'{"start": {}}'
DONE = b'{"done": {}}'
LEASED = b'{"leased": {}}'
LEASED_CARRIED = b'{"leased": {"carried": true}}'


class BrokerGone(ConnectionError):
    """The Broker closed the connection or does not answer."""


class LeaseError(SandboxError):
    """The Broker said no; `kind` is its own word for why."""

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.kind = kind


class Lease:
    """One waiting Worker: its socket and the reading ends of its output. `carried`: no descriptor gets to it."""

    __slots__ = ("carried", "err_fd", "out_fd", "sock", "sock_fd")

    def __init__(self, descriptors: Sequence[int], carried: bool = False) -> None:
        self.sock_fd, self.out_fd, self.err_fd = descriptors
        self.carried = carried
        # The C type, told what it is: the class around it takes longer than the system calls that follow.
        self.sock = _socket.socket(_AF_UNIX, _SOCK_STREAM, 0, self.sock_fd)

    def watch(self, broker: int) -> select.poll:
        """All four ends of a call. The Worker's socket is looked at first: what it printed before is seen with it."""
        poll = select.poll()
        poll.register(self.sock_fd, select.POLLIN)
        poll.register(self.out_fd, select.POLLIN)
        poll.register(self.err_fd, select.POLLIN)
        poll.register(broker, select.POLLIN)
        return poll

    def waits(self, broker: int) -> bool:
        """True if the Worker is alive and, as it should, has said nothing yet, and the Broker neither."""
        return not self.watch(broker).poll(0)

    def __del__(self) -> None:
        # An interrupt may strike between two lines of ours; the descriptors go with the object then.
        self.close()

    def close(self) -> None:
        if self.out_fd >= 0:
            self.sock.close()
            os.close(self.out_fd)
            os.close(self.err_fd)
            self.out_fd = self.err_fd = -1


class Connection:
    """One connection: what it still has to hear, and the lease it holds."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.sock = _backend.connect(backend)
        self.lease: Lease | None = None
        self.ended: dict[str, Any] | None = None
        self.fd = self.sock.fileno()
        self._owed = 0
        self._mounted = False
        self.started = False
        self._buffer = bytearray(LARGEST_PACKET)
        self._buffers = [self._buffer]
        self._used: Lease | None = None
        with _lock:
            _all[id(self)] = self

    def send(self, packet: bytes) -> None:
        try:
            self.sock.send(packet, MSG_NOSIGNAL)
        except OSError as error:
            raise BrokerGone(str(error)) from None

    def begin(self) -> None:
        """The call is with its Worker."""
        self.started = False
        self.ended = None
        # Closing takes a while, and from here on somebody else is at work.
        self.tidy()

    def start(self, packet: bytes = START) -> None:
        """Tells the Broker, which then owes us how the Worker ends."""
        self.started = True
        self._owed += 1
        self.send(packet)

    def mount(self, packet: bytes, seconds: float = PATIENCE) -> None:
        """Lends the Worker a folder; LeaseError if it cannot be lent."""
        self._mounted = False
        self.send(packet)
        deadline = time.monotonic() + seconds
        while not self._mounted:
            if not self._receive(True):
                self._wait(deadline - time.monotonic())

    def finish(self, packet: bytes) -> None:
        """Ends this lease; `packet` may ask for the next one."""
        self.send(packet)
        self.tidy()
        self._used, self.lease = self.lease, None

    def tidy(self) -> None:
        """Closes what is left of the lease before."""
        if self._used is not None:
            self._used.close()
            self._used = None

    def wait_for_lease(self, seconds: float) -> Lease:
        """The lease that was asked for. Usually it has arrived long ago."""
        deadline = 0.0
        while self.lease is None:
            if self._receive(False):
                continue
            now = time.monotonic()
            deadline = deadline or now + seconds
            self._wait(deadline - now)
        return self.lease

    def wait_for_end(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """How the Worker ended: outcome and receipt."""
        deadline = time.monotonic() + seconds
        while self._owed:
            if not self._receive(True):
                self._wait(deadline - time.monotonic())
        return self.ended or {}

    def _wait(self, seconds: float) -> None:
        waiting = select.poll()
        waiting.register(self.fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        while seconds > 0:
            millis = max(1, int(seconds * 1000))
            if waiting.poll(min(millis, _backend.LOOK_MILLISECONDS) if self.backend.socket else millis):
                return
            if self.backend.socket:
                _backend.look_after(self.backend)
            seconds = deadline - time.monotonic()
        raise BrokerGone("the Broker does not answer")

    def _receive(self, want_end: bool) -> bool:
        """Takes one message; False if there is none yet."""
        try:
            size, ancillary, flags, _ = self.sock.recvmsg_into(self._buffers, _LEASE_SPACE, _RECEIVE_FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            raise BrokerGone(str(error)) from None
        if size == 0:
            raise BrokerGone("the Broker closed the connection")
        if ancillary and self._buffer.startswith(b'{"ended"'):
            self._take_report(take_descriptors(ancillary))
            return True
        if ancillary:
            data = ancillary[0][2]
            carried = size != len(LEASED) and self._buffer.startswith(LEASED_CARRIED)
            self._take_lease(_THREE.unpack(data) if len(data) == _THREE.size else take_descriptors(ancillary), carried)
            return True
        if flags & _MSG_TRUNC:
            raise BrokerGone("the Broker sent a packet that is too large")
        # Most ends are read by nobody: the value was all the caller wanted.
        if not want_end and self._buffer.startswith(b'{"ended"'):
            self._owed = max(0, self._owed - 1)
            return True
        self._take_message(bytes(self._buffer[:size]))
        return True

    def _take_lease(self, descriptors: Sequence[int], carried: bool) -> None:
        if len(descriptors) != LEASE_DESCRIPTORS or self.lease is not None:
            for fd in descriptors:
                os.close(fd)
            raise BrokerGone("the Broker sent a lease that was not asked for, or half of one")
        self.lease = Lease(descriptors, carried)

    def _take_report(self, descriptors: Sequence[int]) -> None:
        """How a Worker ended, where the list of what it changed is too long for a packet."""
        try:
            if len(descriptors) != 1:
                raise BrokerGone("the Broker sent a report that is none")
            text = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
        finally:
            for fd in descriptors:
                os.close(fd)
        self._take_message(text)

    def _take_message(self, packet: bytes) -> None:
        try:
            message = json.loads(packet)
        except ValueError:
            raise BrokerGone("the Broker sent something that is no message") from None
        if "ended" in message:
            self._owed = max(0, self._owed - 1)
            self.ended = message["ended"]
        elif "error" in message:
            error = message["error"]
            raise LeaseError(str(error.get("kind", "")), str(error.get("message", "")), str(error.get("hint") or ""))
        elif "mounted" in message:
            self._mounted = True
        elif "leased" in message:
            raise LeaseError(
                "unavailable",
                "the way to the Broker drops the descriptors of a Worker",
                "reach it through `pctx-sandbox carry`, which needs none",
            )
        elif "queued" in message:
            log.info("waiting for a Worker, %s calls ahead", message["queued"].get("ahead"))

    def __del__(self) -> None:
        if hasattr(self, "sock"):
            self.forget()

    def interrupt(self) -> None:
        """Stops the call from another thread: the Worker is killed and whoever waits on this connection wakes up."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def discard(self) -> None:
        """Closes everything; a running Worker is killed at once, even if a forked process holds a copy."""
        self.interrupt()
        self.forget()

    def forget(self) -> None:
        """Closes this process's descriptors only: after a fork the connection is the parent's."""
        _all.pop(id(self), None)
        self.tidy()
        if self.lease is not None:
            self.lease.close()
            self.lease = None
        self.sock.close()


_lock = threading.Lock()
_all: weakref.WeakValueDictionary[int, Connection] = weakref.WeakValueDictionary()
_prefetched: dict[tuple[str, bytes], Connection] = {}  # by backend and lease
_free: dict[str, list[Connection]] = {}


def acquire(backend: Backend, packet: bytes, queue_seconds: float, register: Any = None) -> Connection:
    """A connection with a waiting Worker for this lease packet. `register` learns of it before anything blocks."""
    connection = _prefetched.pop((backend.name, packet), None)  # atomic: no lock on the way of a warm call
    if connection is not None:
        ready = _prepare(connection, None, queue_seconds, register)
        if ready is not None:
            return ready
    with _lock:
        free = _free.get(backend.name)
        connection = free.pop() if free else None
    if connection is not None:
        ready = _prepare(connection, packet, queue_seconds, register)
        if ready is not None:
            return ready
    connection = Connection(backend)
    try:
        if register is not None:
            register(connection)
        connection.send(packet)
        if not connection.wait_for_lease(queue_seconds + PATIENCE).waits(connection.fd):
            raise BrokerGone("the Worker ended, or said something before it was asked")
    except BaseException:
        connection.discard()
        raise
    return connection


def _prepare(connection: Connection, packet: bytes | None, seconds: float, register: Any) -> Connection | None:
    """The kept connection with a live lease; None if the Broker left or took the lease back meanwhile."""
    try:
        if register is not None:
            register(connection)
        if packet is not None:
            connection.send(packet)
        lease = connection.wait_for_lease(seconds + PATIENCE)
        # A lease that was taken back meanwhile is noticed when the call is sent: its other end is closed.
        if packet is None or lease.waits(connection.fd):
            return connection
    except (BrokerGone, LeaseError):
        pass  # what was said about an earlier wish need not be true any more: ask afresh
    except BaseException:
        connection.discard()
        raise
    connection.discard()
    return None


def release(
    backend: Backend, connection: Connection, lease: bytes, done_and_lease: bytes, want_end: bool
) -> dict[str, Any]:
    """Ends a call's lease and keeps the connection: one with the next lease for this key, a few without.

    Returns how the Worker ended if wanted; the call has its answer, so a Broker that leaves now costs only this.
    """
    key = (backend.name, lease)
    asks = key not in _prefetched
    end: dict[str, Any] = {}
    try:
        connection.finish(done_and_lease if asks else DONE)
        if want_end:
            end = connection.wait_for_end()
    except (BrokerGone, LeaseError):
        connection.discard()
        return connection.ended or {}
    with _lock:
        if asks and key not in _prefetched:
            _prefetched[key] = connection
            return end
        free = _free.setdefault(backend.name, [])
        if not asks and len(free) < MOST_FREE:
            connection.tidy()
            free.append(connection)
            return end
    connection.discard()
    return end


def close_all() -> None:
    """Lets go of every connection that nobody uses, and with them of the Workers that wait."""
    with _lock:
        connections = [*_prefetched.values(), *(each for free in _free.values() for each in free)]
        _prefetched.clear()
        _free.clear()
    for connection in connections:
        connection.discard()


def _after_fork() -> None:
    """The child starts with nothing: the connections are its parent's, and the lock may have been held."""
    global _lock
    _lock = threading.Lock()
    for connection in list(_all.values()):
        connection.forget()
    _all.clear()
    _prefetched.clear()
    _free.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_all)
