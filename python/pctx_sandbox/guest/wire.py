"""Frames between the caller and one Worker. Both sides use this module; standard library only.

The Worker's end is hostile: the host never allocates by a length it has only been told, takes at most one descriptor,
and reads exactly one answer. A frame is a 24-byte header, a table of buffers, and a body; the buffers lie in a memfd
that comes with the header, or follow the body where a box may not make one, or where no descriptor gets through.
"""

from __future__ import annotations

import _socket
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = b"PCTX"
VERSION = 1
# magic, version, type, Python minor, flags, body length, buffers in the table, reserved
HEADER = struct.Struct("<4sBBBBQII")
TABLE_ENTRY = struct.Struct("<QQ")
# A call's body begins with the lengths of its options and its function, each kept ready by the caller; what follows are
# the arguments. Without them the function's part holds (function, args, kwargs), so that they share what they share.
PARTS = struct.Struct("<II")
# Set in the first length if the arguments, in the second if the function is a pickle without tagged values.
PLAIN = 1 << 31
FLAG_MEMFD = 1
# Of a call: no descriptor gets through to its caller, nor from there. Its buffers follow the body, and so must those of
# the answer.
FLAG_INLINE = 2
FLAGS_AT = 7
PYTHON_MINOR = sys.version_info[1]

CALL = 1
VALUE = 2
RAISED = 3
REFUSED = 4
OPAQUE = 5
ANSWERS = (VALUE, RAISED, REFUSED, OPAQUE)

# A text answer is an exception with its traceback or a refusal; the guest cuts its own parts well below this.
LONGEST_TEXT = 1 << 20
LONGEST_DATA = 256 << 20
MOST_BUFFERS = 1 << 16
CHUNK = 64 << 10
LARGE_CHUNK = 1 << 20

# Plain integers: the module's own flags are enums, whose `|` takes longer than the system call.
MSG_DONTWAIT = int(getattr(socket, "MSG_DONTWAIT", 0))
MSG_NOSIGNAL = int(getattr(socket, "MSG_NOSIGNAL", 0))
MSG_CMSG_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
# Room for one descriptor; the kernel closes what does not fit, but its padding has room for a second on 64 bits.
_FD = struct.Struct("i")
_RECEIVE_FLAGS = MSG_DONTWAIT | MSG_CMSG_CLOEXEC
_SOL_SOCKET = int(socket.SOL_SOCKET)
_SCM_RIGHTS = int(getattr(socket, "SCM_RIGHTS", 1))
_ANCILLARY_SPACE = socket.CMSG_SPACE(_FD.size) if hasattr(socket, "CMSG_SPACE") else 0

_PLAIN_VALUE = HEADER.pack(MAGIC, VERSION, VALUE, PYTHON_MINOR, 0, 0, 0, 0)[:8]
_REST = struct.Struct("<QII")

Table = tuple[tuple[int, int], ...]


class ProtocolError(ValueError):
    """The other side sent something that is no frame of ours."""


class Frame(NamedTuple):
    kind: int
    minor: int
    body: memoryview
    table: Table
    fd: int
    inline: bool = False
    excess: memoryview | bytes = b""  # of a call: what was read beyond the body


class Header(NamedTuple):
    kind: int
    minor: int
    has_fd: bool
    body: int
    buffers: int
    inline: bool = False


def pack_header(kind: int, body: int, buffers: int = 0, has_fd: bool = False) -> bytes:
    flags = FLAG_MEMFD if has_fd else 0
    return HEADER.pack(MAGIC, VERSION, kind, PYTHON_MINOR, flags, body, buffers, 0)


def pack_table(table: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(TABLE_ENTRY.pack(offset, length) for offset, length in table)


def unpack_header(data: bytes | bytearray) -> Header:
    """The header, with everything checked that does not depend on who reads it."""
    magic, version, kind, minor, flags, body, buffers, reserved = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("a frame does not begin with its mark")
    if version != VERSION:
        raise ProtocolError(f"a frame has version {version}, not {VERSION}")
    if flags not in (0, FLAG_MEMFD, FLAG_INLINE) or reserved:
        raise ProtocolError("a frame uses bits that mean nothing yet")
    if buffers > MOST_BUFFERS:
        raise ProtocolError(f"a frame announces {buffers} buffers, more than {MOST_BUFFERS}")
    return Header(kind, minor, flags == FLAG_MEMFD, body, buffers, flags == FLAG_INLINE)


def unpack_table(data: bytes | bytearray | memoryview) -> Table:
    return tuple(TABLE_ENTRY.iter_unpack(data))


def take_descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors beside a message; the caller owns every one of them now."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
            found += [_FD.unpack_from(data, at)[0] for at in range(0, len(data) - _FD.size + 1, _FD.size)]
    return found


class AnswerReader:
    """Collects one answer of a Worker without blocking. It holds what has arrived, never what was announced."""

    def __init__(self, longest_data: int = LONGEST_DATA) -> None:
        self._longest_data = longest_data
        self._data: bytearray | bytes = bytearray()
        self._size = HEADER.size
        self.header: Header | None = None
        self.fd = -1

    def receive(self, sock: _socket.socket) -> bool:
        """Takes what is there. True once the answer is whole; EOFError if the Worker closed its end before that."""
        if self.header is None:
            if not self._receive_first(sock):
                return False
        elif len(self._data) < self._size:
            # Plain recv: descriptors that come with later bytes are closed by the kernel.
            data = sock.recv(min(self._size - len(self._data), LARGE_CHUNK), MSG_DONTWAIT)
            if not data:
                raise EOFError("the Worker closed its end in the middle of an answer")
            self._data += data
        return len(self._data) >= self._size

    def _receive_first(self, sock: _socket.socket) -> bool:
        data, ancillary, _, _ = sock.recvmsg(CHUNK, _ANCILLARY_SPACE, _RECEIVE_FLAGS)
        if data[:8] == _PLAIN_VALUE and len(data) >= HEADER.size and not self._data and not ancillary:
            body, buffers, reserved = _REST.unpack_from(data, 8)
            if not buffers and not reserved and len(data) == HEADER.size + body:
                # By far the most frequent answer: a small value, whole, without anything beside it.
                self.header = Header(VALUE, PYTHON_MINOR, False, body, 0)
                self._data = data
                self._size = len(data)
                return True
        if ancillary:
            self._keep_one(take_descriptors(ancillary))
        if not data:
            raise EOFError("the Worker closed its end without an answer")
        self._data += data
        if len(self._data) < HEADER.size:
            return False
        header = unpack_header(self._data)
        if header.kind not in ANSWERS:
            raise ProtocolError(f"type {header.kind} is no answer")
        if header.minor != PYTHON_MINOR:
            raise ProtocolError(f"the Worker runs Python 3.{header.minor}, not 3.{PYTHON_MINOR}")
        longest = LONGEST_TEXT if header.kind in (RAISED, REFUSED) else self._longest_data
        if header.body > longest:
            raise ProtocolError(f"an answer announces {header.body} bytes, more than the limit of {longest}")
        if header.inline or header.has_fd != (self.fd >= 0):
            raise ProtocolError("an answer's memfd is missing or was not announced")
        self.header = header
        self._size = HEADER.size + header.buffers * TABLE_ENTRY.size + header.body
        return True

    def _keep_one(self, descriptors: list[int]) -> None:
        for fd in descriptors:
            if self.fd < 0:
                self.fd = fd
            else:
                os.close(fd)

    def answer(self) -> Frame:
        """The whole answer; its descriptor belongs to the caller from here on."""
        header = self.header
        if header is None or len(self._data) < self._size:
            raise ProtocolError("the answer is not whole")
        body = HEADER.size + header.buffers * TABLE_ENTRY.size
        view = memoryview(self._data)
        fd, self.fd = self.fd, -1
        return Frame(header.kind, header.minor, view[body : self._size], unpack_table(view[HEADER.size : body]), fd)

    def excess(self) -> memoryview:
        """What arrived after the body: the beginning of buffers that follow it."""
        return memoryview(self._data)[self._size :]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def send_frame(
    sock: socket.socket, kind: int, body: bytes | memoryview, table: Sequence[tuple[int, int]] = (), fd: int = -1
) -> None:
    """Sends a whole frame, blocking. The descriptor stays the caller's."""
    prefix = pack_header(kind, len(body), len(table), fd >= 0) + pack_table(table)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _FD.pack(fd))] if fd >= 0 else []
    sent = sock.sendmsg([prefix, body], rights, MSG_NOSIGNAL)
    if sent < len(prefix):
        sock.sendall(prefix[sent:], MSG_NOSIGNAL)
        sent = len(prefix)
    if sent < len(prefix) + len(body):
        sock.sendall(memoryview(body)[sent - len(prefix) :], MSG_NOSIGNAL)


def read_call(sock: socket.socket) -> Frame:
    """Reads one call, blocking. The host is trusted, so its lengths are believed; EOFError if there is no call."""
    data, ancillary, _, _ = sock.recvmsg(CHUNK, _ANCILLARY_SPACE, MSG_CMSG_CLOEXEC)
    descriptors = take_descriptors(ancillary)
    received = bytearray(data)
    _fill(sock, received, HEADER.size)
    header = unpack_header(received)
    body = HEADER.size + header.buffers * TABLE_ENTRY.size
    _fill(sock, received, body + header.body)
    view = memoryview(received)
    fd = descriptors[0] if descriptors else -1
    end = body + header.body
    table = unpack_table(view[HEADER.size : body])
    return Frame(header.kind, header.minor, view[body:end], table, fd, header.inline, view[end:])


def _fill(sock: socket.socket, received: bytearray, size: int) -> None:
    while len(received) < size:
        data = sock.recv(min(size - len(received), LARGE_CHUNK))
        if not data:
            raise EOFError("the caller closed its end")
        received += data
