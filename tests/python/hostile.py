"""Payloads by hand, as a hostile guest writes them."""

import struct

from pctx_sandbox._results import Limits, decode
from pctx_sandbox.guest import tags

HEAD = b"\x80\x05"
TAG = b"\x82\xf0"


def payload(body):
    return HEAD + body + b"."


def text(value):
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def data(value):
    return b"B" + struct.pack("<I", len(value)) + value


def number(value):
    size = value.bit_length() // 8 + 1
    return b"\x8b" + struct.pack("<I", size) + value.to_bytes(size, "little", signed=True)


def literal(value):
    """Plain values, and lists of bytes as ready-made opcodes."""
    if isinstance(value, list):
        return b"".join(value)
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return number(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bytes):
        return data(value)
    if isinstance(value, dict):
        return b"}(" + b"".join(literal(key) + literal(item) for key, item in value.items()) + b"u"
    return b"(" + b"".join(map(literal, value)) + b"t"


def tagged(kind, *fields):
    return [TAG + literal((kind, *fields)) + b"R"]


def opened(body, buffers=(), types=None, **limits):
    return decode(payload(body), buffers, types=types, limits=Limits(**limits))


__all__ = ["HEAD", "TAG", "data", "literal", "number", "opened", "payload", "tagged", "tags", "text"]
