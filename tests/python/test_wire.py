"""Frames: what a well-behaved Worker sends is read whole, and what a hostile one sends costs nothing."""

import os
import socket
import struct
import sys

import pytest
from pctx_sandbox.guest import wire


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def receive(sock, reader=None):
    reader = reader or wire.AnswerReader()
    while not reader.receive(sock):
        pass
    return reader.answer()


def header(**changes):
    fields = {
        "magic": b"PCTX",
        "version": 1,
        "kind": wire.VALUE,
        "minor": sys.version_info[1],
        "flags": 0,
        "body": 4,
        "buffers": 0,
        "reserved": 0,
    }
    fields.update(changes)
    return struct.pack("<4sBBBBQII", *fields.values())


def test_a_frame_arrives_as_it_was_sent(pair):
    ours, theirs = pair
    wire.send_frame(theirs, wire.VALUE, b"body", [(0, 10), (64, 3)])
    frame = receive(ours)
    assert (frame.kind, bytes(frame.body), frame.table, frame.fd) == (wire.VALUE, b"body", ((0, 10), (64, 3)), -1)


@pytest.mark.parametrize("first", range(1, 28))
def test_a_frame_in_pieces_arrives_whole(pair, first):
    ours, theirs = pair
    reader = wire.AnswerReader()
    data = header() + b"body"
    for piece in (data[:first], *(data[at : at + 1] for at in range(first, len(data)))):
        theirs.send(piece)
        done = reader.receive(ours)
    assert done
    assert bytes(reader.answer().body) == b"body"


def test_a_descriptor_comes_with_the_header_and_belongs_to_the_reader(pair):
    ours, theirs = pair
    fd = os.memfd_create("test")
    wire.send_frame(theirs, wire.VALUE, b"", [(0, 1)], fd)
    frame = receive(ours)
    assert os.fstat(frame.fd).st_ino == os.fstat(fd).st_ino
    assert not os.get_inheritable(frame.fd)
    os.close(fd)
    os.close(frame.fd)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"magic": b"HTTP"}, "mark"),
        ({"version": 2}, "version 2"),
        ({"kind": wire.CALL}, "no answer"),
        ({"kind": 77}, "no answer"),
        ({"minor": 2}, "Python 3.2"),
        ({"flags": 3}, "bits"),
        ({"flags": 4}, "bits"),
        ({"reserved": 1}, "bits"),
        ({"buffers": 1 << 31}, "buffers"),
        ({"body": 1 << 63}, "more than the limit"),
        ({"kind": wire.RAISED, "body": 2 << 20}, "more than the limit"),
        ({"flags": 1}, "memfd"),
    ],
)
def test_a_forged_header_is_refused_before_anything_is_allocated(pair, changes, words):
    ours, theirs = pair
    theirs.send(header() + b"body")
    receive(ours)  # the control: the same bytes, unchanged
    theirs.send(header(**changes) + b"body")
    with pytest.raises(wire.ProtocolError, match=words):
        receive(ours)


def test_an_end_in_the_middle_is_an_end(pair):
    ours, theirs = pair
    theirs.send(header(body=100) + b"half")
    reader = wire.AnswerReader()
    assert not reader.receive(ours)
    theirs.close()
    with pytest.raises(EOFError):
        reader.receive(ours)


def test_an_announced_length_takes_no_memory(pair):
    ours, theirs = pair
    theirs.send(header(body=200 << 20) + b"little")
    reader = wire.AnswerReader()
    assert not reader.receive(ours)
    assert len(reader._data) < 100


def test_extra_descriptors_are_closed(pair):
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    fds = [os.memfd_create("test") for _ in range(8)]
    socket.send_fds(theirs, [header(flags=1) + b"body"], fds)
    for fd in fds:
        os.close(fd)
    frame = receive(ours)
    os.close(frame.fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_with_later_bytes_are_dropped(pair):
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    fd = os.memfd_create("test")
    theirs.send(header(body=8))
    reader = wire.AnswerReader()
    assert not reader.receive(ours)
    socket.send_fds(theirs, [b"bodybody"], [fd])
    os.close(fd)
    assert reader.receive(ours)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_call_is_read_with_its_table(pair):
    ours, theirs = pair
    wire.send_frame(ours, wire.CALL, b"call", [(0, 4)])
    frame = wire.read_call(theirs)
    assert (frame.kind, bytes(frame.body), frame.table) == (wire.CALL, b"call", ((0, 4),))
