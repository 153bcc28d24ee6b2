"""Decodes what a guest returned. Nothing here unpickles, imports by a name of the guest's, or calls what it sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from . import _native
from ._output import printable
from ._rebuild import HostContext
from .errors import SerializationError
from .guest.tags import MissingLibrary


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one result may cost the caller. Buffers beside the payload have their own limit, in `_buffers`."""

    payload: int = 256 << 20
    depth: int = 1000
    objects: int = 10_000_000
    memory: int = 1 << 30
    seconds: float = 30.0


DEFAULT_LIMITS = Limits()


def decode(
    payload: bytes | bytearray,
    buffers: Sequence[memoryview] = (),
    *,
    types: Mapping[str, type] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Any:
    """The value that the guest encoded. Raises SerializationError for anything that is not data or passes a limit."""
    if len(payload) > limits.payload:
        raise SerializationError(
            f"the result takes {len(payload)} bytes, more than the limit of {limits.payload}\n"
            "hint: return less, or return large data as numpy arrays"
        )
    context = HostContext(types or {}, buffers, limits.memory, limits.seconds)
    counts = limits.depth, limits.objects, limits.memory, limits.seconds
    try:
        return _native.decode(payload, context.build, context.fill, context.key_types, *counts)
    except MissingLibrary as error:
        raise SerializationError(
            f"the function returned {error.what}, and {error.library} is not installed here\n"
            f"hint: install {error.library} in the calling environment, or return plain data (lists, dicts, numbers)"
        ) from None
    except MemoryError:
        raise SerializationError("the result does not fit into this process's memory\nhint: return less") from None
    except Exception as error:  # also a key whose hash fails, a number out of a library's range
        raise SerializationError(
            f"what came out of the box cannot be taken as data: {printable(str(error))}\n"
            "hint: return plain data (lists, dicts, numbers, texts)"
        ) from None
