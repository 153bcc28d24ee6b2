"""Opens what the caller sent: the function and its arguments. Runs inside the box, on data that the caller made."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from . import tags
from .rebuild import build
from .tags import Context, Fields, MissingLibrary

# What stands at the head of a call: how many of the buffers belong to tagged values; pickle's own come after.
HEAD = 4


def from_tag(*fields: Any) -> Any:
    """Stands in the pickle for a tagged value; the unpickler puts its own builder in this place."""
    raise RuntimeError("a tagged value outside of a call")


def open_opaque(data: bytes) -> Any:
    """Stands in the pickle for a sealed value. It was pickled in a box, and is opened in one only."""
    raise RuntimeError("a sealed value outside of a call")


class _BoxContext(Context):
    def __init__(self, buffers: Sequence[memoryview]) -> None:
        super().__init__()
        self._buffers = buffers

    def take(self, field: Any) -> Any:
        return self._buffers[field] if type(field) is int else super().take(field)

    def take_frozen(self, field: Any) -> Any:
        return self._buffers[field] if type(field) is int else field


class _Unpickler(pickle.Unpickler):
    def __init__(self, payload: bytes | memoryview, buffers: Sequence[memoryview], own: int) -> None:
        super().__init__(io.BytesIO(payload), buffers=buffers[own:])
        context = _BoxContext(buffers[:own])
        # Functions, not methods: the memo of a C unpickler would hold the unpickler, a cycle that 3.10 never frees.
        self._stand_ins = {
            "from_tag": lambda *fields: build(context, fields),
            "open_opaque": lambda field: pickle.loads(context.take_frozen(field)),
        }

    def find_class(self, module: str, name: str) -> Any:
        # By name and not by identity: the package may be called otherwise inside.
        if module.endswith("guest.arguments"):
            return self._stand_ins[name]
        try:
            return super().find_class(module, name)
        except ModuleNotFoundError as error:
            missing = error.name or module
            raise MissingLibrary(missing.partition(".")[0], f"{module}.{name}") from None


def loads(payload: bytes | memoryview, buffers: Sequence[memoryview] = ()) -> Any:
    """What `encode_call` of the caller took apart. Raises MissingLibrary naming a module the Environment lacks."""
    own = int.from_bytes(payload[:HEAD], "little")
    return _Unpickler(memoryview(payload)[HEAD:], buffers, own).load()


def describe_for_box(value: Any, put: tags.Put) -> Fields | None:
    """The fields of a value whose own pickle depends on its library's version; None for all that travels by itself."""
    from . import arrays, arrow, frames, polars_frames

    for module in (arrays, frames, arrow, polars_frames):
        fields: Fields | None = module.describe(value, put)
        if fields is not None:
            return fields
    return None
