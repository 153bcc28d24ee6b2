"""Knows when a pickled function is still good: nothing that its bytes depend on has changed since.

Looking takes about a microsecond, pickling the function again twenty. What cannot be watched cheaply (instances, the
caller's own classes and modules) gives no snapshot, and the function is then pickled for every call.
"""

from __future__ import annotations

import functools
import pickle
import re
import sys
import types
from typing import Any

import cloudpickle.cloudpickle as cp  # type: ignore[import-untyped]

from . import _modules
from .shipping import Plain, cell_value

_MISSING = object()
_STEADY = (int, str, float, bool, bytes, complex, type(None), type(...), range, re.Pattern)
_PLAIN = frozenset({int, str, float, bool, bytes, complex, type(None)})
_LARGEST_WATCHED = 4096
_MOST_WATCHED = 200


class _Unwatchable(Exception):
    pass


class Snapshot:
    """What was true when a function was pickled; `holds` says whether it still is."""

    def __init__(self, function: object, included: tuple[str, ...] = ()) -> None:
        self._included = included
        self._entries: list[tuple[dict[str, Any], str, Any]] = []
        self._functions: list[tuple[Any, ...]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._containers: list[tuple[Any, bytes]] = []
        self._modules = -1
        self._seen: set[int] = set()
        self._watch(function)
        del self._seen

    def holds(self) -> bool:
        for known, name, value in self._entries:
            if known.get(name, _MISSING) is not value:
                return False
        for function, code, defaults, keywords in self._functions:
            if (
                function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not keywords
                or function.__dict__
            ):
                return False
        for cell, value in self._cells:
            if cell_value(cell) is not value:
                return False
        for container, data in self._containers:
            if pickle.dumps(container, 5) != data:
                return False
        return self._modules < 0 or len(sys.modules) == self._modules

    def _watch(self, value: Any) -> None:
        if isinstance(value, _STEADY) and type(value) in _STEADY:
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if len(self._seen) > _MOST_WATCHED:
            raise _Unwatchable
        if isinstance(value, types.FunctionType):
            self._watch_function(value)
        elif isinstance(value, Plain):
            self._watch(value.plain_function())
        elif isinstance(value, functools.partial) and type(value) is functools.partial and not vars(value):
            self._watch(value.func)
            self._watch(value.args)
            self._watch(tuple(value.keywords.values()))
        elif type(value) in (tuple, frozenset):
            for item in value:
                self._watch(item)
        elif isinstance(value, types.ModuleType):
            if self._is_own(value.__name__):
                raise _Unwatchable
            if hasattr(value, "__path__"):
                # cloudpickle also imports those submodules that are loaded here.
                self._modules = len(sys.modules)
        elif isinstance(value, type | types.BuiltinFunctionType):
            if self._is_own(getattr(value, "__module__", None) or "builtins"):
                raise _Unwatchable
        elif type(value) in (list, dict, set) and _all_plain(value):
            data = pickle.dumps(value, 5)
            if len(data) > _LARGEST_WATCHED:
                raise _Unwatchable
            self._containers.append((value, data))
        else:
            raise _Unwatchable

    def _is_own(self, module: str | None) -> bool:
        return _modules.is_own(module, self._included)

    def _watch_function(self, function: types.FunctionType) -> None:
        if not self._is_own(function.__module__) and cp._should_pickle_by_reference(function):
            return
        if function.__dict__:
            raise _Unwatchable
        self._functions.append((function, function.__code__, function.__defaults__, function.__kwdefaults__))
        self._watch(function.__defaults__)
        keywords = function.__kwdefaults__ or {}
        for name in keywords:
            self._watch_entry(keywords, name)
        for cell in function.__closure__ or ():
            value = cell_value(cell)
            self._cells.append((cell, value))
            self._watch(value)
        for name in cp._extract_code_globals(function.__code__):
            self._watch_entry(function.__globals__, name)

    def _watch_entry(self, known: dict[str, Any], name: str) -> None:
        value = known.get(name, _MISSING)
        self._entries.append((known, name, value))
        if value is not _MISSING:
            self._watch(value)


def _all_plain(container: Any) -> bool:
    """True for a container of atoms only: its pickle is a true copy of what it holds, without running any code."""
    if len(container) > 200:
        return False
    if type(container) is dict:
        return all(type(key) in _PLAIN and type(item) in _PLAIN for key, item in container.items())
    return all(type(item) in _PLAIN for item in container)


def snapshot_of(function: object, included: tuple[str, ...] = ()) -> Snapshot | None:
    """A snapshot to keep with the function's bytes, or None if they must be made anew for every call."""
    try:
        return Snapshot(function, included)
    except (_Unwatchable, RecursionError):
        return None
