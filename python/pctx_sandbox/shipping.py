"""Makes a call's bytes: the function by value with what it uses, the caller's own code by value, all else by name."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import os
import pickle
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle.cloudpickle as cp  # type: ignore[import-untyped]

from . import _modules
from ._arguments import _CallPickler
from .guest.arguments import HEAD, from_tag
from .guest.tags import NotData

_PREFIX = bytes(HEAD)
# A copy of the environment is a dict that repeats at least half of it; a few chosen values are the caller's decision.
_COPY_SHARE = 2
_FEWEST_COPIED = 5
_SMALL = 64


class Plain:
    """Base of wrappers that travel as the function inside them (see `_wrapper`)."""

    __slots__ = ()

    def plain_function(self) -> Callable[..., Any]:
        raise NotImplementedError


@dataclasses.dataclass
class Pickled:
    payload: bytes
    buffers: list[memoryview]
    travelled: dict[str, type]


class Refused(NotData):
    """A value of this process that must not travel, and why."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.value = value


class Shipper(_CallPickler):
    """cloudpickle that knows the caller's own modules, without registering anything for the whole process."""

    def __init__(self, file: io.BytesIO, root: object, included: tuple[str, ...] = ()) -> None:
        super().__init__(file)
        self._root = root
        self._included = included
        self._names: set[str] | None = None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Plain):  # first: one of them says that it is a function, with Python 3.10
            # The function itself is what the box gets; `copy.copy` gives a function back as it is.
            return copy.copy, (value.plain_function(),)
        if isinstance(value, types.FunctionType):
            return self._reduce_function(value)
        if isinstance(value, type):
            return self._reduce_class(value)
        if isinstance(value, types.ModuleType):
            return self._reduce_module(value)
        if isinstance(value, staticmethod | classmethod):
            base = classmethod if isinstance(value, classmethod) else staticmethod
            return base, (value.__func__,)
        refuse_live(value)
        refuse_environments(getattr(value, "__dict__", {}).values())
        return super().reducer_override(value)

    def _is_own(self, module: str | None) -> bool:
        return _modules.is_own(module, self._included)

    def _reduce_function(self, function: types.FunctionType) -> Any:
        if not self._is_own(function.__module__) and cp._should_pickle_by_reference(function):
            return NotImplemented
        refuse_environments(value for _, value in used_globals(function))
        refuse_environments(cell_value(cell) for _, cell in used_cells(function))
        refuse_environments(function.__defaults__ or ())
        refuse_environments((function.__kwdefaults__ or {}).values())
        make, args, state, items, pairs, setter = self._dynamic_function_reduce(function)
        attributes, slots = state
        # Annotations may name libraries that the box does not have, and nothing there reads them.
        slots = {**slots, "__annotations__": {}}
        attributes = {name: item for name, item in attributes.items() if name != "__wrapped__"}
        return make, args, (attributes, slots), items, pairs, setter

    def _reduce_class(self, kind: type) -> Any:
        known = super().reducer_override(kind)  # notes that the class travels
        if not self._is_own(kind.__module__) or known is not NotImplemented:
            return _without_annotations(kind, known)
        return _without_annotations(kind, cp._dynamic_class_reduce(kind))

    def _reduce_module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        if name == "__main__" or not self._is_own(name):
            return super().reducer_override(module)
        if self._names is None:
            self._names = attribute_names(self._root)
        # Only what the functions name: a settings module may hold keys that nobody asked to send.
        state = {key: item for key, item in vars(module).items() if key in self._names and not key.startswith("__")}
        refuse_environments(state.values())
        return types.ModuleType, (name,), state


def _without_annotations(kind: type, reduced: Any) -> Any:
    """Drops a plain class's annotations. Those of dataclasses, models and the like are part of what they do."""
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], tuple):
        return reduced
    if type(kind) is not type or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__attrs_attrs__"):
        return reduced
    attributes, rest = reduced[2]
    hidden = ("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__")
    attributes = {name: value for name, value in attributes.items() if name not in hidden}
    return (*reduced[:2], (attributes, rest), *reduced[3:])


def used_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The global variables that a function names, with their values; builtins and missing ones are left out."""
    known = function.__globals__
    for name in cp._extract_code_globals(function.__code__):
        if name in known:
            yield name, known[name]


def used_cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    yield from zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)


def cell_value(cell: types.CellType) -> Any:
    """What a cell holds; None for one that is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def function_of(value: object) -> types.FunctionType | None:
    """The Python function behind a wrapper, method, partial or decorator object, or None."""
    for _ in range(100):
        if isinstance(value, types.FunctionType):
            return value
        if isinstance(value, Plain):
            value = value.plain_function()
        elif isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType | staticmethod | classmethod):
            value = value.__func__
        else:
            return None
    return None


def attribute_names(root: object) -> set[str]:
    """Every name in the code that is reachable from a function: what it may ask of the caller's own modules."""
    names: set[str] = set()
    modules: list[types.ModuleType] = []
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        function = function_of(value)
        if function is not None:
            before = len(names)
            names.update(_code_names(function.__code__))
            waiting.extend(item for _, item in used_globals(function))
            waiting.extend(cell_value(cell) for _, cell in used_cells(function))
            if len(names) != before:  # a module may now give more than when it was looked at
                waiting.extend(vars(module)[name] for module in modules for name in names & vars(module).keys())
        elif isinstance(value, types.ModuleType) and _modules.is_own(value.__name__):
            modules.append(value)
            waiting.extend(vars(value)[name] for name in names & vars(value).keys())
        elif isinstance(value, type) and _modules.is_own(value.__module__):
            waiting.extend(vars(value).values())
        elif isinstance(value, tuple | list) and len(value) < 1000:
            waiting.extend(value)
    return names


def _code_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _code_names(constant)
    return names


def refuse_live(value: object) -> None:
    """Things that work in this process only. cloudpickle would send some of them: an open file as its contents."""
    kind = type(value)
    module = kind.__module__
    name = kind.__name__
    if isinstance(value, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        raise Refused(value, "is running in this process; pass list(...) of it, or what it gives")
    if module in ("sqlite3", "psycopg2.extensions", "psycopg", "_mysql_connector", "multiprocessing.connection"):
        raise Refused(value, "is a connection of this process; run the query here and pass its rows")
    if module == "threading" or (module == "concurrent.futures.thread" and name == "ThreadPoolExecutor"):
        raise Refused(value, "belongs to the threads of this process; a box has none of them")
    if module == "subprocess" and name == "Popen":
        raise Refused(value, "is a process of this program; pass its output")


def refuse_environments(values: Iterable[object]) -> None:
    """Refuses plain dicts that repeat this process's environment, also one step inside small containers."""
    for value in values:
        if type(value) is dict:
            _refuse_environment(value)
            if len(value) <= _SMALL:
                _refuse_among(value.values())
        elif isinstance(value, list | tuple) and len(value) <= _SMALL:
            _refuse_among(value)


def _refuse_among(values: Iterable[object]) -> None:
    for value in values:
        if type(value) is dict:
            _refuse_environment(value)


def _refuse_environment(value: dict[Any, Any]) -> None:
    environment = os.environ
    if len(value) < _FEWEST_COPIED or len(value) * _COPY_SHARE < len(environment):
        return
    same = sum(1 for key, item in environment.items() if value.get(key) == item)
    if same >= _FEWEST_COPIED and same * _COPY_SHARE >= len(environment):
        raise Refused(
            value,
            "is a copy of this process's environment, which never travels; pass the single values that the function "
            "needs, or env={...}",
        )


def pickle_for_box(value: object, root: object, included: tuple[str, ...] = ()) -> Pickled:
    """The bytes of a value for `guest.arguments.loads`. `root` is the function whose call this belongs to."""
    file = io.BytesIO()
    file.write(_PREFIX)
    shipper = Shipper(file, root, included)
    shipper.dump(value)
    payload = file.getvalue()
    if shipper.own:
        payload = len(shipper.own).to_bytes(HEAD, "little") + payload[HEAD:]
    return Pickled(payload, shipper.own + shipper.foreign, shipper.travelled)


_ATOMS = frozenset({int, str, float, bool, bytes, complex, type(None)})
_LONGEST_ATOM = 64 << 10


def without_tags(pickled: Pickled) -> bytes | None:
    """The bytes as any unpickler reads them, or None if tagged values are among them."""
    if pickled.buffers or from_tag.__module__.encode() in pickled.payload:
        return None
    return pickled.payload[HEAD:]


def pickle_plain(args: tuple[Any, ...], keywords: dict[str, Any]) -> bytes | None:
    """The bytes of arguments that are nothing but small atoms: no pickler of ours has to look at them."""
    for value in args:
        if type(value) not in _ATOMS or (type(value) in (str, bytes) and len(value) > _LONGEST_ATOM):
            return None
    for value in keywords.values():
        if type(value) not in _ATOMS or (type(value) in (str, bytes) and len(value) > _LONGEST_ATOM):
            return None
    return pickle.dumps((args, keywords), 5)
