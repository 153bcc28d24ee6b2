"""pandas: frames, series, indexes, extension arrays and scalars, put together again with pandas' public constructors.

The parts of a frame are themselves values (arrays, indexes), which the encoder takes apart in turn; a builder gets them
built, checks their types and joins them.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from . import plain, tags
from .tags import Context, Fields, NotData, Put, expect, expect_key

FREQUENCY = re.compile(r"-?[0-9]{0,6}[A-Za-z]{1,5}(-[A-Za-z]{3})?")
MASKED = re.compile(r"(U?Int(8|16|32|64)|Float(32|64)|boolean)")
CLOSED = ("left", "right", "both", "neither")


def describe(value: Any, put: Put) -> Fields | None:
    pd: Any = sys.modules.get("pandas")
    if pd is None or not hasattr(pd, "DataFrame"):
        return None
    kind = type(value)
    if kind is pd.DataFrame:
        return _describe_frame(value)
    if kind is pd.Series:
        return tags.PD_SERIES, _values(value), value.index, value.name, dict(value.attrs)
    if isinstance(value, pd.Index):
        return _describe_index(pd, value)
    if isinstance(value, pd.api.extensions.ExtensionArray):
        return _describe_array(pd, value)
    if value is pd.NaT:
        return tags.PD_SCALAR, "NaT"
    if value is pd.NA:
        return tags.PD_SCALAR, "NA"
    if kind is pd.Timestamp:
        zone = None if value.tzinfo is None else _describe_zone(value.tzinfo)
        return tags.PD_SCALAR, "Timestamp", value.to_datetime64(), zone
    if kind is pd.Timedelta:
        return tags.PD_SCALAR, "Timedelta", value.to_timedelta64()
    if kind is pd.Period:
        return tags.PD_SCALAR, "Period", value.ordinal, value.freqstr
    if kind is pd.Interval:
        return tags.PD_SCALAR, "Interval", value.left, value.right, value.closed
    if isinstance(value, pd.DataFrame | pd.Series):
        base = "DataFrame" if isinstance(value, pd.DataFrame) else "Series"
        raise NotData(f"is a subclass of pandas.{base}; return pandas.{base}(...) of it")
    return None


def _describe_frame(frame: Any) -> Fields:
    dtypes = list(frame.dtypes)
    # One dtype: pandas holds one block, and it travels as one buffer. The commonest large case, and the cheapest.
    if len(dtypes) > 1 and len(set(dtypes)) == 1 and _is_numpy(dtypes[0]):
        values: Any = frame.to_numpy()
    else:
        values = tuple(_values(frame.iloc[:, position]) for position in range(len(dtypes)))
    return tags.PD_FRAME, values, frame.index, frame.columns, dict(frame.attrs)


def _is_numpy(dtype: Any) -> bool:
    return isinstance(dtype, sys.modules["numpy"].dtype)


def _values(column: Any) -> Any:
    return column.to_numpy() if _is_numpy(column.dtype) else column.array


def _describe_index(pd: Any, index: Any) -> Fields:
    kind = type(index)
    if kind is pd.RangeIndex:
        return tags.PD_RANGE, index.start, index.stop, index.step, index.name
    if kind is pd.MultiIndex:
        codes = tuple(level_codes for level_codes in (_plain_numpy(part) for part in index.codes))
        return tags.PD_MULTIINDEX, tuple(index.levels), codes, tuple(index.names)
    if kind in (pd.DatetimeIndex, pd.TimedeltaIndex):
        frequency = index.freqstr if index.freq is not None else None
        return tags.PD_TIMES, index.array, frequency, index.name
    if (
        kind in (pd.Index, pd.CategoricalIndex, pd.IntervalIndex, pd.PeriodIndex)
        or kind.__module__.partition(".")[0] == "pandas"
    ):
        return tags.PD_INDEX, _values(index), index.name
    raise NotData("is a subclass of pandas.Index; return pandas.Index(...) of it")


def _describe_zone(zone: Any) -> Any:
    """Its key or its offset, not the object: that may be of pytz, which the other side need not have."""
    return plain.describe_timezone(zone)[1]


def _plain_numpy(values: Any) -> Any:
    return sys.modules["numpy"].asarray(values)


def _describe_array(pd: Any, array: Any) -> Fields:
    dtype = array.dtype
    if isinstance(dtype, pd.DatetimeTZDtype):
        naive = array.tz_convert("UTC").tz_localize(None).to_numpy()
        return tags.PD_ARRAY, "datetimetz", naive, _describe_zone(dtype.tz)
    if isinstance(array, pd.arrays.DatetimeArray):
        return tags.PD_ARRAY, "datetime", array.to_numpy()
    if isinstance(array, pd.arrays.TimedeltaArray):
        return tags.PD_ARRAY, "timedelta", array.to_numpy()
    if isinstance(dtype, pd.PeriodDtype):
        return tags.PD_ARRAY, "period", array.asi8, pd.PeriodIndex(array).freqstr
    if isinstance(dtype, pd.IntervalDtype):
        return tags.PD_ARRAY, "interval", array.left, array.right, array.closed
    if isinstance(dtype, pd.CategoricalDtype):
        return tags.PD_ARRAY, "categorical", array.codes, array.categories, bool(array.ordered)
    if isinstance(dtype, pd.StringDtype):
        missing = "NA" if getattr(dtype, "na_value", pd.NA) is pd.NA else "nan"
        return tags.PD_ARRAY, "string", missing, tuple(array.to_numpy(dtype=object, na_value=None).tolist())
    if hasattr(pd, "ArrowDtype") and isinstance(dtype, pd.ArrowDtype):
        pa: Any = sys.modules["pyarrow"]
        data = array.__arrow_array__()  # an array or, before pandas 3, a chunked one
        return tags.PD_ARRAY, "arrow", data if isinstance(data, pa.ChunkedArray) else pa.chunked_array([data])
    if MASKED.fullmatch(dtype.name) and type(dtype).__module__.partition(".")[0] == "pandas":
        filled = array.to_numpy(dtype=dtype.numpy_dtype, na_value=False if dtype.name == "boolean" else 0)
        return tags.PD_ARRAY, "masked", dtype.name, filled, _plain_numpy(array.isna())
    if type(array).__name__ in ("NumpyExtensionArray", "PandasArray"):
        return tags.PD_ARRAY, "numpy", array.to_numpy()
    raise NotData(f"has the pandas dtype {dtype}, which is not known here; convert it with .astype(...)")


# --- Building ---------------------------------------------------------------------------------------------------------


def _pandas(context: Context) -> Any:
    return context.library("pandas", "a pandas object")


def _column(context: Context, pd: Any, values: Any) -> Any:
    """An array or extension array that was built before; pandas may copy it."""
    np = context.library("numpy", "a pandas object")
    known = isinstance(values, np.ndarray | pd.api.extensions.ExtensionArray)
    expect(known and values.ndim == 1, "a column is expected")
    context.charge(256 + int(values.nbytes))
    return values


def _index(pd: Any, value: Any) -> Any:
    expect(isinstance(value, pd.Index), "an index is expected")
    return value


def _attrs(value: Any) -> dict[Any, Any]:
    expect(type(value) is dict, "attributes are expected")
    return dict(value)


def _label(context: Context, name: Any) -> Any:
    expect_key(context, name)
    return name


def _expect_keys(context: Context, values: Any) -> None:
    """pandas hashes what an index of objects holds."""
    if _is_numpy(values.dtype) and values.dtype.kind == "O":
        visits = 1000 + 10 * len(values)
        for value in values:
            visits = expect_key(context, value, visits)


def build_frame(context: Context, values: Any, index: Any, columns: Any, attrs: Any) -> Any:
    pd = _pandas(context)
    _index(pd, index)
    _index(pd, columns)
    context.charge(8192 + 8 * len(index) + 64 * len(columns))  # a range is no memory until pandas needs it as an array
    if type(values) is tuple:
        expect(len(values) == len(columns), "a frame's columns do not fit their names")
        parts = {
            position: pd.Series(_column(context, pd, part), index=index, dtype=part.dtype, copy=False)
            for position, part in enumerate(values)
        }
        frame = pd.DataFrame(parts, index=index, copy=False)
        frame.columns = columns
    else:
        np = context.library("numpy", "a pandas object")
        expect(isinstance(values, np.ndarray), "a frame's values are expected")
        expect(values.shape == (len(index), len(columns)), "a frame's shape does not fit its labels")
        context.charge(int(values.nbytes))
        frame = pd.DataFrame(values, index=index, columns=columns, dtype=values.dtype, copy=False)
    frame.attrs.update(_attrs(attrs))
    return frame


def build_series(context: Context, values: Any, index: Any, name: Any, attrs: Any) -> Any:
    pd = _pandas(context)
    column = _column(context, pd, values)
    expect(len(column) == len(_index(pd, index)), "a series does not fit its index")
    context.charge(4096)
    series = pd.Series(column, index=index, dtype=column.dtype, name=_label(context, name), copy=False)
    series.attrs.update(_attrs(attrs))
    return series


def build_index(context: Context, values: Any, name: Any) -> Any:
    pd = _pandas(context)
    column = _column(context, pd, values)
    _expect_keys(context, column)
    context.charge(2048)
    return pd.Index(column, dtype=column.dtype, name=_label(context, name), copy=False, tupleize_cols=False)


def build_range(context: Context, start: Any, stop: Any, step: Any, name: Any) -> Any:
    expect(all(type(part) is int and abs(part) < 2**62 for part in (start, stop, step)), "a range is malformed")
    context.charge(1024)
    return _pandas(context).RangeIndex(start, stop, step, name=_label(context, name))


def build_multiindex(context: Context, levels: Any, codes: Any, names: Any) -> Any:
    pd = _pandas(context)
    np = context.library("numpy", "a pandas object")
    expect(all(type(part) is tuple for part in (levels, codes, names)), "levels are expected")
    expect(0 < len(levels) == len(codes) == len(names) <= 1000, "levels, codes and names differ in number")
    for level, part, name in zip(levels, codes, names, strict=True):
        _index(pd, level)
        expect(isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind == "i", "codes are expected")
        context.charge(4096 + int(part.nbytes) + 64 * len(level))
        # pandas narrows the codes before it checks them: one that is far outside would come out as another row.
        inside = len(part) == 0 or (part.min() >= -1 and part.max() < len(level))
        expect(inside, "a code points outside of its level")
        _label(context, name)
    return pd.MultiIndex(levels=levels, codes=codes, names=names, verify_integrity=True)


def build_times(context: Context, values: Any, frequency: Any, name: Any) -> Any:
    pd = _pandas(context)
    column = _column(context, pd, values)
    expect(column.dtype.kind in "mM", "dates are expected")
    context.charge(2048)
    kind = pd.TimedeltaIndex if column.dtype.kind == "m" else pd.DatetimeIndex
    index = kind(column, name=_label(context, name))
    if frequency is None:
        return index
    expect(type(frequency) is str and FREQUENCY.fullmatch(frequency), "a frequency is malformed")
    try:
        return kind(column, name=name, freq=frequency)
    except ValueError:
        return index  # another version of pandas calls it otherwise; the dates themselves are complete


def build_array(context: Context, kind: Any, *fields: Any) -> Any:
    expect(type(kind) is str and kind in ARRAYS, "a pandas array is of no known kind")
    context.charge(2048)
    return ARRAYS[kind](context, _pandas(context), *fields)


def _times(context: Context, pd: Any, values: Any, kind: str) -> Any:
    column = _column(context, pd, values)
    expect(column.dtype.kind == kind, "dates are expected")
    return (pd.DatetimeIndex if kind == "M" else pd.TimedeltaIndex)(column).array


def _zoned(context: Context, pd: Any, values: Any, zone: Any) -> Any:
    column = _column(context, pd, values)
    expect(column.dtype.kind == "M", "dates are expected")
    return pd.DatetimeIndex(column).tz_localize("UTC").tz_convert(_zone(context, zone)).array


def _zone(context: Context, zone: Any) -> Any:
    if type(zone) is str:
        plain.build_zoneinfo(context, zone)
        return zone  # pandas takes the class that it takes itself: that of pytz before 3, then ZoneInfo
    return plain.build_timezone(context, zone, None)


def _period(context: Context, pd: Any, ordinals: Any, frequency: Any) -> Any:
    column = _column(context, pd, ordinals)
    expect(str(column.dtype) == "int64", "a period's ordinals are expected")
    expect(type(frequency) is str and FREQUENCY.fullmatch(frequency), "a frequency is malformed")
    return pd.arrays.PeriodArray(column, dtype=pd.PeriodDtype(frequency))


def _interval(context: Context, pd: Any, left: Any, right: Any, closed: Any) -> Any:
    _index(pd, left)
    _index(pd, right)
    expect(closed in CLOSED and len(left) == len(right), "an interval is malformed")
    context.charge(64 * len(left))
    return pd.arrays.IntervalArray.from_arrays(left, right, closed=closed)


def _categorical(context: Context, pd: Any, codes: Any, categories: Any, ordered: Any) -> Any:
    column = _column(context, pd, codes)
    expect(column.dtype.kind == "i" and type(ordered) is bool, "codes are expected")
    context.charge(64 * len(_index(pd, categories)))
    return pd.Categorical.from_codes(column, categories=categories, ordered=ordered)


def _masked(context: Context, pd: Any, name: Any, values: Any, mask: Any) -> Any:
    column = _column(context, pd, values)
    flags = _column(context, pd, mask)
    expect(type(name) is str and MASKED.fullmatch(name), "a nullable dtype is malformed")
    expect(str(column.dtype) == name.lower().replace("boolean", "bool"), "values do not fit their dtype")
    expect(str(flags.dtype) == "bool" and len(flags) == len(column), "a mask is malformed")
    if name == "boolean":
        return pd.arrays.BooleanArray(column, flags)
    return (pd.arrays.FloatingArray if name[0] == "F" else pd.arrays.IntegerArray)(column, flags)


def _string(context: Context, pd: Any, missing: Any, values: Any) -> Any:
    expect(type(values) is tuple and missing in ("nan", "NA"), "texts are expected")
    expect({type(value) for value in values} <= {str, type(None)}, "texts are expected")
    context.charge(sum(16 + 4 * len(value or "") for value in values))
    if missing == "NA":
        return pd.array(list(values), dtype="string")
    try:
        dtype = pd.StringDtype(na_value=float("nan"))
    except TypeError:  # before pandas 2.3 such a column is one of objects
        np = context.library("numpy", "a pandas object")
        return np.array(values, dtype=object)
    return pd.array(list(values), dtype=dtype)


def _arrow(context: Context, pd: Any, chunked: Any) -> Any:
    pa = context.library("pyarrow", "a pandas column of Arrow data")
    expect(isinstance(chunked, pa.ChunkedArray), "Arrow data is expected")
    return pd.arrays.ArrowExtensionArray(chunked)


ARRAYS: dict[str, Any] = {
    "datetime": lambda context, pd, values: _times(context, pd, values, "M"),
    "timedelta": lambda context, pd, values: _times(context, pd, values, "m"),
    "datetimetz": _zoned,
    "period": _period,
    "interval": _interval,
    "categorical": _categorical,
    "masked": _masked,
    "string": _string,
    "arrow": _arrow,
    "numpy": lambda context, pd, values: pd.array(_column(context, pd, values), dtype=values.dtype),
}


def build_scalar(context: Context, kind: Any, *fields: Any) -> Any:
    pd = _pandas(context)
    np = context.library("numpy", "a pandas object")
    context.key_types.update((pd.Timestamp, pd.Timedelta, pd.Period, type(pd.NaT), type(pd.NA)))
    if kind == "NaT" and not fields:
        return pd.NaT
    if kind == "NA" and not fields:
        return pd.NA
    if kind == "Timestamp":
        moment, zone = fields
        expect(type(moment) is np.datetime64, "a moment is expected")
        stamp = pd.Timestamp(moment)
        return stamp if zone is None else stamp.tz_localize("UTC").tz_convert(_zone(context, zone))
    if kind == "Timedelta":
        (length,) = fields
        expect(type(length) is np.timedelta64, "a length of time is expected")
        return pd.Timedelta(length)
    if kind == "Period":
        ordinal, frequency = fields
        expect(
            type(ordinal) is int and type(frequency) is str and FREQUENCY.fullmatch(frequency), "a period is malformed"
        )
        return pd.Period(ordinal=ordinal, freq=frequency)
    expect(kind == "Interval" and len(fields) == 3 and fields[2] in CLOSED, "a pandas scalar is of no known kind")
    expect_key(context, fields[0])
    expect_key(context, fields[1])
    return pd.Interval(*fields[:2], closed=fields[2])


BUILDERS: dict[int, Any] = {
    tags.PD_FRAME: build_frame,
    tags.PD_SERIES: build_series,
    tags.PD_INDEX: build_index,
    tags.PD_RANGE: build_range,
    tags.PD_MULTIINDEX: build_multiindex,
    tags.PD_TIMES: build_times,
    tags.PD_ARRAY: build_array,
    tags.PD_SCALAR: build_scalar,
}
