"""polars frames and series, column by column: numbers and dates as arrays with a mask, all else as plain values.

Needs neither pyarrow nor, inside the box, numpy: where numpy was not imported, columns travel as lists.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from . import tags
from .tags import Context, Fields, NotData, Put, charge_expanded, expect

INTEGERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
NUMBERS = frozenset((*INTEGERS, "Float32", "Float64", "Boolean"))
SIMPLE = NUMBERS | frozenset(["Date", "Time", "String", "Binary", "Categorical", "Null", "Int128"])
FROM_NUMBERS = NUMBERS | {"Date", "Time", "Datetime", "Duration"}
UNITS = ("ms", "us", "ns")
ZONE = re.compile(r"[A-Za-z0-9_+\-]{1,32}(/[A-Za-z0-9_+\-]{1,32}){0,2}")
DEEPEST = 16


def describe(value: Any, put: Put) -> Fields | None:
    pl: Any = sys.modules.get("polars")
    if pl is None or not hasattr(pl, "DataFrame"):
        return None
    if type(value) is pl.DataFrame:
        return tags.POLARS_FRAME, tuple(value.get_columns()), value.height
    if type(value) is pl.Series:
        return tags.POLARS_SERIES, value.name, _describe_dtype(pl, value.dtype), *_describe_values(pl, value)
    return None


def _describe_dtype(pl: Any, dtype: Any) -> Any:
    name = dtype.base_type().__name__
    if name in SIMPLE:
        return name
    if name == "Datetime":
        return name, dtype.time_unit, dtype.time_zone
    if name == "Duration":
        return name, dtype.time_unit
    if name == "Decimal":
        return name, dtype.precision, dtype.scale
    if name == "Enum":
        return name, tuple(dtype.categories.to_list())
    if name == "List":
        return name, _describe_dtype(pl, dtype.inner)
    if name == "Array":
        return name, _describe_dtype(pl, dtype.inner), dtype.size
    if name == "Struct":
        return name, tuple((field.name, _describe_dtype(pl, field.dtype)) for field in dtype.fields)
    raise NotData(f"has the polars type {dtype}, which does not travel; cast it to a basic type")


def _describe_values(pl: Any, series: Any) -> tuple[Any, Any]:
    name = series.dtype.base_type().__name__
    if sys.modules.get("numpy") is None or name not in FROM_NUMBERS:
        return tuple(series.to_list()), None
    numbers = series.to_physical()
    if series.null_count() == 0:
        return numbers.to_numpy(), None
    return numbers.fill_null(False if name == "Boolean" else 0).to_numpy(), series.is_null().to_numpy()


# --- Building ---------------------------------------------------------------------------------------------------------


def build_dtype(context: Context, pl: Any, described: Any, depth: int = 0) -> Any:
    context.charge(256)  # for each mention, as for numpy's
    expect(depth < DEEPEST, "a polars type is nested too deeply")
    if type(described) is str:
        expect(described in SIMPLE, "a polars type is not known")
        return getattr(pl, described)()
    expect(type(described) is tuple and described and type(described[0]) is str, "a polars type is malformed")
    kind, *parts = described
    expect(kind in BUILD_DTYPE, "a polars type is not known")
    return BUILD_DTYPE[kind](context, pl, depth + 1, *parts)


def _datetime(context: Context, pl: Any, depth: int, unit: Any, zone: Any) -> Any:
    expect(unit in UNITS and (zone is None or (type(zone) is str and ZONE.fullmatch(zone))), "a date is malformed")
    return pl.Datetime(unit, zone)


def _duration(context: Context, pl: Any, depth: int, unit: Any) -> Any:
    expect(unit in UNITS, "a duration is malformed")
    return pl.Duration(unit)


def _decimal(context: Context, pl: Any, depth: int, precision: Any, scale: Any) -> Any:
    expect(precision is None or (type(precision) is int and 0 < precision <= 38), "a decimal is malformed")
    expect(type(scale) is int and 0 <= scale <= 38, "a decimal is malformed")
    return pl.Decimal(precision, scale)


def _enum(context: Context, pl: Any, depth: int, categories: Any) -> Any:
    expect(type(categories) is tuple and all(type(name) is str for name in categories), "categories are malformed")
    return pl.Enum(list(categories))


def _array(context: Context, pl: Any, depth: int, inner: Any, size: Any) -> Any:
    expect(type(size) is int and 0 <= size < 2**31, "an array's size is malformed")
    return pl.Array(build_dtype(context, pl, inner, depth), size)


def _struct(context: Context, pl: Any, depth: int, fields: Any) -> Any:
    expect(
        type(fields) is tuple and all(type(field) is tuple and len(field) == 2 for field in fields),
        "fields are malformed",
    )
    expect(all(type(name) is str for name, _ in fields), "a field has no name")
    return pl.Struct([pl.Field(name, build_dtype(context, pl, inner, depth)) for name, inner in fields])


BUILD_DTYPE: dict[str, Any] = {
    "Datetime": _datetime,
    "Duration": _duration,
    "Decimal": _decimal,
    "Enum": _enum,
    "List": lambda context, pl, depth, inner: pl.List(build_dtype(context, pl, inner, depth)),
    "Array": _array,
    "Struct": _struct,
}


def _slots(described: Any) -> int:
    """How many items one value of a type that was built can stand for."""
    if type(described) is str or described[0] not in ("Array", "List", "Struct"):
        return 1
    if described[0] == "Struct":
        return sum(_slots(inner) for _, inner in described[1]) + 1
    return _slots(described[1]) * (max(1, described[2]) if described[0] == "Array" else 1)


def build_series(context: Context, name: Any, described: Any, values: Any, mask: Any) -> Any:
    pl = context.library("polars", "a polars series")
    expect(type(name) is str, "a series has a name")
    dtype = build_dtype(context, pl, described)
    context.charge(2048)
    if type(values) is tuple:
        expect(mask is None, "a list has no mask")
        # An Array has room for all of its items even where it is null.
        context.charge(8 * charge_expanded(context, values) * _slots(described))
        return pl.Series(name, list(values), dtype=dtype, strict=True)
    np = context.library("numpy", "a polars series")
    kind = described if type(described) is str else described[0]
    expect(kind in FROM_NUMBERS, "numbers do not fit this type")
    expect(isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iufb", "numbers are expected")
    context.charge(2 * int(values.nbytes))
    series = pl.Series(name, values).cast(dtype, strict=True)
    if mask is None:
        return series
    expect(isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == values.shape, "a mask is malformed")
    return series.to_frame().select(pl.when(pl.Series(mask)).then(None).otherwise(pl.col(name)).alias(name)).to_series()


def build_frame(context: Context, columns: Any, height: Any) -> Any:
    pl = context.library("polars", "a polars frame")
    expect(type(columns) is tuple and all(isinstance(part, pl.Series) for part in columns), "columns are expected")
    expect(all(len(part) == height for part in columns) and (columns or height == 0), "columns differ in length")
    context.charge(4096)
    return pl.DataFrame(list(columns))


BUILDERS: dict[int, Any] = {tags.POLARS_FRAME: build_frame, tags.POLARS_SERIES: build_series}
