"""Large buffers travel beside the payload, in one sealed memfd: concatenated, each at a multiple of 64 bytes.

Packing is the one copy. The receiver maps the file privately, so it may write to its arrays while the sender, who holds
the same memory, can change nothing: the file is sealed before it is sent.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import mmap
import os
import socket
import stat
from collections.abc import Sequence

from .tags import NotData, expect

ALIGNMENT = 64
# Numbers, since Pythons that are built for old systems, as those that uv installs are, know neither names nor memfds.
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEALS = 0x1 | 0x2 | 0x4 | 0x8  # against more seals, shrinking, growing, writing
MFD_CLOEXEC, MFD_ALLOW_SEALING = 0x1, 0x2
SYS_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
MOST_BUFFERS = 1_000_000

Table = list[tuple[int, int]]  # offset and length of each buffer


def layout(buffers: Sequence[memoryview]) -> tuple[Table, int]:
    """Where each buffer goes, and the size of the whole."""
    table: Table = []
    end = 0
    for buffer in buffers:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        table.append((start, buffer.nbytes))
        end = start + buffer.nbytes
    return table, end


def make_memfd(flags: int) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pctx-buffers", flags)
    import ctypes

    number = SYS_MEMFD_CREATE.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "this Python has no memfd_create")
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(ctypes.c_long(number), ctypes.c_char_p(b"pctx-buffers"), ctypes.c_uint(flags))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "memfd_create failed")
    return fd


def pack(buffers: Sequence[memoryview]) -> tuple[int, Table]:
    """A sealed memfd with the buffers, and its table. The caller closes the descriptor.

    Raises OSError where memfd_create is refused, as in boxes on hosts without a memory cgroup: send them inline then.
    """
    table, _ = layout(buffers)
    fd = make_memfd(MFD_CLOEXEC | MFD_ALLOW_SEALING)
    try:
        for buffer, (offset, _) in zip(buffers, table, strict=True):
            # Written, not mapped: a writable mapping would stand against the seal, and costs twice the time (measured).
            write_all(fd, buffer.cast("B"), offset)
        fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd, table


def write_all(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done:], offset + done)


def expect_table(table: Sequence[tuple[int, int]], size: int) -> None:
    """Every buffer lies inside, and none shares a byte with another: what one owner checked, no other may write to."""
    expect(len(table) <= MOST_BUFFERS, "too many buffers")
    end = 0
    for entry in table:
        expect(len(entry) == 2 and all(type(number) is int for number in entry), "the table of buffers is malformed")
        offset, length = entry
        expect(offset % ALIGNMENT == 0 and offset >= end and length > 0, "the table of buffers is malformed")
        expect(offset + length <= size, "a buffer lies outside of its file")
        end = offset + length


def expect_sealed(fd: int, limit: int) -> int:
    """The size of a memfd that nobody can change any more. Asked before mapping: a file that shrinks is a SIGBUS."""
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError:
        raise NotData("the buffers are not in a memfd") from None
    status = os.fstat(fd)
    expect(stat.S_ISREG(status.st_mode) and seals & SEALS == SEALS, "the buffers' memfd is not sealed")
    expect(status.st_size <= limit, f"the buffers take {status.st_size} bytes, more than the limit of {limit}")
    # A hole costs the sender nothing, and the reader a page for each one that it looks at.
    expect(status.st_blocks * 512 >= status.st_size, "the buffers' memfd has holes")
    return status.st_size


def map_buffers(fd: int, table: Sequence[tuple[int, int]], limit: int) -> list[memoryview]:
    """The buffers of a sealed memfd, writable, without a copy. Inside the box; the host's own is in `_buffers`."""
    size = expect_sealed(fd, limit)
    expect_table(table, size)
    if not table:
        return []
    return slices(memoryview(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE)), table)


def slices(whole: memoryview, table: Sequence[tuple[int, int]]) -> list[memoryview]:
    return [whole[offset : offset + length] for offset, length in table]


def send_inline(channel: socket.socket, buffers: Sequence[memoryview]) -> None:
    """Sends the buffers themselves, in the layout of the memfd; the table of `layout` travels in the frame before."""
    end = 0
    for buffer, (offset, length) in zip(buffers, layout(buffers)[0], strict=True):
        channel.sendall(bytes(offset - end))
        channel.sendall(buffer.cast("B"))
        end = offset + length


class Early:
    """A socket, after what was read from it too early."""

    def __init__(self, early: memoryview | bytes, sock: socket.socket | _socket.socket) -> None:
        self._early = memoryview(early)
        self._sock = sock

    def recv_into(self, target: memoryview, size: int) -> int:
        if not self._early:
            return self._sock.recv_into(target, size)
        taken = self._early[:size]
        target[: len(taken)] = taken
        self._early = self._early[len(taken) :]
        return len(taken)


def receive_inline(channel: socket.socket | Early, table: Sequence[tuple[int, int]], limit: int) -> list[memoryview]:
    """What `send_inline` sent. The table is checked first, and memory is taken only as bytes arrive."""
    expect_table(table, limit)
    if not table:
        return []
    size = sum(table[-1])
    # Anonymous pages are made when they are first written: an announced length costs nothing by itself.
    whole = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    received = 0
    while received < size:
        count = channel.recv_into(whole[received:], min(size - received, 1 << 20))
        expect(count > 0, f"the connection was closed after {received} of {size} bytes of buffers")
        received += count
    return slices(whole, table)
