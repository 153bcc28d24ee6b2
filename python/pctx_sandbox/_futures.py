"""Calls in the background: futures whose cancelling kills the Worker, the threads behind them, ordered maps."""

from __future__ import annotations

import collections
import collections.abc
import concurrent.futures
import contextlib
import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ._output import Write, write_through
from .client import Canceller

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
MOST_THREADS = 128
# How many results may wait, per call in flight, for a slow one before them.
BUFFERED = 4

Work = Callable[[Write, Canceller], T]


class SandboxFuture(concurrent.futures.Future[T]):
    """A future that can be cancelled at any moment before its result: a running call is killed in its box."""

    def __init__(self) -> None:
        super().__init__()
        self.canceller = Canceller()
        self._active = False
        self._notified = False

    def cancel(self) -> bool:
        # The base class refuses once a future is RUNNING; ours stays PENDING until its result is there.
        if not super().cancel():
            return False
        if not self._notified:
            self._notified = True
            self.set_running_or_notify_cancel()
            self.canceller.cancel()
        return True

    def running(self) -> bool:
        return self._active and not self.done()

    def work(self, function: Work[T], write: Write) -> None:
        if self.cancelled():
            return
        self._active = True
        try:
            value = function(write, self.canceller)
        except BaseException as error:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                self.set_exception(error)
        else:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                self.set_result(value)


_lock = threading.Lock()
_pool: concurrent.futures.ThreadPoolExecutor | None = None


def _after_fork() -> None:
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _threads() -> concurrent.futures.ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = concurrent.futures.ThreadPoolExecutor(MOST_THREADS, "pctx-sandbox call")
        return _pool


def submit(
    function: Work[T],
    write: Write = write_through,
    threads: concurrent.futures.ThreadPoolExecutor | None = None,
) -> SandboxFuture[T]:
    """Starts the work on a thread of its own as soon as one is free."""
    future: SandboxFuture[T] = SandboxFuture()
    (threads or _threads()).submit(future.work, function, write)
    return future


async def wait_for(function: Work[T]) -> T:
    """Awaits the work; what it prints appears in the event loop's thread. Cancelling the task kills the Worker."""
    import asyncio  # only callers with an event loop pay for it

    loop = asyncio.get_running_loop()

    def write(name: str, text: str) -> None:
        loop.call_soon_threadsafe(write_through, name, text)

    return await asyncio.wrap_future(submit(function, write))


def default_concurrency() -> int:
    with contextlib.suppress(AttributeError, OSError):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def check_concurrency(concurrency: int | None) -> int:
    if concurrency is None:
        return default_concurrency()
    if isinstance(concurrency, bool) or not isinstance(concurrency, int):
        raise TypeError(f"concurrency takes a whole number or None, not {concurrency!r}")
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency} is too small; it must be at least 1")
    return concurrency


def _bar(iterable: Iterable[Any], progress: bool) -> Any:
    if not progress:
        return None
    from tqdm.auto import tqdm

    return tqdm(total=len(iterable) if isinstance(iterable, collections.abc.Sized) else None)


def ordered_map(
    start: Callable[[Any], SandboxFuture[T]], iterable: Iterable[Any], concurrency: int | None, progress: bool
) -> Iterator[T]:
    """Results in the order of the items. The first calls start at once; leaving the loop early cancels the rest."""
    limit = check_concurrency(concurrency)
    items = iter(iterable)
    pending = collections.deque(start(item) for item in itertools.islice(items, limit))
    return _results(start, items, pending, limit, _bar(iterable, progress))


def _refill(start: Callable[[Any], Any], items: Iterator[Any], pending: collections.deque[Any], limit: int) -> None:
    running = sum(1 for future in pending if not future.done())
    for item in itertools.islice(items, max(0, min(limit - running, limit * BUFFERED - len(pending)))):
        pending.append(start(item))


def _results(
    start: Callable[[Any], SandboxFuture[T]],
    items: Iterator[Any],
    pending: collections.deque[SandboxFuture[T]],
    limit: int,
    bar: Any,
) -> Iterator[T]:
    try:
        while pending:
            while not pending[0].done():
                running = [future for future in pending if not future.done()]
                concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                _refill(start, items, pending, limit)
            value = pending.popleft().result()
            _refill(start, items, pending, limit)
            if bar is not None:
                bar.update()
            yield value
    finally:
        for future in pending:
            future.cancel()
        if bar is not None:
            bar.close()


async def ordered_map_async(
    start: Callable[[Any], Any], iterable: Iterable[Any], concurrency: int | None, progress: bool
) -> AsyncIterator[Any]:
    """The same for an event loop; `start` gives awaitables."""
    import asyncio

    limit = check_concurrency(concurrency)
    items = iter(iterable)
    bar = _bar(iterable, progress)
    pending: collections.deque[asyncio.Future[Any]] = collections.deque()
    _refill(lambda item: asyncio.ensure_future(start(item)), items, pending, limit)
    try:
        while pending:
            while not pending[0].done():
                running = [task for task in pending if not task.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                _refill(lambda item: asyncio.ensure_future(start(item)), items, pending, limit)
            value = pending.popleft().result()
            _refill(lambda item: asyncio.ensure_future(start(item)), items, pending, limit)
            if bar is not None:
                bar.update()
            yield value
    finally:
        for task in pending:
            task.cancel()
        if bar is not None:
            bar.close()
