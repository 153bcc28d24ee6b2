"""Buffers beside the payload: what is sealed is used, anything else is refused before it is mapped."""

import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pctx_sandbox._buffers import map_buffers, pack, receive_inline, send_inline
from pctx_sandbox.errors import SerializationError
from pctx_sandbox.guest import buffers as guest

PARTS = [memoryview(bytes([index]) * size) for index, size in enumerate((100_000, 1, 65, 70_000))]
MAPS = Path("/proc/self/maps")
PAGE = os.sysconf("SC_PAGESIZE")


def memfd(content=b"x" * PAGE, seals=guest.SEALS, size=None):
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if size is not None:
        os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize("mapping", [map_buffers, guest.map_buffers])
def test_buffers_arrive_writable_and_aligned(mapping):
    fd, table = pack(PARTS)
    views = mapping(fd, table, 1 << 30)
    assert [bytes(view) for view in views] == [bytes(part) for part in PARTS]
    assert all(offset % 64 == 0 for offset, _ in table)
    views[0][:3] = b"abc"
    assert bytes(map_buffers(fd, table)[0][:3]) == b"\0\0\0"  # private: nobody else sees the write
    os.close(fd)
    assert bytes(views[0][:4]) == b"abc\0"


def test_the_sender_cannot_change_what_was_sealed():
    fd, _ = pack(PARTS)
    for change in (lambda: os.pwrite(fd, b"y", 0), lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 1 << 20)):
        with pytest.raises(PermissionError):
            change()
    os.close(fd)


def test_a_mapping_holds_no_descriptor_and_goes_with_its_last_view():
    fd, table = pack(PARTS)
    before = len(os.listdir("/proc/self/fd"))
    held = [map_buffers(fd, table) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    maps = MAPS.read_text().count("pctx-buffers")
    assert maps >= 1
    last = held[0][2]
    held.clear()
    gc.collect()
    assert MAPS.read_text().count("pctx-buffers") == 1 and last[0] == 2
    del last
    gc.collect()
    assert "pctx-buffers" not in MAPS.read_text()
    os.close(fd)


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SEAL])
def test_each_seal_is_needed(missing):
    fd = memfd()
    assert bytes(map_buffers(fd, [(0, 5)])[0]) == b"xxxxx"
    os.close(fd)
    fd = memfd(seals=guest.SEALS & ~missing)
    with pytest.raises(SerializationError, match="not sealed"):
        map_buffers(fd, [(0, 5)])
    os.close(fd)


SHRINK = """
import mmap, os
fd = os.memfd_create("x")
os.ftruncate(fd, 1 << 16)
view = mmap.mmap(fd, 1 << 16, flags=mmap.MAP_PRIVATE)
os.ftruncate(fd, 0)
print(view[5000])
"""


def test_a_memfd_that_could_shrink_is_refused():
    done = subprocess.run([sys.executable, "-c", SHRINK], capture_output=True)
    assert done.returncode == -signal.SIGBUS  # the control: this is what it would do to the host
    fd = memfd(seals=0)
    with pytest.raises(SerializationError, match="not sealed"):
        map_buffers(fd, [(0, 5)])
    os.close(fd)


def test_what_is_no_memfd_is_refused(tmp_path):
    plain = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    ends = os.pipe()
    pair = socket.socketpair()
    for fd in (plain, ends[0], pair[0].fileno(), os.open("/dev/zero", os.O_RDONLY)):
        with pytest.raises(SerializationError, match="memfd"):
            map_buffers(fd, [(0, 5)])
    for end in pair:
        end.close()


def test_a_sparse_memfd_is_refused():
    """It would cost the guest nothing, and the caller a page for every hole that is read."""
    fd = memfd(size=1 << 30)
    with pytest.raises(SerializationError, match="holes"):
        map_buffers(fd, [(0, 1 << 30)])
    os.close(fd)


def test_a_memfd_over_the_limit_is_refused():
    fd = memfd()
    assert map_buffers(fd, [(0, 5)], limit=PAGE)
    with pytest.raises(SerializationError, match="more than the limit"):
        map_buffers(fd, [(0, 5)], limit=PAGE - 1)
    os.close(fd)


@pytest.mark.parametrize(
    "table",
    [
        [(0, PAGE + 1)],
        [(PAGE, 1)],
        [(64, PAGE)],
        [(-64, 64)],
        [(0, -1)],
        [(0, 0)],
        [(1, 5)],
        [(0, 128), (64, 128)],
        [(128, 64), (0, 64)],
        [(0, 64), (0, 64)],
        [(0, 2**63)],
        [(2**64, 2**64)],
        [(0.0, 5)],
        [(0,)],
        [(0, 5, 5)],
        [("0", 5)],
    ],
)
def test_a_table_that_does_not_fit_is_refused(table):
    fd = memfd()
    assert len(map_buffers(fd, [(0, 64), (64, 64)])) == 2
    with pytest.raises(SerializationError):
        map_buffers(fd, table)
    os.close(fd)


def test_buffers_travel_over_a_socket_where_memfds_are_refused():
    ours, theirs = socket.socketpair()
    table, size = guest.layout(PARTS)
    sender = threading.Thread(target=send_inline, args=(theirs, PARTS))
    sender.start()
    views = receive_inline(ours, table, size)
    sender.join()
    assert [bytes(view) for view in views] == [bytes(part) for part in PARTS]
    views[3][0] = 9
    with pytest.raises(SerializationError, match="outside"):
        receive_inline(ours, table, size - 1)
    ours.close()
    theirs.close()


def test_a_sender_that_stops_half_way_is_noticed():
    ours, theirs = socket.socketpair()
    theirs.sendall(b"x" * 10)
    theirs.close()
    with pytest.raises(SerializationError, match="after 10 of 100 bytes"):
        receive_inline(ours, [(0, 100)])
    ours.close()


def test_a_python_without_memfds_packs_all_the_same(monkeypatch):
    """As those that uv installs: built for old systems, they lack os.memfd_create and the names of its seals."""
    monkeypatch.delattr(os, "memfd_create")
    fd, table = guest.pack([memoryview(b"x" * 100)])
    try:
        assert guest.expect_sealed(fd, 1000) == 100 and table == [(0, 100)]
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
