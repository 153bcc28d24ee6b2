"""Lists what would travel with a function: the answer of `f.shipped()`."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _modules
from .guest import where
from .shipping import Plain, cell_value, function_of, pickle_for_box, used_cells, used_globals


class Shipped(NamedTuple):
    """One thing that travels: `how` is "by value" (`size` bytes), "by name" (only its name) or "included"."""

    name: str
    kind: str
    how: str
    size: int


def shipped(function: Any, included: tuple[str, ...]) -> list[Shipped]:
    """The function first, then what it uses, then included files. Raises SerializationError where a call would."""
    whole = pickle_for_box(function, function, included)
    size = len(whole.payload) + sum(buffer.nbytes for buffer in whole.buffers)
    found = [Shipped(_name_of(function), "function", "by value", size)]
    found += _used(function, function, included, set())
    found += [Shipped(path, "file", "included", len(data)) for path, data in _modules.collect_include(included).items()]
    return found


def _used(function: Any, root: Any, included: tuple[str, ...], seen: set[int]) -> Iterator[Shipped]:
    python = function_of(function)
    if python is None or id(python) in seen:
        return
    seen.add(id(python))
    variables = [*used_globals(python), *((name, cell_value(cell)) for name, cell in used_cells(python))]
    for name, value in variables:
        if id(value) in seen or function_of(value) is python:
            continue
        if isinstance(value, types.ModuleType):
            kind, module = "module", value.__name__
        elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            kind, module = "class" if isinstance(value, type) else "function", value.__module__ or "builtins"
        else:
            kind, module = (
                ("function", "__main__") if isinstance(value, Plain) else (where.name_of(type(value)), "__main__")
            )
        if not _modules.is_own(module, included):
            yield Shipped(name, kind, "by name", 0)
            continue
        pickled = pickle_for_box(value, root, included)
        yield Shipped(name, kind, "by value", len(pickled.payload) + sum(view.nbytes for view in pickled.buffers))
        yield from _used(value, root, included, seen)
        seen.add(id(value))


def _name_of(function: Any) -> str:
    python = function_of(function)
    return python.__qualname__ if python is not None else repr(function)
