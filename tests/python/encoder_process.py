"""Encodes what it reads on stdin, one value after another, as the guest's side does."""

import sys
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(__file__).parent)]
from pctx_sandbox.guest.arguments import loads  # noqa: E402
from pctx_sandbox.guest.encode import encode  # noqa: E402
from pctx_sandbox.guest.tags import NotData  # noqa: E402


def answer(parts):
    output = sys.stdout.buffer
    output.write(len(parts).to_bytes(8, "little"))
    for part in parts:
        output.write(memoryview(part).nbytes.to_bytes(8, "little"))
        output.write(part)
    output.flush()


def read_counted():
    return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "little"))


while head := sys.stdin.buffer.read(8):
    payload, *buffers = [read_counted() for _ in range(1 + int.from_bytes(head, "little"))]
    try:
        value, allowed = loads(payload, [memoryview(bytearray(buffer)) for buffer in buffers])
        encoded = encode(value, allowed)
    except NotData as error:
        answer([b"refused", str(error).encode("utf-8", "replace")])
    except Exception as error:
        answer([b"refused", f"the encoder failed: {error!r}".encode("utf-8", "replace")])
    else:
        answer([b"ok", encoded.payload, *encoded.buffers])
