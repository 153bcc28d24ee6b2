"""Encodes what it reads on stdin, one value after another, as the guest's side does."""

import pickle
import sys
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(__file__).parent)]
from pctx_sandbox.guest.encode import encode  # noqa: E402
from pctx_sandbox.guest.tags import NotData  # noqa: E402


def answer(parts):
    output = sys.stdout.buffer
    output.write(len(parts).to_bytes(8, "little"))
    for part in parts:
        output.write(memoryview(part).nbytes.to_bytes(8, "little"))
        output.write(part)
    output.flush()


while head := sys.stdin.buffer.read(8):
    value, allowed = pickle.loads(sys.stdin.buffer.read(int.from_bytes(head, "little")))
    try:
        encoded = encode(value, allowed)
    except NotData as error:
        answer([b"refused", str(error).encode("utf-8", "replace")])
    else:
        answer([b"ok", encoded.payload, *encoded.buffers])
