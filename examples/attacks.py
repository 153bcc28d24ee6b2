"""Seven things that code nobody has read may try. Each returns what it got hold of, or raises."""

from __future__ import annotations

import os
from typing import Any


def read_key_file(path: str) -> str:
    with open(path) as file:
        return file.read()


def read_environment(name: str) -> str:
    return os.environ[name]


def connect_to_host(port: int) -> str:
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        return connection.recv(64).decode()


def trace_process(pid: int) -> str:
    """Attaches to another process as a debugger does, which lets it read and change all of its memory."""
    import ctypes

    attach, detach = 16, 17
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(attach, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.waitpid(pid, 0)
    libc.ptrace(detach, pid, None, None)
    return f"attached to process {pid}"


def take_memory(size: int) -> str:
    memory = bytearray(size)
    for at in range(0, size, 4096):
        memory[at] = 1
    return f"{len(memory) // 10**6} MB"


def run_for_ever(seconds: float) -> str:
    """Outside nobody stops it, so it stops itself after a while and says so."""
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return f"still running after {seconds:g} s"


class Trap:
    """Unpickled, it runs a command."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.marker,))


def return_code(marker: str) -> Trap:
    return Trap(marker)
