"""One call: takes a lease, sends the call, passes output on while it runs, and reads the answer.

A warm call is one round trip with the Worker. `start` goes to the Broker after the call went to the Worker, so that
the Worker is the first to wake up; a call that does not fit into the socket at once is announced before the rest.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from . import _backend, _broker, _raised
from ._backend import Backend
from ._broker import BrokerGone, Connection, Lease, LeaseError
from ._output import Output, OutputLimit
from ._settings import MIB, Settings
from .errors import SandboxError, SandboxStartupError
from .guest import wire

if TYPE_CHECKING:
    from ._lent import LentFolder

# How much longer than the function's own limit we wait for the Broker to enforce it.
GRACE_SECONDS = 15.0
# The function's time limit counts from the Broker's `start`, which is sent this much after the call at the latest.
ANNOUNCE_MILLISECONDS = 2
# A Broker that leaves takes its kept leases along, and the one that starts may find its socket still warm.
ATTEMPTS = 3
PAUSE_SECONDS = 0.1
_SEND_FLAGS = wire.MSG_DONTWAIT | wire.MSG_NOSIGNAL


class _NotStarted(Exception):
    """The Worker was gone before it had read the call: it is safe to send it to another one."""


@dataclasses.dataclass(frozen=True)
class LeaseSpec:
    """What is asked of the Broker, as the packets that ask for it."""

    backend: Backend
    lease: bytes
    done_and_lease: bytes
    queue_seconds: float
    lent: LentFolder | None = None  # a folder that travels as a copy


@dataclasses.dataclass(slots=True)
class Call:
    """The bytes of one call, and what belongs to them on this side."""

    name: str
    settings: Settings
    parts: list[bytes]
    fd: int = -1


class Killable(Protocol):
    """A process of ours."""

    def kill(self) -> None: ...


class Canceller:
    """Stops a call from another thread, whatever it waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._target: Connection | Killable | None = None
        self.cancelled = False

    def register(self, target: Connection | Killable) -> None:
        with self._lock:
            self._target = target
            if self.cancelled:
                self._stop()

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            self._stop()

    def release(self) -> None:
        """From here on the connection may serve another call: nothing of this one may stop it."""
        with self._lock:
            self._target = None

    def _stop(self) -> None:
        if isinstance(self._target, Connection):
            self._target.interrupt()
        elif self._target is not None:
            self._target.kill()


def execute(
    spec: LeaseSpec, call: Call, output: Output, want_end: bool = False, canceller: Canceller | None = None
) -> tuple[wire.Frame, list[memoryview], dict[str, Any]]:
    """Runs the call in a box of its own: the answer, its large buffers and, if wanted, how the Worker ended."""
    register = canceller.register if canceller is not None else None
    for attempt in range(ATTEMPTS):
        try:
            connection = _broker.acquire(spec.backend, spec.lease, spec.queue_seconds, register)
        except LeaseError as error:
            raise _lease_error(error, call) from None
        except BrokerGone as error:
            raise_if_cancelled(canceller)
            if attempt == ATTEMPTS - 1:
                raise SandboxStartupError(
                    f"no Worker for {call.name}(): {error}\nhint: run `pctx-sandbox restart`"
                ) from None
            time.sleep(attempt * PAUSE_SECONDS)
            continue
        try:
            answer, buffers = _converse(connection, call, output, want_end)
            if canceller is not None:
                canceller.release()
            raise_if_cancelled(canceller)
            return answer, buffers, _broker.release(spec.backend, connection, spec.lease, spec.done_and_lease, want_end)
        except _NotStarted:
            connection.discard()
            raise_if_cancelled(canceller)
        except BaseException:
            # Ctrl-C arrives here too: the closed connection kills the Worker before anything else happens.
            connection.discard()
            raise_if_cancelled(canceller)
            raise
    raise SandboxStartupError(
        f"{ATTEMPTS} Workers for {call.name}() were gone before they read the call\nhint: run `pctx-sandbox doctor`"
    )


def raise_if_cancelled(canceller: Canceller | None) -> None:
    if canceller is not None and canceller.cancelled:
        raise concurrent.futures.CancelledError


def _lease_error(error: LeaseError, call: Call) -> SandboxError:
    if error.kind == "queue":
        return SandboxStartupError(
            f"{call.name}() waited for a box longer than queue_timeout_sec={call.settings.queue_timeout_sec}: {error}"
        )
    return SandboxStartupError(f"no box for {call.name}(): {error}")


def _converse(
    connection: Connection, call: Call, output: Output, want_end: bool
) -> tuple[wire.Frame, list[memoryview]]:
    lease = connection.lease
    assert lease is not None
    rest = _send(lease, call)
    connection.begin()
    if want_end:
        _announce(connection, call, unread=bool(rest))  # a receipt tells the time of the whole call
    reader = wire.AnswerReader()
    try:
        poll = lease.watch(connection.fd)
        quiet = _run(connection, lease, poll, call, output, reader, rest)
        answer = reader.answer()
        buffers = _buffers(lease, call, answer, reader) if answer.table or answer.fd >= 0 else []
        if not quiet:
            _drain(lease, poll, output)
    except wire.ProtocolError as error:
        raise _raised.malformed(str(error)) from None
    except OutputLimit:
        raise _raised.too_much_output(call.name, call.settings) from None
    finally:
        reader.close()
    return answer, buffers


def _announce(connection: Connection, call: Call, unread: bool) -> None:
    try:
        connection.start()
    except BrokerGone as error:
        if unread or _never_read(connection.lease):
            raise _NotStarted from None
        raise _lost(call, error) from None


def _never_read(lease: Lease | None) -> bool:
    """A Worker dies with its Broker, a moment later; the kernel says "reset" if it has not read the call by then."""
    if lease is None:
        return False
    poll = select.poll()
    poll.register(lease.sock_fd, select.POLLIN)
    poll.poll(5000)
    try:
        lease.sock.recv(1, wire.MSG_DONTWAIT)
    except ConnectionResetError:
        return True
    except OSError:
        pass
    return False


def _send(lease: Lease, call: Call) -> list[memoryview]:
    """Sends as much of the call as goes without waiting; returns the rest."""
    if lease.carried:
        return _send_carried(lease, call)
    rights: list[tuple[int, int, bytes]] = []
    if call.fd >= 0:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", call.fd))]
    try:
        sent = lease.sock.sendmsg(call.parts, rights, _SEND_FLAGS)
    except OSError:
        raise _NotStarted from None
    return [] if sent == sum(map(len, call.parts)) else _after(map(memoryview, call.parts), sent)


def _send_carried(lease: Lease, call: Call) -> list[memoryview]:
    """Where no descriptor gets through, large buffers follow the body, and the Worker is asked to do the same."""
    head = bytearray(call.parts[0])
    head[wire.FLAGS_AT] = wire.FLAG_INLINE
    parts = [memoryview(head), *(memoryview(part) for part in call.parts[1:])]
    if call.fd >= 0 and (size := os.fstat(call.fd).st_size):
        parts.append(memoryview(mmap.mmap(call.fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)))
    try:
        sent = lease.sock.sendmsg(parts, [], _SEND_FLAGS)
    except OSError:
        raise _NotStarted from None
    return _after(parts, sent)


def _after(parts: Iterable[memoryview], sent: int) -> list[memoryview]:
    rest = []
    for part in parts:
        if sent < len(part):
            rest.append(part[sent:])
        sent = max(0, sent - len(part))
    return rest


def _run(
    connection: Connection,
    lease: Lease,
    poll: select.poll,
    call: Call,
    output: Output,
    reader: wire.AnswerReader,
    rest: list[memoryview],
) -> bool:
    """Returns once the answer is whole: True if nothing was printed that has not been passed on."""
    names = {lease.out_fd: "stdout", lease.err_fd: "stderr"}
    if rest:
        poll.modify(lease.sock_fd, select.POLLIN | select.POLLOUT)
    wait = call.settings.timeout_sec + GRACE_SECONDS
    began = time.monotonic()
    deadline, announced_by = began + wait, began + ANNOUNCE_MILLISECONDS / 1000
    while True:
        # Most calls are over before their start is worth waking the Broker for; the others are announced a bit late.
        patience = int(wait * 1000) + 1 if connection.started else ANNOUNCE_MILLISECONDS
        if connection.backend.socket:
            patience = min(patience, _backend.LOOK_MILLISECONDS)
        events = poll.poll(patience)
        if not events and not connection.started:
            _announce(connection, call, unread=bool(rest))
            continue
        if not events and connection.backend.socket:
            _backend.look_after(connection.backend)
        broker_spoke = worker_spoke = False
        for fd, event in events:
            if fd in names:
                if not output.pump(names[fd], fd):
                    poll.unregister(fd)
            elif fd == lease.sock_fd:
                if rest and event & select.POLLOUT:
                    rest = _send_more(lease, poll, rest)
                worker_spoke = bool(event & (select.POLLIN | select.POLLHUP | select.POLLERR))
            else:
                broker_spoke = True
        if worker_spoke and _receive(connection, lease, poll, call, output, reader):
            # The Worker flushes before it answers, so its output is older and was seen by the same poll.
            return len(events) == 1
        if broker_spoke and not worker_spoke:
            # It is dead by the Broker's word; what it said before may still be on its way through the poll.
            if _receive(connection, lease, poll, call, output, reader):
                return False
            raise _death(connection, lease, poll, call, output, unread=bool(rest))
        now = time.monotonic()
        # A function that prints without a pause must not keep its own time limit from being counted.
        if now >= announced_by and not connection.started:
            _announce(connection, call, unread=bool(rest))
        wait = deadline - now
        if wait <= 0:
            raise _raised.timed_out(call.name, call.settings)


def _send_more(lease: Lease, poll: select.poll, rest: list[memoryview]) -> list[memoryview]:
    try:
        sent = lease.sock.sendmsg(rest[:16], [], _SEND_FLAGS)
    except BlockingIOError:
        return rest
    except OSError:
        return rest  # it is gone; the reading side learns how
    rest = _after(rest, sent)
    if not rest:
        poll.modify(lease.sock_fd, select.POLLIN)
    return rest


def _receive(
    connection: Connection, lease: Lease, poll: select.poll, call: Call, output: Output, reader: wire.AnswerReader
) -> bool:
    try:
        while not reader.receive(lease.sock):
            if reader.header is None:
                return False
        return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        # The kernel says "reset" instead of "end" if something we sent was never read: the function has not started.
        raise _death(connection, lease, poll, call, output, unread=True) from None
    except EOFError:
        raise _death(connection, lease, poll, call, output, unread=False) from None


def _death(
    connection: Connection, lease: Lease, poll: select.poll, call: Call, output: Output, unread: bool
) -> Exception:
    """Why there is no answer: a limit, a crash, an exit, or a Worker that was taken away before it began."""
    try:
        if lease.carried:
            _follow(connection, lease, poll, output)
        _drain(lease, poll, output)
        if not connection.started:
            connection.start()  # late, but it is owed an answer
        end = connection.wait_for_end()
    except OutputLimit:
        return _raised.too_much_output(call.name, call.settings)
    except LeaseError:
        return _NotStarted()
    except BrokerGone as error:
        return _NotStarted() if unread or _never_read(lease) else _lost(call, error)
    outcome = end.get("outcome")
    kind = outcome.get("kind") if isinstance(outcome, dict) else None
    if kind not in ("timed_out", "out_of_memory") and (unread or (kind == "signaled" and _never_read(lease))):
        return _NotStarted()
    return _raised.ended(end, call.name, call.settings)


def _follow(connection: Connection, lease: Lease, poll: select.poll, output: Output) -> None:
    """What the Worker printed is still on its way, and the Broker's word comes after all of it."""
    if not connection.started:
        connection.start()
    streams = {lease.out_fd: "stdout", lease.err_fd: "stderr"}
    with contextlib.suppress(KeyError):
        poll.unregister(lease.sock_fd)  # it stays readable: it has ended
    deadline = time.monotonic() + _broker.PATIENCE
    while (left := deadline - time.monotonic()) > 0:
        ready = poll.poll(int(left * 1000) + 1)
        for fd, _ in ready:
            if fd in streams and not output.pump(streams[fd], fd):
                poll.unregister(fd)
        if connection.fd in (fd for fd, _ in ready):
            return


def _lost(call: Call, error: Exception) -> SandboxError:
    return SandboxError(
        f"the Broker left while {call.name}() was running ({error}); the function may have run in part\n"
        "hint: call it again; the next call starts a new Broker"
    )


def _drain(lease: Lease, poll: select.poll, output: Output) -> None:
    """Passes on what was printed before the answer: the Worker flushed it first, so it is all there."""
    streams = {lease.out_fd: "stdout", lease.err_fd: "stderr"}
    while streams:
        ready = [(fd, event) for fd, event in poll.poll(0) if fd in streams]
        if not ready:
            break
        for fd, _ in ready:
            if not output.pump(streams[fd], fd):
                poll.unregister(fd)
                del streams[fd]
    output.finish()


def _buffers(lease: Lease, call: Call, answer: wire.Frame, reader: wire.AnswerReader) -> list[memoryview]:
    """The large buffers of an answer, from its memfd or, where the box may not make one, from the socket."""
    from ._buffers import Early, map_buffers, receive_inline

    limit = call.settings.memory_mb * MIB
    if answer.fd >= 0:
        try:
            return map_buffers(answer.fd, answer.table, limit)
        finally:
            os.close(answer.fd)
    lease.sock.settimeout(call.settings.timeout_sec + GRACE_SECONDS)
    try:
        return receive_inline(Early(reader.excess(), lease.sock), answer.table, limit)
    except OSError as error:
        raise _raised.malformed(f"its buffers did not arrive: {error}") from None
