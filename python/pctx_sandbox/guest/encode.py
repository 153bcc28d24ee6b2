"""Encodes what a sandboxed function returns. Runs inside the box; standard library only.

The C pickler does the work: the builtin types at its own speed, with identity and cycles, and everything else through
`reducer_override`, which turns it into one of the tagged values of `tags.py`. No name of a module or class is written
that the other side would look up as code; the host's decoder could not read it anyway.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import io
import pickle
import types
from collections.abc import Collection, Iterator
from typing import Any

from . import arrays, arrow, frames, images, plain, polars_frames, records, tags, where
from .tags import BUFFER_THRESHOLD, Fields, NotData

# Subclasses that are a plain container with a habit; they come back as that container.
AS_DICT = (collections.OrderedDict, collections.defaultdict, collections.Counter, types.MappingProxyType)
AS_LIST = (collections.deque,)


def tagged(*fields: Any) -> Fields:
    """Never called: pickle writes its extension code in front of a tagged value's fields."""
    return fields


def _register() -> None:
    try:
        copyreg.add_extension(__name__, "tagged", tags.TAG_CODE)
    except ValueError as error:
        raise RuntimeError(f"pickle's extension code {tags.TAG_CODE} is taken: {error}") from None


_register()


@dataclasses.dataclass
class Encoded:
    payload: bytes
    buffers: list[memoryview]


class Unencodable(NotData):
    """Carries the value, so that its place in the result can be looked for afterwards."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.value = value


class _Encoder(pickle.Pickler):
    def __init__(self, file: io.BytesIO, allowed: Collection[str], buffers: list[memoryview]) -> None:
        super().__init__(file, protocol=5)
        self.allowed = allowed
        self.buffers = buffers

    def put(self, buffer: memoryview) -> bytes | int:
        if buffer.nbytes <= BUFFER_THRESHOLD:
            return buffer.tobytes()
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def reducer_override(self, value: Any) -> Any:
        if value is tagged:
            return NotImplemented  # written as its extension code
        try:
            return self._reduce(value)
        except Unencodable:
            raise
        except NotData as error:
            raise Unencodable(value, str(error)) from None

    def _reduce(self, value: Any) -> Any:
        kind = type(value)
        plain_describer = plain.DESCRIBERS.get(kind)
        if plain_describer is not None:
            return tagged, plain_describer(value)
        if kind is _Sealed:
            return tagged, value.fields
        if kind in AS_DICT:
            return tagged, (tags.DICT,), None, None, iter(value.items())
        if kind in AS_LIST:
            return tagged, (tags.LIST,), None, iter(value)
        fields = describe(value, self.put)
        if fields is not None:
            return tagged, fields
        record = None if isinstance(value, type) else records.describe(value, self.allowed)
        if record is None:
            raise Unencodable(value, where.hint_for(value))
        fields, values = record
        if values is None:
            return tagged, fields
        return tagged, fields, None, None, _one_pair(values)


def _one_pair(values: tuple[Any, ...]) -> Iterator[tuple[None, tuple[Any, ...]]]:
    yield None, values


def describe(value: Any, put: tags.Put) -> Fields | None:
    """The fields of any value that needs no permission of the caller's, or None."""
    fields = plain.describe(value)
    for module in (arrays, frames, arrow, polars_frames, images):
        if fields is not None:
            break
        fields = module.describe(value, put)
    return fields


def encode(value: object, allowed: Collection[str] = ()) -> Encoded:
    """The value as bytes and large buffers. `allowed` holds the keys of the caller's classes that may come back.

    Raises NotData with a message that names the place in the result, the type, and what to return instead.
    """
    file = io.BytesIO()
    buffers: list[memoryview] = []
    try:
        _Encoder(file, allowed, buffers).dump(value)
    except Unencodable as error:
        place = where.find(value, error.value)
        raise NotData(f"{place} ({where.name_of(type(error.value))}) {error}") from None
    except RecursionError:
        raise NotData(
            "result is nested too deeply, or contains itself through an array or model; return it flat"
        ) from None
    return Encoded(file.getvalue(), buffers)


def encode_opaque(value: object, dumps: Any) -> Encoded:
    """The value as sealed bytes that only another box opens. `dumps` is the caller's cloudpickle, lent to the box."""
    file = io.BytesIO()
    buffers: list[memoryview] = []
    encoder = _Encoder(file, (), buffers)
    sealed = dumps(value, protocol=5)
    encoder.dump(_Sealed((tags.OPAQUE, encoder.put(memoryview(sealed)), where.name_of(type(value)))))
    return Encoded(file.getvalue(), buffers)


class _Sealed:
    def __init__(self, fields: Fields) -> None:
        self.fields = fields
