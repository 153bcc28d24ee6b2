"""Says which variable or argument cannot travel. Runs only after pickling has failed, so it may take its time."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import _modules
from ._arguments import _Refused
from .errors import SerializationError
from .guest import where
from .shipping import Refused, cell_value, function_of, pickle_for_box, refuse_environments, used_cells, used_globals

HINTS = {
    "lock": "is a lock; a box has nobody to share it with",
    "socket": "is a socket; pass the data instead",
    "frame": "is a frame of this process; pass the values that you need from it",
    "traceback": "is a traceback of this process; pass its text",
    "weakref": "is a weak reference; pass the object itself",
    "ReferenceType": "is a weak reference; pass the object itself",
    "mmap": "is mapped memory; pass bytes(...) of it",
    "Future": "is a future of this process; pass its result()",
    "Task": "is a task of this process; await it and pass what it gives",
}
PASS_DATA = "pass plain data instead (numbers, texts, lists, dicts, arrays)"
DEEPEST = 6


class Part(NamedTuple):
    """One thing that travels with a call, and how a person would name it."""

    place: str
    value: Any


def parts_of_function(function: Any) -> Iterator[Part]:
    """The variables that a function brings along: globals, variables of enclosing functions, defaults."""
    python = function_of(function)
    if python is None:
        return
    name = python.__qualname__
    for variable, value in used_globals(python):
        yield Part(f"the global variable {variable!r} that {name}() uses", value)
    for variable, cell in used_cells(python):
        yield Part(f"the variable {variable!r} of the function around {name}()", cell_value(cell))
    signature = inspect.signature(python)
    for parameter in signature.parameters.values():
        if parameter.default is not parameter.empty:
            yield Part(f"the default of {name}()'s parameter {parameter.name!r}", parameter.default)


def parts_of_arguments(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Part]:
    try:
        bound = inspect.signature(function).bind(*args, **keywords)
        named = list(bound.arguments.items())
    except (TypeError, ValueError):
        named = [(str(index + 1), value) for index, value in enumerate(args)] + list(keywords.items())
    for name, value in named:
        yield Part(f"the argument {name!r}", value)


def explain(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    error: BaseException,
    included: tuple[str, ...],
) -> SerializationError:
    """The error for a call that could not be pickled: the variable or argument, its type, and what to do instead."""
    parts = [*parts_of_arguments(function, args, keywords), *parts_of_function(function)]
    found = _find(parts, function, included, DEEPEST, set())
    if found is not None:
        return found
    reason = str(error) if isinstance(error, Refused | _Refused) else f"{type(error).__name__}: {error}"
    return SerializationError(f"the call cannot travel into the box: {reason}\nhint: {PASS_DATA}")


def _find(
    parts: list[Part], root: Any, included: tuple[str, ...], depth: int, seen: set[int]
) -> SerializationError | None:
    for place, value in parts:
        if id(value) in seen:
            continue
        seen.add(id(value))
        try:
            refuse_environments([value])
            pickle_for_box(value, root, included)
        except (Refused, _Refused) as error:
            return _inner(value, root, included, depth, seen) or _refusal(place, value, error.value, str(error))
        except RecursionError:
            return SerializationError(f"{place} is nested too deeply\nhint: pass it flat")
        except Exception as error:
            return _inner(value, root, included, depth, seen) or _failure(place, value, error, root, included)
    return None


def _inner(value: Any, root: Any, included: tuple[str, ...], depth: int, seen: set[int]) -> SerializationError | None:
    """A helper function is not to blame for what it uses: the variable behind it is."""
    function = function_of(value)
    if depth <= 0 or function is None or not _modules.is_own(function.__module__, included):
        return None
    return _find(list(parts_of_function(function)), root, included, depth - 1, seen)


def _refusal(place: str, value: Any, culprit: Any, reason: str) -> SerializationError:
    inside = "" if culprit is value else f", at {where.find(value, culprit).replace('result', 'value', 1)},"
    return SerializationError(f"{place}{inside} ({where.name_of(type(culprit))}) {reason}")


def _failure(place: str, value: Any, error: Exception, root: Any, included: tuple[str, ...]) -> SerializationError:
    step, culprit = _narrow(value, root, included)
    kinds = [kind.__name__ for kind in type(culprit).__mro__]
    hint = next((text for name, text in HINTS.items() if name in kinds), f"cannot be pickled ({error}); {PASS_DATA}")
    return SerializationError(f"{place}{step} ({where.name_of(type(culprit))}) {hint}")


def _narrow(value: Any, root: Any, included: tuple[str, ...]) -> tuple[str, Any]:
    """Follows a failure into containers and attributes, one step at a time."""
    path = ""
    for _ in range(DEEPEST):
        for step, child in _children(value):
            try:
                pickle_for_box(child, root, included)
            except Exception:
                path, value = path + step, child
                break
        else:
            break
    return (f", at value{path}," if path else ""), value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r:.60}]", item) for key, item in list(value.items())[:1000])
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value[:1000]))
    elif not isinstance(value, type | types.ModuleType | types.FunctionType):
        yield from ((f".{name}", item) for name, item in list(getattr(value, "__dict__", {}).items())[:1000])
