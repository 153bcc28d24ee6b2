"""numpy arrays and scalars: dtype, shape and bytes, put together again with numpy's public constructors.

A dtype travels in a grammar of our own. It has no object dtype: bytes are never taken for pointers.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import Any

from . import tags
from .tags import Context, Fields, NotData, Put, expect

UNITS = "Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as"
SIMPLE = re.compile(
    rf"[<>|](b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SUV][1-9][0-9]{{0,8}}|[mM]8(\[[1-9]?[0-9]{{0,9}}({UNITS})\])?)"
)
MOST_DIMENSIONS = 32  # numpy 1 has no more
MOST_FIELDS = 10_000
DEEPEST_STRUCT = 8


def describe(value: Any, put: Put) -> Fields | None:
    np: Any = sys.modules.get("numpy")
    if np is None or not hasattr(np, "ndarray"):
        return None
    if isinstance(value, np.generic):
        return tags.NP_SCALAR, describe_dtype(np, value.dtype), value.tobytes()
    if not isinstance(value, np.ndarray):
        return None
    if type(value) not in (np.ndarray, np.recarray, np.memmap):
        raise NotData(_subclass_hint(type(value)))
    if value.dtype == object:
        return tags.NP_OBJECTS, value.shape, tuple(value.ravel().tolist())
    dtype = describe_dtype(np, value.dtype)
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    if value.nbytes == 0:
        return tags.NP_ARRAY, dtype, value.shape, "C", b"", type(value) is np.recarray
    flat = np.asarray(value).ravel(order=order)  # a copy only where the array is not contiguous
    # Through uint8: datetime64 and structured arrays do not export their own bytes as such.
    raw = memoryview(flat.view(np.uint8))
    return tags.NP_ARRAY, dtype, value.shape, order, put(raw), type(value) is np.recarray


def _subclass_hint(kind: type) -> str:
    if kind.__name__ == "MaskedArray":
        return "is a masked array; return (array.data, array.mask) or array.filled(...)"
    return "is a subclass of numpy.ndarray; return numpy.asarray(...) of it"


def describe_dtype(np: Any, dtype: Any) -> Any:
    if dtype.fields is None and dtype.subdtype is None:
        if not _is_simple(dtype.str):
            raise NotData(f"has dtype {dtype}, which has no plain bytes; convert it with .astype(...) or .tolist()")
        return dtype.str
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return "array", describe_dtype(np, base), shape
    fields = []
    for name in dtype.names:
        entry = dtype.fields[name]
        if len(entry) > 2:
            raise NotData("has a structured dtype with titles; rename the fields instead")
        fields.append((name, describe_dtype(np, entry[0]), entry[1]))
    return "struct", dtype.itemsize, dtype.isalignedstruct, tuple(fields)


def build_dtype(context: Context, np: Any, described: Any, depth: int = 0) -> Any:
    context.charge(256)  # for each mention: a description can hold the same part a thousand times, on each level
    expect(depth < DEEPEST_STRUCT, "a dtype is nested too deeply")
    if type(described) is str:
        return _simple_dtype(np, described)
    expect(type(described) is tuple and described, "a dtype is malformed")
    if described[0] == "array":
        _, base, shape = described
        expect_shape(shape)
        inner = build_dtype(context, np, base, depth + 1)
        expect(math.prod(shape) * inner.itemsize < 2**31, "a dtype is too large")
        return np.dtype((inner, shape))
    kind, itemsize, aligned, fields = described
    expect(kind == "struct" and type(itemsize) is int and 0 < itemsize < 2**31, "a dtype is malformed")
    expect(type(aligned) is bool and type(fields) is tuple and len(fields) <= MOST_FIELDS, "a dtype is malformed")
    expect(all(type(field) is tuple and len(field) == 3 for field in fields), "a dtype is malformed")
    names = [name for name, _, _ in fields]
    offsets = [offset for _, _, offset in fields]
    expect(all(type(name) is str for name in names), "a dtype's field has no name")
    expect(all(type(offset) is int and 0 <= offset < itemsize for offset in offsets), "a dtype's offset is wrong")
    formats = [build_dtype(context, np, inner, depth + 1) for _, inner, _ in fields]
    layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    return np.dtype(layout, align=aligned)


@functools.lru_cache(maxsize=256)
def _is_simple(text: str) -> bool:
    return SIMPLE.fullmatch(text) is not None


@functools.lru_cache(maxsize=256)
def _simple_dtype(np: Any, text: str) -> Any:
    expect(_is_simple(text), "a dtype is malformed")
    return np.dtype(text)


def expect_shape(shape: Any) -> None:
    expect(type(shape) is tuple and len(shape) <= MOST_DIMENSIONS, "a shape is malformed")
    expect(all(type(side) is int and 0 <= side < 2**62 for side in shape), "a shape is malformed")


def build_array(context: Context, dtype: Any, shape: Any, order: Any, field: Any, record: Any = False) -> Any:
    np = context.library("numpy", "a numpy array")
    kind = build_dtype(context, np, dtype)
    expect_shape(shape)
    expect(order in ("C", "F") and type(record) is bool, "an array's order is malformed")
    buffer = context.take(field)
    expect(kind.itemsize > 0, "an array's items have no size")
    size = memoryview(buffer).nbytes
    expect(math.prod(shape) * kind.itemsize == size, "an array's shape does not fit its bytes")
    if size == 0:
        expect(max(shape, default=0) < 2**31, "an array's shape is malformed")
        array = np.empty(shape, kind)
    else:
        array = np.frombuffer(buffer, dtype=kind).reshape(shape, order=order)
    return array.view(np.recarray) if record else array


def build_objects(context: Context, shape: Any, values: Any) -> Any:
    np = context.library("numpy", "a numpy array")
    expect_shape(shape)
    expect(type(values) is tuple and math.prod(shape) == len(values), "an array's shape does not fit its items")
    expect(max(shape, default=0) < 2**31, "an array's shape is malformed")
    context.charge(8 * len(values))
    flat = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        flat[index] = value
    return flat.reshape(shape)


def build_scalar(context: Context, dtype: Any, raw: Any) -> Any:
    np = context.library("numpy", "a numpy scalar")
    kind = build_dtype(context, np, dtype)
    expect(type(raw) is bytes and len(raw) == kind.itemsize > 0, "a scalar's bytes do not fit its dtype")
    context.charge(len(raw))
    # Over a copy: a scalar of a structured dtype is a view, and bytes would make it read-only.
    value = np.frombuffer(bytearray(raw), dtype=kind)[0]
    expect(isinstance(value, np.generic), "a scalar's dtype is malformed")
    if kind.kind != "V":
        context.key_types.add(type(value))
    return value


BUILDERS: dict[int, Any] = {
    tags.NP_ARRAY: build_array,
    tags.NP_OBJECTS: build_objects,
    tags.NP_SCALAR: build_scalar,
}
