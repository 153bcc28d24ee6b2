"""Values of the standard library: how each is taken apart, and how it is put together again."""

from __future__ import annotations

import datetime
import decimal
import fractions
import functools
import pathlib
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any

from . import tags
from .tags import Context, Fields, NotData, expect

ZONE_KEY = re.compile(r"[A-Za-z0-9_+\-]{1,32}(/[A-Za-z0-9_+\-]{1,32}){0,2}")
PATHS: dict[str, type[pathlib.PurePath]] = {
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
    "PosixPath": pathlib.PosixPath,
}
# Reducing a fraction takes time that grows with the square of its digits.
FRACTION_BITS = 100_000
LONGEST_PATH = 4096


def describe_timezone(value: datetime.tzinfo) -> Fields:
    """A zone by its key where it has one (zoneinfo, pytz), else by its offset. Others have rules that are code."""
    key = getattr(value, "key", None) or getattr(value, "zone", None)
    if isinstance(key, str) and ZONE_KEY.fullmatch(key):
        return tags.ZONEINFO, key
    if type(value) is datetime.timezone:
        name = None if value == datetime.timezone.utc else value.tzname(None)
        return tags.TIMEZONE, value.utcoffset(None), name
    module = type(value).__module__
    if module.startswith(("pytz", "dateutil")) and type(value).__name__ in ("_FixedOffset", "tzutc", "tzoffset"):
        return tags.TIMEZONE, value.utcoffset(None), None
    raise NotData(f"a time zone of type {type(value).__qualname__} has no key; use zoneinfo.ZoneInfo(...)")


def _describe_datetime(value: datetime.datetime) -> Fields:
    date = (value.year, value.month, value.day)
    return (tags.DATETIME, *date, value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold)


def _describe_time(value: datetime.time) -> Fields:
    return tags.TIME, value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold


# By exact type, since this is asked for every value that is not a builtin one.
DESCRIBERS: dict[type, Callable[[Any], Fields]] = {
    complex: lambda value: (tags.COMPLEX, value.real, value.imag),
    range: lambda value: (tags.RANGE, value.start, value.stop, value.step),
    slice: lambda value: (tags.SLICE, value.start, value.stop, value.step),
    datetime.date: lambda value: (tags.DATE, value.toordinal()),
    datetime.time: _describe_time,
    datetime.datetime: _describe_datetime,
    datetime.timedelta: lambda value: (tags.TIMEDELTA, value.days, value.seconds, value.microseconds),
    decimal.Decimal: lambda value: (tags.DECIMAL, str(value)),
    fractions.Fraction: lambda value: (tags.FRACTION, value.numerator, value.denominator),
    uuid.UUID: lambda value: (tags.UUID, value.int, value.is_safe.name),
    **{kind: lambda value: (tags.PATH, type(value).__name__, str(value)) for kind in PATHS.values()},
}


def describe(value: object) -> Fields | None:
    """The fields of a value of the standard library, or None for any other."""
    describer = DESCRIBERS.get(type(value))
    if describer is not None:
        return describer(value)
    return describe_timezone(value) if isinstance(value, datetime.tzinfo) else None


def _ints(*values: object) -> None:
    expect(all(type(value) is int for value in values), "a number is expected")


def build_complex(context: Context, real: Any, imag: Any) -> complex:
    expect(type(real) is float and type(imag) is float, "a complex number has two floats")
    return complex(real, imag)


def build_range(context: Context, start: Any, stop: Any, step: Any) -> range:
    _ints(start, stop, step)
    return range(start, stop, step)


def build_slice(context: Context, start: Any, stop: Any, step: Any) -> slice:
    for part in (start, stop, step):
        # Leaves only: slices are freed by recursion without a guard, so nested ones could overflow the C stack.
        plain = type(part) in tags.BASIC_KEYS or type(part) in context.key_types
        expect(plain and not isinstance(part, tuple), "a slice has numbers, texts or dates as its ends")
    return slice(start, stop, step)


def build_date(context: Context, ordinal: Any) -> datetime.date:
    _ints(ordinal)
    return datetime.date.fromordinal(ordinal)


def _zone(zone: object) -> None:
    zoneinfo = sys.modules.get("zoneinfo")
    known = (type(None), datetime.timezone, getattr(zoneinfo, "ZoneInfo", type(None)))
    expect(type(zone) in known, "a time zone is expected")


def build_time(context: Context, *fields: Any) -> datetime.time:
    *parts, zone, fold = fields
    _ints(*parts, fold)
    _zone(zone)
    hour, minute, second, microsecond = parts
    return datetime.time(hour, minute, second, microsecond, zone, fold=fold)


def build_datetime(context: Context, *fields: Any) -> datetime.datetime:
    *parts, zone, fold = fields
    _ints(*parts, fold)
    _zone(zone)
    year, month, day, hour, minute, second, microsecond = parts
    return datetime.datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def build_timedelta(context: Context, days: Any, seconds: Any, microseconds: Any) -> datetime.timedelta:
    _ints(days, seconds, microseconds)
    return datetime.timedelta(days, seconds, microseconds)


def build_timezone(context: Context, offset: Any, name: Any) -> datetime.timezone:
    expect(type(offset) is datetime.timedelta and type(name) in (str, type(None)), "a time zone has an offset")
    if name is None:
        return datetime.timezone(offset)  # UTC itself for an offset of nothing
    return datetime.timezone(offset, name)


@functools.lru_cache(maxsize=1)
def _known_zones() -> frozenset[str]:
    import zoneinfo

    return frozenset(zoneinfo.available_timezones())


def build_zoneinfo(context: Context, key: Any) -> datetime.tzinfo:
    # zoneinfo looks a key up as a file and as a package of tzdata: only keys that exist get that far.
    expect(type(key) is str and ZONE_KEY.fullmatch(key), "a time zone's key is expected")
    if key not in _known_zones():
        raise NotData(f"time zone {key!r} is not known here; install tzdata")
    import zoneinfo

    return zoneinfo.ZoneInfo(key)


def build_decimal(context: Context, text: Any) -> decimal.Decimal:
    expect(type(text) is str, "a decimal's text is expected")
    context.charge(len(text))
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise NotData("a decimal's text is malformed") from None


def build_fraction(context: Context, numerator: Any, denominator: Any) -> fractions.Fraction:
    _ints(numerator, denominator)
    small = max(numerator.bit_length(), denominator.bit_length()) <= FRACTION_BITS
    expect(small and denominator > 0, f"a fraction's parts are at most {FRACTION_BITS} bits long")
    return fractions.Fraction(numerator, denominator)


def build_uuid(context: Context, number: Any, safe: Any) -> uuid.UUID:
    _ints(number)
    expect(safe in ("safe", "unsafe", "unknown"), "a UUID's safety is expected")
    return uuid.UUID(int=number, is_safe=uuid.SafeUUID[safe])


def build_path(context: Context, kind: Any, text: Any) -> pathlib.PurePath:
    expect(type(kind) is str and kind in PATHS and type(text) is str, "a path's kind and text are expected")
    # pathlib keeps the parts of every path for ever on some versions: no more than a kernel takes.
    expect(len(text) <= LONGEST_PATH, f"a path is at most {LONGEST_PATH} characters long")
    context.charge(100 * (1 + text.count("/")) + 4 * len(text))
    return PATHS[kind](text)


BUILDERS: dict[int, Any] = {
    tags.COMPLEX: build_complex,
    tags.RANGE: build_range,
    tags.SLICE: build_slice,
    tags.DATE: build_date,
    tags.TIME: build_time,
    tags.DATETIME: build_datetime,
    tags.TIMEDELTA: build_timedelta,
    tags.TIMEZONE: build_timezone,
    tags.ZONEINFO: build_zoneinfo,
    tags.DECIMAL: build_decimal,
    tags.FRACTION: build_fraction,
    tags.UUID: build_uuid,
    tags.PATH: build_path,
}

KEY_TYPES: frozenset[type] = frozenset(
    {
        complex,
        range,
        datetime.date,
        datetime.time,
        datetime.datetime,
        datetime.timedelta,
        datetime.timezone,
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
        *PATHS.values(),
    }
)
