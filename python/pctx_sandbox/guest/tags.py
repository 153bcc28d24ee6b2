"""The tagged values: one number for each kind of value that the format does not know by itself.

A tagged value is a tuple whose first item is the number; what follows is plain data or other tagged values. The two
sides agree on the numbers, not on names: nothing in a payload can name code. Numbers are never reused.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

# pickle's private-use extension code that stands for "a tagged value follows".
TAG_CODE = 0xF0

RECORD = 1  # the decoder knows this one: made empty, filled by one tuple, so that it may contain itself
COMPLEX = 2
RANGE = 3
SLICE = 4
DATE = 5
TIME = 6
DATETIME = 7
TIMEDELTA = 8
TIMEZONE = 9
ZONEINFO = 10
DECIMAL = 11
FRACTION = 12
UUID = 13
PATH = 14
ENUM = 15
NAMEDTUPLE = 16
PYDANTIC = 17
IMAGE = 18
OPAQUE = 19
DICT = 20  # the decoder knows these two as well: an OrderedDict, Counter, ... as the dict it is, a deque as a list
LIST = 21

NP_ARRAY = 32
NP_OBJECTS = 33
NP_SCALAR = 34

PD_FRAME = 48
PD_SERIES = 49
PD_INDEX = 50
PD_MULTIINDEX = 51
PD_RANGE = 52
PD_TIMES = 53  # DatetimeIndex and TimedeltaIndex, which may have a frequency
PD_ARRAY = 54
PD_SCALAR = 55

ARROW_TABLE = 64
ARROW_ARRAY = 65
ARROW_CHUNKED = 66
ARROW_BATCH = 67

POLARS_FRAME = 80
POLARS_SERIES = 81

Fields = tuple[Any, ...]
# What may stand for a buffer in the fields: its bytes, or the number of one that travels beside the payload.
BUFFER_THRESHOLD = 64 * 1024


class NotData(ValueError):
    """A value is not data, or fields are not what their tag promises."""


class MissingLibrary(NotData):
    """A value needs a library that is not installed where it is to be built."""

    def __init__(self, library: str, what: str) -> None:
        super().__init__(f"{what} needs {library}, which is not installed here")
        self.library = library
        self.what = what


class Put(Protocol):
    """Stores a contiguous buffer for the other side and returns what stands for it in the fields."""

    def __call__(self, buffer: memoryview, /) -> Any: ...


class Context:
    """What builders may ask for. This one trusts its input; the host's own adds limits (`pctx_sandbox._rebuild`)."""

    def __init__(self, types: Mapping[str, type] | None = None) -> None:
        self.types: Mapping[str, type] = types or {}
        # Types, beside the basic ones, whose hash runs no code but the library's own.
        self.key_types: set[type] = set()

    def charge(self, size: int) -> None:
        """Announces an allocation of `size` bytes before it is made."""

    def take(self, field: Any) -> Any:
        """The buffer behind a field, writable, owned by the value being built."""
        with memoryview(field) as view:
            writable = not view.readonly
        return field if writable else bytearray(field)

    def take_frozen(self, field: Any) -> Any:
        """The buffer behind a field, which nobody else can reach: later writes would undo what was checked."""
        return field

    def library(self, name: str, what: str) -> ModuleType:
        """Imports one of the libraries that this package names; the name is never the other side's."""
        try:
            return sys.modules.get(name) or importlib.import_module(name)
        except ImportError:
            raise MissingLibrary(name.partition(".")[0], what) from None


def charge_expanded(context: Context, value: Any) -> int:
    """Charges a nested value as often as a library that copies it will visit it; returns the number of visits.

    In Python thirty lists can hold each other a thousandfold; columns and models would write all of it out.
    """
    visits = 0
    waiting = [value]
    while waiting:
        part = waiting.pop()
        visits += 1
        context.charge(64)
        if type(part) in (str, bytes, bytearray):
            context.charge(len(part))
        elif type(part) is dict:
            waiting.extend(part)
            waiting.extend(part.values())
        elif type(part) in (list, tuple, set, frozenset):
            context.charge(8 * len(part))
            waiting.extend(part)
    return visits


def expect(condition: object, what: str) -> None:
    if not condition:
        raise NotData(what)


BASIC_KEYS = frozenset({str, int, float, bool, bytes, complex, type(None)})


def expect_key(context: Context, value: object, visits: int = 1000) -> int:
    """Refuses what may not be hashed: a label or level is plain data, so no class of the caller's runs its own code.

    Returns the visits that are left; shared tuples count as often as a hash would visit them.
    """
    if visits <= 0:
        raise NotData("a label has too many parts")
    if type(value) is tuple:
        for item in value:
            visits = expect_key(context, item, visits - 1)
    elif type(value) not in BASIC_KEYS and type(value) not in context.key_types:
        raise NotData(f"a label of type {type(value).__name__} is not plain data")
    return visits
