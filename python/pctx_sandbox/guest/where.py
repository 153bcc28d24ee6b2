"""Finds where in a result a value stands, and says how to return it as data. Runs only when something is refused."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

MOST_VISITS = 1_000_000
LONGEST_KEY = 60

OPAQUE = 'return the numbers or texts that you need, or use returns="opaque" to keep it for another sandboxed call'
# By type name, most telling first; the first that matches a class of the value speaks.
HINTS = {
    "generator": "is a generator; return list(...) of it",
    "coroutine": "is a coroutine; await it before returning",
    "function": "is a function; call it and return what it gives",
    "builtin_function_or_method": "is a function; call it and return what it gives",
    "method": "is a method; call it and return what it gives",
    "module": "is a module; return the values that you need from it",
    "type": "is a class; return its __name__, or instances as plain data",
    "dict_keys": "is a view of a dict; return list(...) of it",
    "dict_values": "is a view of a dict; return list(...) of it",
    "dict_items": "is a view of a dict; return list(...) of it",
    "map": "is an iterator; return list(...) of it",
    "filter": "is an iterator; return list(...) of it",
    "zip": "is an iterator; return list(...) of it",
    "memoryview": "is a view of memory; return bytes(...) of it",
    "array": "is an array.array; return .tolist() or .tobytes() of it",
    "BaseException": "is an exception; return str(...) of it, or raise it",
    "IOBase": "is an open file; return what it contains",
    "Tensor": "is a tensor; return .detach().cpu().numpy() of it",
    "LazyFrame": "is a lazy frame; return .collect() of it",
    "spmatrix": "is a sparse matrix; return .toarray() of it",
    "sparray": "is a sparse array; return .toarray() of it",
    "SparseArray": "is sparse; return .to_dense() of it",
    "Axes": "is a part of a figure; return its .figure",
    "Match": "is a match; return .group() or .groups() of it",
    "GroupBy": "is a lazy grouping; aggregate it, or return dict(list(...)) of it",
}
BUILTINS = (dict, list, set, frozenset, tuple, str, int, float, bytes, bytearray, complex)


def name_of(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def hint_for(value: object) -> str:
    kind = type(value)
    names = [base.__name__ for base in kind.__mro__]
    for name, hint in HINTS.items():
        if name in names:
            return hint
    for builtin in BUILTINS:
        if isinstance(value, builtin):
            name = builtin.__name__
            return f"is a subclass of {name}, whose own part would be lost; return {name}(...) of it"
    return f"is not data; {OPAQUE}"


def find(result: object, wanted: object) -> str:
    """The shortest path to the value, such as `result['model'][3]`."""
    seen = {id(result)}
    queue: collections.deque[tuple[Any, str]] = collections.deque([(result, "result")])
    keep: list[object] = []  # ids are only good while the object lives
    while queue and len(seen) < MOST_VISITS:
        value, path = queue.popleft()
        if value is wanted:
            return path
        for child, step in _children(value):
            if id(child) not in seen:
                seen.add(id(child))
                keep.append(child)
                queue.append((child, path + step))
    return "a part of result"


def _children(value: Any) -> Iterator[tuple[object, str]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield key, f" key {_short(key)}"
            yield child, f"[{_short(key)}]"
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((child, f".{name}") for name, child in zip(value._fields, value, strict=False))
    elif isinstance(value, list | tuple | collections.deque):
        yield from ((child, f"[{index}]") for index, child in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((child, " element") for child in value)
    elif dataclasses.is_dataclass(value) or hasattr(type(value), "__attrs_attrs__") or hasattr(value, "model_fields"):
        yield from ((child, f".{name}") for name, child in _attributes(value))
    else:
        yield from _library_children(value)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from vars(value).items() if hasattr(value, "__dict__") else ()
    for name in getattr(type(value), "__slots__", ()):
        if hasattr(value, name):
            yield name, getattr(value, name)


def _library_children(value: Any) -> Iterator[tuple[object, str]]:
    numpy: Any = sys.modules.get("numpy")
    pandas: Any = sys.modules.get("pandas")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype == object:
        for index in numpy.ndindex(value.shape):
            yield value[index], "[" + ", ".join(map(str, index)) + "]"
    elif pandas is not None and isinstance(value, pandas.DataFrame):
        for position in range(value.shape[1]):
            yield from _column_children(value.iloc[:, position], f"[{_short(value.columns[position])}]")
    elif pandas is not None and isinstance(value, pandas.Series):
        yield from _column_children(value, "")


def _column_children(column: Any, step: str) -> Iterator[tuple[object, str]]:
    yield column.array, f"{step}.array"
    if column.dtype == object:
        yield from ((child, f"{step}.iloc[{row}]") for row, child in enumerate(column.tolist()))


def _short(key: object) -> str:
    """How a key is shown: never by a repr that the guest's classes define."""
    text = repr(key) if type(key) in (str, int, float, bool, bytes, type(None)) else f"<{type(key).__name__}>"
    return text if len(text) <= LONGEST_KEY else text[:LONGEST_KEY] + "..."
