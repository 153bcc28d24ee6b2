"""A function made ready for calls: its bytes, packets and Environment, each made once and kept while it holds."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import pickle
import types
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from . import _backend, _diagnose, _modules, _program, _raised, client
from ._allowed import allowed_types
from ._environment import Environment, environment_for
from ._output import Output, Write, write_through
from ._settings import MIB, Settings
from ._snapshot import Snapshot, snapshot_of
from .errors import SerializationError
from .guest import wire
from .shipping import (
    Pickled,
    Refused,
    function_of,
    pickle_for_box,
    pickle_plain,
    refuse_environments,
    used_globals,
    without_tags,
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Result(Generic[T]):
    """What a call gave: its value, what it printed, what was enforced and used, and files it left in `mnt_dir`."""

    value: T
    stdout: str
    stderr: str
    receipt: dict[str, Any]
    files: tuple[str, ...]


class _Head(NamedTuple):
    """The part of a call that is the same every time."""

    data: bytes
    without_arguments: list[bytes]  # the whole call, ready to be sent
    travelled: dict[str, type]
    snapshot: Snapshot
    include: object


class Prepared:
    """One function with one set of settings. Threads share it; at worst two of them make the same bytes."""

    def __init__(self, function: Callable[..., Any], settings: Settings, name: str) -> None:
        self.function = function
        self.settings = settings
        self.name = name
        self.coroutine = inspect.iscoroutinefunction(function_of(function) or function)
        self._head: _Head | None = None
        self._spec: tuple[Environment, client.LeaseSpec] | None = None
        self._output_bytes = int(settings.output_mb * MIB)

    @functools.cached_property
    def _returned(self) -> dict[str, type]:
        return allowed_types(function_of(self.function) or self.function)

    @functools.cached_property
    def _files(self) -> frozenset[str]:
        """Sources that travel as code and that this process may therefore quote in a traceback."""
        found: set[str] = set()
        waiting: list[Any] = [self.function]
        seen: set[int] = set()
        while waiting and len(seen) < 1000:
            value = waiting.pop()
            function = function_of(value)
            members = vars(value).values() if isinstance(value, type | types.ModuleType) else ()
            if id(value) in seen or (function is None and not members):
                continue
            seen.add(id(value))
            if function is not None and _modules.is_own(function.__module__, self.settings.include):
                found.add(function.__code__.co_filename)
                waiting.extend(item for _, item in used_globals(function))
            elif members and _modules.is_own(getattr(value, "__module__", None) or value.__name__):
                waiting.extend(members)
        return frozenset(found)

    def call(
        self,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        write: Write = write_through,
        canceller: client.Canceller | None = None,
    ) -> Any:
        """Runs the function in a box and returns its value."""
        output = Output(self._output_bytes, write)
        return self._execute(args, keywords, output, False, canceller)[0]

    def run(
        self,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        write: Write = write_through,
        canceller: client.Canceller | None = None,
    ) -> Result[Any]:
        """The same, with everything that is known about the call."""
        output = Output(self._output_bytes, write, keep=True)
        value, end = self._execute(args, keywords, output, True, canceller)
        receipt = end.get("receipt")
        if isinstance(receipt, dict) and self._spec is not None:
            receipt["backend"] = self._spec[1].backend.shown()
        if isinstance(receipt, dict) and isinstance(receipt.get("usage"), dict):
            # What went through our own hands, the Broker cannot know.
            receipt["usage"].update(stdout_bytes=output.bytes["stdout"], stderr_bytes=output.bytes["stderr"])
        return Result(
            value,
            output.text("stdout"),
            output.text("stderr"),
            receipt if isinstance(receipt, dict) else {},
            _changed_files(end),
        )

    def _execute(
        self,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        output: Output,
        want_end: bool,
        canceller: client.Canceller | None,
    ) -> tuple[Any, dict[str, Any]]:
        spec = self._lease_spec(canceller)
        call, types_back = self._encode(args, keywords)
        try:
            # Whoever has lent a folder looks into it next: with the end of the box, nothing of it writes any more.
            if spec.lent is None:
                until_end = want_end or self.settings.mnt_dir is not None
                answer, buffers, end = client.execute(spec, call, output, until_end, canceller)
            else:
                with spec.lent.lend() as changed:
                    answer, buffers, end = client.execute(spec, call, output, True, canceller)
                end = {**end, "changed": changed}
        finally:
            if call.fd >= 0:
                os.close(call.fd)
        if answer.kind == wire.VALUE:
            from ._results import decode

            return decode(bytes(answer.body), buffers, types=types_back), end
        if answer.kind == wire.RAISED:
            raise _raised.raised(bytes(answer.body), self.name, self.settings, self._files)
        if answer.kind == wire.REFUSED:
            raise _raised.refused(bytes(answer.body), self.name)
        raise _raised.malformed("an answer of this type is not used")

    # ------------------------------------------------------------------ bytes

    def _encode(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[client.Call, dict[str, type]]:
        head = self._head
        include = _modules.include_signature(self.settings.include) if self.settings.include else None
        if head is None or head.include != include or not head.snapshot.holds():
            head = self._head = self._make_head(include)
        if head is not None and not args and not keywords:
            return client.Call(self.name, self.settings, head.without_arguments), head.travelled
        plain = pickle_plain(args, keywords) if head is not None else None
        if head is not None and plain is not None:
            header = wire.pack_header(wire.CALL, len(head.data) + len(plain))
            return client.Call(self.name, self.settings, [header, head.data, plain]), head.travelled
        return self._encode_together(args, keywords)

    def _make_head(self, include: object) -> _Head | None:
        snapshot = snapshot_of(self.function, self.settings.include)
        if snapshot is None:
            return None
        pickled = self._pickle(self.function, (), {})
        function = without_tags(pickled)
        if function is None:
            return None
        travelled = {**self._returned, **pickled.travelled}
        options = self._options(travelled)
        prefix = wire.PARTS.pack(len(options) | wire.PLAIN, len(function) | wire.PLAIN)
        data = prefix + options + function
        nothing = pickle_plain((), {}) or b""
        whole = [wire.pack_header(wire.CALL, len(data) + len(nothing)) + data + nothing]
        return _Head(data, whole, travelled, snapshot, include)

    def _encode_together(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[client.Call, dict[str, type]]:
        """Function and arguments in one pickle, so that what they share inside is shared there too."""
        self._refuse_environments(args, keywords)
        pickled = self._pickle((self.function, args, keywords), args, keywords)
        travelled = {**self._returned, **pickled.travelled}
        options = self._options(travelled)
        body = [wire.PARTS.pack(len(options), len(pickled.payload)), options, pickled.payload]
        fd = -1
        table: list[tuple[int, int]] = []
        if pickled.buffers:
            from ._buffers import pack

            fd, table = pack(pickled.buffers)
        header = wire.pack_header(wire.CALL, sum(map(len, body)), len(table), fd >= 0) + wire.pack_table(table)
        return client.Call(self.name, self.settings, [header, *body], fd), travelled

    def _refuse_environments(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        try:
            refuse_environments((*args, *keywords.values()))
        except Refused as error:
            raise _diagnose.explain(self.function, args, keywords, error, self.settings.include) from None

    def _pickle(self, value: object, args: tuple[Any, ...], keywords: dict[str, Any]) -> Pickled:
        try:
            return pickle_for_box(value, self.function, self.settings.include)
        except SerializationError:
            raise
        except Exception as error:
            raise _diagnose.explain(self.function, args, keywords, error, self.settings.include) from error

    def _options(self, travelled: dict[str, type]) -> bytes:
        options: dict[str, Any] = {"cpus": self.settings.cpus}
        if self.coroutine:
            options["coroutine"] = True
        if self.settings.returns != "data":
            options["returns"] = self.settings.returns
        if travelled:
            options["allowed"] = tuple(sorted(travelled))
        if self.settings.include:
            options["include"] = _modules.collect_include(self.settings.include)
        return pickle.dumps(options, 5)

    # ---------------------------------------------------------------- packets

    def _lease_spec(self, canceller: client.Canceller | None) -> client.LeaseSpec:
        known = self._spec
        if (
            known is not None
            and (known[0].path is None or os.path.isdir(known[0].path))
            and not (known[1].lent is not None and known[1].lent.spoiled)
        ):
            return known[1]
        _program.require_linux()
        backend = _backend.resolve(self.settings.backend)
        environment = environment_for(
            self.settings, backend.name, canceller.register if canceller is not None else None
        )
        spec = make_spec(environment, self.settings, backend)
        self._spec = environment, spec
        return spec


def make_spec(environment: Environment, settings: Settings, backend: _backend.Backend) -> client.LeaseSpec:
    """The packets that ask for a lease, and that end one and ask for the next."""
    import cloudpickle  # type: ignore[import-untyped]

    here = os.path.dirname(os.path.abspath(__file__))
    policy = settings.policy()
    lent = None
    if settings.mnt_dir is not None and backend.lent[0]:
        from ._lent import lent_folder

        lent = lent_folder(settings.mnt_dir, backend)
        policy["files"] = {"mnt": lent.seen}
    lease = {
        "version": _program.VERSION,
        "python": environment.python,
        "environment": environment.path,
        "generation": environment.generation,
        "preload": list(environment.preload),
        "policy": policy,
        "queue_timeout_ms": int(settings.queue_timeout_sec * 1000),
        "support": [
            backend.see_support(here),
            backend.see_support(os.path.dirname(os.path.abspath(cloudpickle.__file__))),
        ],
    }
    return client.LeaseSpec(
        backend,
        json.dumps({"lease": lease}).encode(),
        json.dumps({"done": {}, "lease": lease}).encode(),
        settings.queue_timeout_sec,
        lent,
    )


def _changed_files(end: dict[str, Any]) -> tuple[str, ...]:
    changed = end.get("changed")
    if not isinstance(changed, dict):
        return ()
    names = [*(changed.get("created") or ()), *(changed.get("modified") or ())]
    return tuple(sorted(name for name in names if isinstance(name, str)))
