"""Runs one call inside a box: reads it, checks the Python version, decodes, runs, answers, ends. Standard library only.

`warm` is called while nobody waits, so that a call finds its pages touched; `serve` is the call itself.
"""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import Any

from . import arguments, buffers, encode, includes, inside, raised, wire
from .tags import MissingLibrary, NotData

# The host is trusted, and what it sends is bounded by the box's own memory.
_NO_LIMIT = 1 << 62
# The first round after a fork copies pages, the second finds the caches that the first one filled (measured).
_WARM_ROUNDS = 3
_LINGER_SECONDS = 0.1

Answer = tuple[int, bytes, list[memoryview]]
_dummy_call = b""


def prepare() -> None:
    """Makes the dummy call of `warm`, in the Zygote: calls only read pickles, and untouched pages stay shared."""
    global _dummy_call
    # A function that no module has, so that it is built from its code as the caller's will be.
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def dummy(values, depth=1):\n    return {'warm': [*values, depth, 1.5, 'text', None]}", space)
    options = pickle.dumps({"cpus": 1}, 5)
    function = _cloudpickle().dumps(space["dummy"], protocol=5)
    given = pickle.dumps((([],), {}), 5)
    lengths = wire.PARTS.pack(len(options) | wire.PLAIN, len(function) | wire.PLAIN)
    _dummy_call = lengths + options + function + given


def warm() -> None:
    """Touches everything that a call touches, with a dummy: streams, pickles, the encoder, the text of an error."""
    inside.install()
    _open_streams()
    if not _dummy_call:
        prepare()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(_WARM_ROUNDS):
            wire.send_frame(ours, wire.CALL, _dummy_call)
            _send(theirs, *_answer(wire.read_call(theirs), theirs))
            ours.recv(wire.CHUNK)


def _cloudpickle() -> Any:
    """The caller's cloudpickle, lent to the box: never the Environment's."""
    import cloudpickle  # type: ignore[import-untyped]

    return cloudpickle


def _open_streams() -> None:
    """Text streams over descriptors 1 and 2 that pass every line on at once; what is not Unicode is shown escaped."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(fd, "w", closefd=False)),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def serve(sock: int, before_call: Callable[[], object] = lambda: None) -> None:
    """Answers one call on the socket and ends this process; without a call it ends silently."""
    connection = socket.socket(fileno=sock)
    worker = os.getpid()
    try:
        if not inside.installed():
            warm()
        frame = wire.read_call(connection)
        before_call()
        answer = _answer(frame, connection)
        if os.getpid() == worker:  # the function may have forked and both sides returned: one of them is the Worker
            _send(connection, *answer, frame.inline)
            # Ending takes CPU time that the caller needs to read the answer; the Broker kills us when it has.
            connection.settimeout(_LINGER_SECONDS)
            connection.recv(1)
    except (EOFError, OSError):
        pass
    os._exit(0)


def _answer(frame: wire.Frame, connection: socket.socket) -> Answer:
    stage = "version"
    try:
        if frame.kind != wire.CALL:
            raise RuntimeError(f"frame type {frame.kind} is no call")
        # Before anything is decoded: bytecode of another minor version crashes the interpreter.
        if frame.minor != wire.PYTHON_MINOR:
            raise RuntimeError(f"the call was made by Python 3.{frame.minor}, and the box runs 3.{wire.PYTHON_MINOR}")
        stage = "decode"
        function, args, keywords, options = _decode(frame, connection)
        stage = "run"
        value = function(*args, **keywords)
        if options.get("coroutine"):
            import asyncio

            value = asyncio.run(value)
        _flush()
        stage = "encode"
        if options.get("returns") == "opaque":
            encoded = encode.encode_opaque(value, _cloudpickle().dumps)
        else:
            encoded = encode.encode(value, options.get("allowed", ()))
        return wire.VALUE, encoded.payload, encoded.buffers
    except NotData as error:
        if stage == "encode":
            return _refusal(str(error), "result", "")
        if stage == "decode" and isinstance(error, MissingLibrary):
            return _refusal(error.what, "argument", error.library)
        return wire.RAISED, _describe(error, stage), []
    except BaseException as error:  # SystemExit and KeyboardInterrupt are answers like any other
        return wire.RAISED, _describe(error, stage), []


def _refusal(message: str, subject: str, library: str) -> Answer:
    text = {"message": message[: raised.LONGEST_MESSAGE], "subject": subject, "library": library[:200]}
    return wire.REFUSED, json.dumps(text).encode(), []


def _describe(error: BaseException, stage: str) -> bytes:
    _flush()
    try:
        return raised.describe(error, __file__, stage)
    except BaseException as broken:  # no memory left, a hostile class: the caller still learns the type
        name = type(error).__name__[:200]
        text = f"it could not be described: {type(broken).__name__}"
        return json.dumps({"error_type": name, "message": text, "builtins": [], "chain": [], "stage": stage}).encode()


def _decode(frame: wire.Frame, connection: socket.socket) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The function, its arguments and the options; included packages are in place before anything may need them."""
    body = frame.body
    options_size, function_size = wire.PARTS.unpack_from(body)
    plain_arguments, plain_function = options_size & wire.PLAIN, function_size & wire.PLAIN
    options_size &= ~wire.PLAIN
    function_size &= ~wire.PLAIN
    function_at = wire.PARTS.size + options_size
    arguments_at = function_at + function_size
    options = pickle.loads(body[wire.PARTS.size : function_at])
    if "include" in options:
        includes.install(options["include"])
    views: list[memoryview] = []
    if frame.fd >= 0:
        views = buffers.map_buffers(frame.fd, frame.table, _NO_LIMIT)
    elif frame.table:
        views = buffers.receive_inline(buffers.Early(frame.excess, connection), frame.table, _NO_LIMIT)
    if arguments_at == len(body):
        function, args, keywords = arguments.loads(body[function_at:], views)
    else:
        function = (pickle.loads if plain_function else arguments.loads)(body[function_at:arguments_at])
        given = body[arguments_at:]
        args, keywords = pickle.loads(given) if plain_arguments else arguments.loads(given, views)
    return function, args, keywords, options


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except Exception:  # the function may have put anything in their place
            continue


def _send(connection: socket.socket, kind: int, body: bytes, large: list[memoryview], inline: bool = False) -> None:
    if not large:
        wire.send_frame(connection, kind, body)
        return
    try:
        if inline:
            raise OSError(errno.EOPNOTSUPP, "the caller takes no descriptor")
        fd, table = buffers.pack(large)
    except OSError:  # a box on a host without a memory cgroup may not make memfds
        wire.send_frame(connection, kind, body, buffers.layout(large)[0])
        buffers.send_inline(connection, large)
        return
    wire.send_frame(connection, kind, body, table, fd)
