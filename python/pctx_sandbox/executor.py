"""`concurrent.futures.Executor` whose every call runs in a box of its own."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from . import _futures
from ._function import Prepared
from ._settings import Settings
from ._wrapper import Wrapper
from .decorator import Backend, Returns, _name_of, sandbox

P = ParamSpec("P")
T = TypeVar("T")


class SandboxExecutor(concurrent.futures.Executor):
    """Takes what `sandbox` takes, and `max_workers`: how many calls may run at once (the CPUs by default)."""

    def __init__(
        self,
        dependencies: Iterable[str] | None = None,
        max_workers: int | None = None,
        *,
        memory_mb: int = 1024,
        timeout_sec: float = 30,
        cpus: float = 1,
        allow_network: Iterable[str] | None = None,
        env: Mapping[str, str] | None = None,
        mnt_dir: str | os.PathLike[str] | None = None,
        include: Iterable[str] = (),
        returns: Returns = "data",
        backend: Backend = "auto",
        **more: Any,
    ) -> None:
        decorator: Any = sandbox(
            dependencies,
            memory_mb,
            timeout_sec,
            cpus,
            allow_network,
            env=env,
            mnt_dir=mnt_dir,
            include=include,
            returns=returns,
            backend=backend,
            **more,
        )
        self._settings: Settings = decorator.keywords["settings"]
        workers = _futures.check_concurrency(max_workers)
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, "pctx-sandbox executor")
        self._prepared: weakref.WeakKeyDictionary[Any, Prepared] = weakref.WeakKeyDictionary()
        self._futures: weakref.WeakSet[_futures.SandboxFuture[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Starts a call as soon as one of the workers is free. A sandboxed function keeps its own settings."""
        prepared = fn._prepared if isinstance(fn, Wrapper) else self._prepare(fn)
        first = fn._first if isinstance(fn, Wrapper) else ()
        with self._lock:
            future: _futures.SandboxFuture[T] = _futures.submit(
                lambda write, canceller: prepared.call(first + args, kwargs, write, canceller), threads=self._threads
            )
            self._futures.add(future)
        return future

    def _prepare(self, function: Callable[..., Any]) -> Prepared:
        try:
            known = self._prepared.get(function)
            if known is None:
                known = self._prepared[function] = Prepared(function, self._settings, _name_of(function))
            return known
        except TypeError:  # no weak reference, no hash: made anew each time
            return Prepared(function, self._settings, _name_of(function))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As for every executor; with `cancel_futures` also running calls are killed."""
        if cancel_futures:
            with self._lock:
                futures = list(self._futures)
            for future in futures:
                future.cancel()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
