"""Arrow's types in a grammar of our own. Extension types have no place in it: building one could run code."""

from __future__ import annotations

import re
from typing import Any

from .tags import Context, NotData, expect

NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "halffloat", "float", "double")
TEXTS = ("string", "large_string", "binary", "large_binary")
SIMPLE = frozenset((*NUMBERS, *TEXTS, "null", "bool", "date32[day]", "date64[ms]", "month_day_nano_interval"))
# What Arrow prints is not always what its factories are called.
FACTORY = {
    "bool": "bool_",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}
UNITS = ("s", "ms", "us", "ns")
ZONE = re.compile(r"[A-Za-z0-9_+\-]{1,32}(/[A-Za-z0-9_+\-]{1,32}){0,2}|[+-][0-9]{2}:[0-9]{2}")
MOST_FIELDS = 100_000
DEEPEST = 32


def describe_type(pa: Any, kind: Any) -> Any:
    t = pa.types
    if str(kind) in SIMPLE:
        return str(kind)
    if isinstance(kind, pa.BaseExtensionType):
        raise NotData("has an Arrow extension type; return its .storage")
    if t.is_timestamp(kind):
        return "timestamp", kind.unit, kind.tz
    if t.is_duration(kind):
        return "duration", kind.unit
    if t.is_time32(kind) or t.is_time64(kind):
        return "time", kind.bit_width, kind.unit
    if t.is_decimal128(kind) or t.is_decimal256(kind):
        return "decimal", kind.bit_width, kind.precision, kind.scale
    if t.is_fixed_size_binary(kind):
        return "fixed_binary", kind.byte_width
    if t.is_map(kind):
        return "map", describe_field(pa, kind.key_field), describe_field(pa, kind.item_field), kind.keys_sorted
    if t.is_fixed_size_list(kind):
        return "fixed_list", describe_field(pa, kind.value_field), kind.list_size
    if t.is_list(kind) or t.is_large_list(kind):
        return "large_list" if t.is_large_list(kind) else "list", describe_field(pa, kind.value_field)
    if t.is_struct(kind):
        return "struct", tuple(describe_field(pa, kind.field(i)) for i in range(kind.num_fields))
    if t.is_dictionary(kind):
        return "dictionary", describe_type(pa, kind.index_type), describe_type(pa, kind.value_type), kind.ordered
    raise NotData(f"has the Arrow type {kind}, which does not travel; .cast(...) it to a basic type")


def describe_field(pa: Any, field: Any) -> Any:
    return field.name, describe_type(pa, field.type), field.nullable, dict(field.metadata or {})


def build_type(context: Context, pa: Any, described: Any, depth: int = 0) -> Any:
    expect(depth < DEEPEST, "an Arrow type is nested too deeply")
    context.charge(256)
    if type(described) is str:
        expect(described in SIMPLE, "an Arrow type is not known")
        return getattr(pa, FACTORY.get(described, described))()
    expect(type(described) is tuple and described and type(described[0]) is str, "an Arrow type is malformed")
    kind, *parts = described
    if kind in PARAMETRIC:
        return PARAMETRIC[kind](pa, *parts)
    expect(kind in NESTED, "an Arrow type is not known")
    return NESTED[kind](context, pa, depth + 1, *parts)


def build_field(context: Context, pa: Any, described: Any, depth: int = 0) -> Any:
    expect(type(described) is tuple and len(described) == 4, "an Arrow field is malformed")
    name, kind, nullable, metadata = described
    expect(type(name) is str and type(nullable) is bool, "an Arrow field is malformed")
    return pa.field(name, build_type(context, pa, kind, depth), nullable, build_metadata(context, metadata))


def build_metadata(context: Context, metadata: Any) -> dict[bytes, bytes] | None:
    expect(type(metadata) is dict, "Arrow metadata is malformed")
    for key, value in metadata.items():
        expect(type(key) is bytes and type(value) is bytes, "Arrow metadata is malformed")
        # The way in which extension types travel: a reader would load one by this name.
        expect(not key.startswith(b"ARROW:extension"), "Arrow extension types do not travel")
        context.charge(128 + len(key) + len(value))
    return dict(metadata) or None


def _timestamp(pa: Any, unit: Any, zone: Any) -> Any:
    expect(unit in UNITS and (zone is None or (type(zone) is str and ZONE.fullmatch(zone))), "a timestamp is malformed")
    return pa.timestamp(unit, tz=zone)


def _duration(pa: Any, unit: Any) -> Any:
    expect(unit in UNITS, "a duration is malformed")
    return pa.duration(unit)


def _time(pa: Any, bits: Any, unit: Any) -> Any:
    expect((bits, unit) in ((32, "s"), (32, "ms"), (64, "us"), (64, "ns")), "a time is malformed")
    return (pa.time32 if bits == 32 else pa.time64)(unit)


def _decimal(pa: Any, bits: Any, precision: Any, scale: Any) -> Any:
    expect(bits in (128, 256) and type(precision) is int and type(scale) is int, "a decimal is malformed")
    expect(1 <= precision <= (38 if bits == 128 else 76) and -1000 <= scale <= 1000, "a decimal is malformed")
    return (pa.decimal128 if bits == 128 else pa.decimal256)(precision, scale)


def _fixed_binary(pa: Any, width: Any) -> Any:
    expect(type(width) is int and 0 < width < 2**31, "a width is malformed")
    return pa.binary(width)


def _map(context: Context, pa: Any, depth: int, key: Any, item: Any, is_sorted: Any) -> Any:
    expect(type(is_sorted) is bool, "a map is malformed")
    fields = build_field(context, pa, key, depth), build_field(context, pa, item, depth)
    return pa.map_(*fields, keys_sorted=is_sorted)


def _fixed_list(context: Context, pa: Any, depth: int, field: Any, size: Any) -> Any:
    expect(type(size) is int and 0 < size < 2**31, "a list's size is malformed")
    return pa.list_(build_field(context, pa, field, depth), size)


def _struct(context: Context, pa: Any, depth: int, fields: Any) -> Any:
    expect(type(fields) is tuple and len(fields) <= MOST_FIELDS, "a struct is malformed")
    return pa.struct([build_field(context, pa, field, depth) for field in fields])


def _dictionary(context: Context, pa: Any, depth: int, index: Any, value: Any, ordered: Any) -> Any:
    expect(index in SIMPLE and "int" in index and type(ordered) is bool, "a dictionary type is malformed")
    kinds = build_type(context, pa, index, depth), build_type(context, pa, value, depth)
    return pa.dictionary(*kinds, ordered=ordered)


PARAMETRIC: dict[str, Any] = {
    "timestamp": _timestamp,
    "duration": _duration,
    "time": _time,
    "decimal": _decimal,
    "fixed_binary": _fixed_binary,
}
NESTED: dict[str, Any] = {
    "map": _map,
    "fixed_list": _fixed_list,
    "struct": _struct,
    "dictionary": _dictionary,
    "list": lambda context, pa, depth, field: pa.list_(build_field(context, pa, field, depth)),
    "large_list": lambda context, pa, depth, field: pa.large_list(build_field(context, pa, field, depth)),
}
