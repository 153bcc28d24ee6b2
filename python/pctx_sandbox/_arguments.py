"""Takes a call apart for the box: cloudpickle for code, tagged data for arrays, frames and tables.

An array of numpy 2 does not unpickle under numpy 1, and pandas pickles name private functions. As tagged data both are
built by the public constructors of whatever version the Environment has.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import pickle
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ._opaque import Opaque
from .errors import SerializationError
from .guest import records, where
from .guest.arguments import HEAD, describe_for_box, from_tag, open_opaque
from .guest.tags import BUFFER_THRESHOLD, NotData

LOCKS = (type(threading.Lock()), type(threading.RLock()))


@dataclasses.dataclass
class EncodedCall:
    """`travelled` holds the classes that went along, by key: their instances may come back."""

    payload: bytes
    buffers: list[memoryview]
    travelled: dict[str, type]


class _Refused(NotData):
    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.value = value


class _CallPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep_foreign)
        self.own: list[memoryview] = []
        self.foreign: list[memoryview] = []
        self.travelled: dict[str, type] = {}

    def _keep_foreign(self, buffer: pickle.PickleBuffer) -> bool:
        """pickle's own out-of-band buffers, of classes that we do not know. True keeps a small one in the payload."""
        view = buffer.raw()
        if view.nbytes > BUFFER_THRESHOLD:
            self.foreign.append(view)
            return False
        return True

    def _put(self, buffer: memoryview) -> bytes | int:
        if buffer.nbytes <= BUFFER_THRESHOLD:
            return buffer.tobytes()
        self.own.append(buffer)
        return len(self.own) - 1

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type):
            if records.family_of(value) is not None:
                self.travelled[records.key_of(value)] = value
            return super().reducer_override(value)
        if type(value) is Opaque:
            return open_opaque, (self._put(memoryview(bytes(value))),)
        _refuse_live(value)
        try:
            fields = describe_for_box(value, self._put)
        except NotData:
            fields = None  # a masked array, a sparse column, ...: what pickle makes of it, for the same versions
        if fields is not None:
            return from_tag, fields
        return super().reducer_override(value)


def _refuse_live(value: object) -> None:
    """Things of this process that must not, or cannot, go into a box."""
    if isinstance(value, type(os.environ)):
        raise _Refused(value, "is the environment of this process; pass the single values that the function needs")
    if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
        raise _Refused(value, "is an open file; pass its contents, or the folder with mnt_dir=")
    if isinstance(value, socket.socket):
        raise _Refused(value, "is a socket; pass the data instead, or what the function may contact")
    if isinstance(value, LOCKS):
        raise _Refused(value, "is a lock; a box has nobody to share it with")


def encode_call(call: object) -> EncodedCall:
    """The function and its arguments (any object that cloudpickle takes) for `guest.arguments.loads`."""
    file = io.BytesIO()
    file.write(bytes(HEAD))
    pickler = _CallPickler(file)
    try:
        pickler.dump(call)
    except _Refused as error:
        raise SerializationError(
            f"{place_of(call, error.value)} ({where.name_of(type(error.value))}) {error}"
        ) from None
    except RecursionError:
        raise SerializationError("an argument is nested too deeply\nhint: pass it flat") from None
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        raise SerializationError(f"the call cannot travel: {error}\nhint: pass plain data instead") from error
    payload = file.getbuffer()
    payload[:HEAD] = len(pickler.own).to_bytes(HEAD, "little")
    payload.release()
    return EncodedCall(file.getvalue(), pickler.own + pickler.foreign, pickler.travelled)


def place_of(call: object, value: object) -> str:
    """Where in the call a value stands: `call['data'][3]`, or a variable that the function uses."""
    place = where.find(call, value)
    return "a variable of the function" if place == "a part of result" else place.replace("result", "call", 1)


@functools.lru_cache(maxsize=256)
def dependency_for(module: str) -> str:
    """The `dependencies=` entry that provides a module, by what is installed here: sklearn comes from scikit-learn."""
    names = installed_modules().get(module, [])
    return names[0] if names else module


@functools.lru_cache(maxsize=1)
def installed_modules() -> Mapping[str, list[str]]:
    """The top-level modules that this program could import, each with the distributions that provide it."""
    import importlib.metadata  # it takes as long to load as the rest of the package

    if sys.version_info >= (3, 11):
        return importlib.metadata.packages_distributions()
    # Before that it knows only those that list their modules themselves, which few still do.
    found: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.suffix == ".py" and not file.is_absolute() and ".." not in file.parts:
                top = file.parts[0] if len(file.parts) > 1 else file.stem
                if top.isidentifier() and distribution.metadata["Name"] not in found.setdefault(top, []):
                    found[top].append(distribution.metadata["Name"])
    return found


def missing_library(library: str, what: str) -> SerializationError:
    """What the caller sees when the Environment lacks a library that an argument needs."""
    entry = dependency_for(library)
    return SerializationError(
        f"the call carries {what}, and the Environment has no {library}\n"
        f"hint: add {entry!r} to dependencies=, or pass plain data (lists, dicts, numbers)"
    )
