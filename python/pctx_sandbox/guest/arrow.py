"""Arrow tables, batches and arrays: rebuilt from their buffers, whose sizes are checked here and whose contents
(offsets, UTF-8, dictionary indices) Arrow validates in full before anybody else sees them. Never through IPC.
"""

from __future__ import annotations

import sys
from typing import Any

from . import tags
from .arrow_types import build_field, build_metadata, build_type, describe_field, describe_type
from .tags import Context, Fields, NotData, Put, expect

MOST_CHUNKS = 100_000


def describe(value: Any, put: Put) -> Fields | None:
    pa: Any = sys.modules.get("pyarrow")
    if pa is None or not hasattr(pa, "Table"):
        return None
    if isinstance(value, pa.Table):
        return tags.ARROW_TABLE, _describe_schema(pa, value.schema), tuple(value.columns), value.num_rows
    if isinstance(value, pa.RecordBatch):
        return tags.ARROW_BATCH, _describe_schema(pa, value.schema), tuple(value.columns), value.num_rows
    if isinstance(value, pa.ChunkedArray):
        return tags.ARROW_CHUNKED, describe_type(pa, value.type), tuple(value.chunks)
    if isinstance(value, pa.Array):
        return _describe_array(pa, value, put)
    if isinstance(value, pa.Scalar):
        raise NotData("is an Arrow scalar; return .as_py() of it")
    return None


def _describe_schema(pa: Any, schema: Any) -> Any:
    return tuple(describe_field(pa, field) for field in schema), dict(schema.metadata or {})


def _describe_array(pa: Any, array: Any, put: Put) -> Fields:
    kind = describe_type(pa, array.type)
    # A slice shares the buffers of the whole; joining it with nothing copies its own part.
    if array.offset != 0 or array.get_total_buffer_size() > array.nbytes + 4096:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    if pa.types.is_dictionary(array.type):
        return tags.ARROW_ARRAY, kind, len(array), (), (array.indices, array.dictionary)
    children, own = _children(pa, array)
    buffers = tuple(None if part is None else put(memoryview(part)) for part in array.buffers()[:own])
    return tags.ARROW_ARRAY, kind, len(array), buffers, children


def _children(pa: Any, array: Any) -> tuple[tuple[Any, ...], int]:
    """The child arrays, and how many of the flattened buffers are the array's own."""
    t, kind = pa.types, array.type
    if t.is_struct(kind):
        return tuple(array.field(i) for i in range(kind.num_fields)), 1
    if t.is_map(kind):
        return (array.keys, array.items), 2
    if t.is_list(kind) or t.is_large_list(kind):
        return (array.values,), 2
    if t.is_fixed_size_list(kind):
        return (array.values,), 1
    if t.is_null(kind):
        return (), 1
    text = t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind)
    return (), 3 if text else 2


# --- Building ---------------------------------------------------------------------------------------------------------


def build_array(context: Context, described: Any, length: Any, fields: Any, children: Any) -> Any:
    pa = context.library("pyarrow", "Arrow data")
    kind = build_type(context, pa, described)
    expect(type(length) is int and 0 <= length < 2**48, "an Arrow array's length is malformed")
    expect(type(fields) is tuple and type(children) is tuple, "an Arrow array is malformed")
    expect(all(isinstance(child, pa.Array) for child in children), "an Arrow array's parts are expected")
    context.charge(1024 + sum(int(child.nbytes) for child in children))
    if pa.types.is_dictionary(kind):
        array = _build_dictionary(pa, kind, fields, children)
        expect(len(array) == length, "an Arrow array's length is malformed")
        return array
    buffers = [None if field is None else memoryview(context.take_frozen(field)).cast("B") for field in fields]
    inner = _expect_children(pa, kind, length, children)
    _expect_sizes(context, pa, kind, length, buffers)
    lent = [None if part is None else pa.py_buffer(part) for part in buffers]
    array = pa.Array.from_buffers(kind, length, lent, -1, 0, inner)
    array.validate(full=True)
    return array


def _build_dictionary(pa: Any, kind: Any, fields: Any, children: Any) -> Any:
    expect(not fields and len(children) == 2, "an Arrow dictionary is malformed")
    indices, values = children
    expect(indices.type == kind.index_type and values.type == kind.value_type, "an Arrow dictionary is malformed")
    array = pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered, safe=True)
    array.validate(full=True)
    return array


def _expect_children(pa: Any, kind: Any, length: int, children: tuple[Any, ...]) -> list[Any] | None:
    t = pa.types
    if t.is_map(kind):
        expect(len(children) == 2 and len(children[0]) == len(children[1]), "an Arrow map is malformed")
        expect(children[0].null_count == 0, "an Arrow map has a key that is null")
        fields = [kind.key_field, kind.item_field]
        types_fit = all(child.type == field.type for child, field in zip(children, fields, strict=True))
        expect(types_fit, "an Arrow map is malformed")
        return [pa.StructArray.from_arrays(list(children), fields=fields)]
    wanted = [kind.field(i) for i in range(kind.num_fields)]
    expect(len(wanted) == len(children), "an Arrow array has other parts than its type")
    for field, child in zip(wanted, children, strict=True):
        expect(child.type == field.type, "an Arrow array has other parts than its type")
        if t.is_struct(kind):
            expect(len(child) == length, "an Arrow struct's parts differ in length")
        elif t.is_fixed_size_list(kind):
            expect(len(child) == length * kind.list_size, "an Arrow list's items do not fit its length")
    return list(children) or None


def _expect_sizes(context: Context, pa: Any, kind: Any, length: int, buffers: list[Any]) -> None:
    """Every buffer is at least as long as Arrow will read; what is in it, Arrow itself validates."""
    t = pa.types
    if t.is_list(kind) or t.is_map(kind) or t.is_large_list(kind):
        needed = [4 * (length + 1) * (2 if t.is_large_list(kind) else 1)]
    elif t.is_string(kind) or t.is_binary(kind):
        needed = [4 * (length + 1), 0]
    elif t.is_large_string(kind) or t.is_large_binary(kind):
        needed = [8 * (length + 1), 0]
    elif t.is_struct(kind) or t.is_fixed_size_list(kind) or t.is_null(kind):
        needed = []
        if kind.num_fields == 0:
            context.charge(8 * length)  # no byte stands behind such a length, and .to_pylist() would make it real
    else:
        needed = [(length * kind.bit_width + 7) // 8]
    expect(len(buffers) == len(needed) + 1, "an Arrow array has other buffers than its type")
    validity, *data = buffers
    expect(validity is None or validity.nbytes >= (length + 7) // 8, "an Arrow buffer is too short")
    for part, size in zip(data, needed, strict=True):
        expect((size == 0 or length == 0) if part is None else part.nbytes >= size, "an Arrow buffer is too short")


def build_chunked(context: Context, described: Any, chunks: Any) -> Any:
    pa = context.library("pyarrow", "Arrow data")
    kind = build_type(context, pa, described)
    expect(type(chunks) is tuple and len(chunks) <= MOST_CHUNKS, "Arrow chunks are malformed")
    expect(all(isinstance(chunk, pa.Array) and chunk.type == kind for chunk in chunks), "Arrow chunks are malformed")
    # By the bytes of each mention: one chunk, a hundred thousand times, is a small table until somebody converts it.
    context.charge(1024 + sum(64 + int(chunk.nbytes) for chunk in chunks))
    return pa.chunked_array(list(chunks), type=kind)


def _build_schema(context: Context, pa: Any, described: Any, columns: Any, rows: Any, kind: Any) -> Any:
    expect(type(described) is tuple and len(described) == 2 and type(described[0]) is tuple, "a schema is malformed")
    expect(type(columns) is tuple and len(columns) == len(described[0]), "a table's columns do not fit its schema")
    fields = [build_field(context, pa, field) for field in described[0]]
    for field, column in zip(fields, columns, strict=True):
        expect(isinstance(column, kind) and column.type == field.type, "a table's column does not fit its type")
        expect(len(column) == rows, "a table's columns differ in length")
        expect(field.nullable or column.null_count == 0, "a table's column has nulls where its field has none")
        context.charge(int(column.nbytes))
    expect(columns or rows == 0, "a table without columns has no rows")
    context.charge(4096)
    return pa.schema(fields, metadata=build_metadata(context, described[1]))


def build_table(context: Context, schema: Any, columns: Any, rows: Any) -> Any:
    pa = context.library("pyarrow", "an Arrow table")
    built = _build_schema(context, pa, schema, columns, rows, pa.ChunkedArray)
    return pa.Table.from_arrays(list(columns), schema=built)


def build_batch(context: Context, schema: Any, columns: Any, rows: Any) -> Any:
    pa = context.library("pyarrow", "an Arrow batch")
    built = _build_schema(context, pa, schema, columns, rows, pa.Array)
    return pa.RecordBatch.from_arrays(list(columns), schema=built)


BUILDERS: dict[int, Any] = {
    tags.ARROW_TABLE: build_table,
    tags.ARROW_BATCH: build_batch,
    tags.ARROW_CHUNKED: build_chunked,
    tags.ARROW_ARRAY: build_array,
}
