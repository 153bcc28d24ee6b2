"""The host's side of large buffers: maps what a guest sealed, or reads them from the socket where it has no memfd."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import pickle
import socket
import weakref
from collections.abc import Sequence
from typing import Any

from .errors import SerializationError
from .guest import buffers as guest_buffers
from .guest.buffers import Early, Table, expect_sealed, expect_table, pack, send_inline
from .guest.tags import NotData

__all__ = ["DEFAULT_LIMIT", "Early", "Table", "map_buffers", "pack", "receive_inline", "send_inline"]

DEFAULT_LIMIT = 4 << 30


def map_buffers(fd: int, table: Sequence[tuple[int, int]], limit: int = DEFAULT_LIMIT) -> list[memoryview]:
    """The buffers in a guest's memfd, each writable and private to this process; `fd` may be closed afterwards.

    Seals, size and table are checked before the file is mapped. Mapping beats a copy where the data is read (13 against
    58 ms for a sum over 100 MB) and costs the same where all of it is written.
    """
    try:
        size = expect_sealed(fd, limit)
        expect_table(table, size)
    except NotData as error:
        raise SerializationError(f"the box sent buffers that cannot be used: {error}") from None
    return guest_buffers.slices(_map_private(fd, size), table) if table else []


@functools.lru_cache(maxsize=1)
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _map_private(fd: int, size: int) -> memoryview:
    """Like mmap.mmap, which before 3.13 keeps a descriptor per mapping: a thousand held results would use them up."""
    address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes of buffers: {os.strerror(code)}")
    array = (ctypes.c_ubyte * size).from_address(address)
    # Views keep the array alive; the last one to go takes the mapping with it. Not at exit, when views may remain.
    weakref.finalize(array, _libc().munmap, address, size).atexit = False
    return pickle.PickleBuffer(array).raw()


def receive_inline(
    channel: socket.socket | Early, table: Sequence[tuple[int, int]], limit: int = DEFAULT_LIMIT
) -> list[memoryview]:
    """The buffers that a guest sent over the socket, where memfd_create is refused. A timeout of the socket's binds."""
    try:
        return guest_buffers.receive_inline(channel, table, limit)
    except NotData as error:
        raise SerializationError(f"the box sent buffers that cannot be used: {error}") from None
