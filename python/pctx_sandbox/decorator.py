"""`@sandbox` and `@sandbox_async`: from a function and its settings to a function that runs in boxes."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from . import guest
from ._function import Prepared
from ._settings import Settings, make_settings
from ._wrapper import AsyncSandboxed, ClassMethod, Repair, Sandboxed, Wrapper

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Returns = Literal["data", "opaque"]
Backend = Literal["auto", "namespaces", "podman", "microvm", "lima"]


class Decorator(Protocol):
    """What `sandbox(...)` gives: it takes functions, coroutine functions, static and class methods."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is the narrower of the two
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncSandboxed[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Sandboxed[P, R]: ...


class AsyncDecorator(Protocol):
    """What `sandbox_async(...)` gives: every function becomes a coroutine function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncSandboxed[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncSandboxed[P, R]: ...


@overload
def sandbox(  # type: ignore[overload-overlap]  # a coroutine function is the narrower of the two
    dependencies: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncSandboxed[P, R]: ...
@overload
def sandbox(dependencies: Callable[P, R], /) -> Sandboxed[P, R]: ...
@overload
def sandbox(
    dependencies: Iterable[str] | None = None,
    memory_mb: int = 1024,
    timeout_sec: float = 30,
    cpus: float = 1,
    allow_network: Iterable[str] | None = None,
    disable_cache: bool = False,
    *,
    network_private: Iterable[str] = (),
    net_rate: int | str | None = None,
    net_bytes: int | str | None = None,
    net_connections: int | None = None,
    pids: int = 64,
    disk_mb: int = 256,
    inodes: int = 20000,
    output_mb: float = 16,
    cpu_time_sec: float | None = None,
    env: Mapping[str, str] | None = None,
    mnt_dir: str | os.PathLike[str] | None = None,
    include: Iterable[str] = (),
    returns: Returns = "data",
    backend: Backend = "auto",
    build_timeout_sec: float = 600,
    queue_timeout_sec: float = 60,
    require: Iterable[str] = (),
    allow_degraded: Iterable[str] = (),
) -> Decorator: ...
def sandbox(
    dependencies: Any = None,
    memory_mb: int = 1024,
    timeout_sec: float = 30,
    cpus: float = 1,
    allow_network: Iterable[str] | None = None,
    disable_cache: bool = False,
    *,
    network_private: Iterable[str] = (),
    net_rate: int | str | None = None,
    net_bytes: int | str | None = None,
    net_connections: int | None = None,
    pids: int = 64,
    disk_mb: int = 256,
    inodes: int = 20000,
    output_mb: float = 16,
    cpu_time_sec: float | None = None,
    env: Mapping[str, str] | None = None,
    mnt_dir: str | os.PathLike[str] | None = None,
    include: Iterable[str] = (),
    returns: str = "data",
    backend: str = "auto",
    build_timeout_sec: float = 600,
    queue_timeout_sec: float = 60,
    require: Iterable[str] = (),
    allow_degraded: Iterable[str] = (),
) -> Any:
    """Runs a function in a box that has never run anything else. Use it bare, or with what the function may have.

    `dependencies` are requirements from the package index, installed once for all functions that ask for the same.
    Limits: `memory_mb`, `timeout_sec` (from the function's start), `cpus`, `pids`, `disk_mb`, `inodes`, `output_mb`,
    `cpu_time_sec`; building and waiting have `build_timeout_sec` and `queue_timeout_sec`. `env` are variables inside,
    `mnt_dir` a folder lent read-write, `include` own packages to ship, `returns="opaque"` keeps the result sealed.
    `allow_network` names the hosts that can be reached ("api.example.com", "*.example.org:443"), `network_private`
    ranges that stay closed otherwise; `net_rate` bounds bytes per second, `net_bytes` what may leave in all,
    `net_connections` how many connections may be open at once.
    """
    if isinstance(dependencies, type):
        _check_function(dependencies)
    function = dependencies if _is_function(dependencies) else None
    settings = make_settings(
        dependencies=None if function is not None else dependencies,
        memory_mb=memory_mb,
        timeout_sec=timeout_sec,
        cpus=cpus,
        allow_network=allow_network,
        network_private=network_private,
        net_rate=net_rate,
        net_bytes=net_bytes,
        net_connections=net_connections,
        disable_cache=disable_cache,
        pids=pids,
        disk_mb=disk_mb,
        inodes=inodes,
        output_mb=output_mb,
        cpu_time_sec=cpu_time_sec,
        env=env,
        mnt_dir=mnt_dir,
        include=include,
        returns=returns,
        backend=backend,
        build_timeout_sec=build_timeout_sec,
        queue_timeout_sec=queue_timeout_sec,
        require=require,
        allow_degraded=allow_degraded,
    )
    if function is not None:
        return wrap(function, settings, always_async=False)
    return functools.partial(wrap, settings=settings, always_async=False)


@overload
def sandbox_async(dependencies: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncSandboxed[P, R]: ...
@overload
def sandbox_async(dependencies: Callable[P, R], /) -> AsyncSandboxed[P, R]: ...
@overload
def sandbox_async(
    dependencies: Iterable[str] | None = None,
    memory_mb: int = 1024,
    timeout_sec: float = 30,
    cpus: float = 1,
    allow_network: Iterable[str] | None = None,
    disable_cache: bool = False,
    **more: Any,
) -> AsyncDecorator: ...
def sandbox_async(dependencies: Any = None, *args: Any, **settings: Any) -> Any:
    """Like `sandbox`, and the result is always awaited: also a plain function then leaves the event loop free."""
    if _is_function(dependencies):
        inner: Any = sandbox(*args, **settings)
        return wrap(dependencies, inner.keywords["settings"], always_async=True)
    inner = sandbox(dependencies, *args, **settings)
    return functools.partial(wrap, settings=inner.keywords["settings"], always_async=True)


def _is_function(value: object) -> bool:
    return isinstance(value, staticmethod | classmethod) or (callable(value) and not isinstance(value, type))


def wrap(function: Any, settings: Settings, always_async: bool) -> Any:
    """The wrapper of one function; inside a box the function itself."""
    if guest.INSIDE:
        return function
    if isinstance(function, staticmethod):
        return staticmethod(wrap(function.__func__, settings, always_async))
    if isinstance(function, classmethod):
        return ClassMethod(wrap(function.__func__, settings, always_async))
    _check_function(function)
    prepared = Prepared(function, settings, _name_of(function))
    made: Wrapper = AsyncSandboxed(prepared) if always_async or prepared.coroutine else Sandboxed(prepared)
    if sys.version_info >= (3, 13):
        _leave_repair(made)
    return made


def _check_function(function: Any) -> None:
    if isinstance(function, type):
        raise TypeError(f"sandbox takes functions, and {function.__name__} is a class; decorate its methods instead")
    if not callable(function):
        raise TypeError(f"sandbox takes a function, not {type(function).__name__}")
    if isinstance(function, Wrapper):
        raise TypeError(f"{function.__name__}() is sandboxed already; decorate it once")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{_name_of(function)}() is a generator function, and a result leaves its box as a whole; "
            "return a list instead of yielding"
        )


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _leave_repair(made: Wrapper) -> None:
    """Since 3.13 a classmethod binds no descriptors; if this is a class's body, look at it again when it is done."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or "__qualname__" not in frame.f_locals or "__module__" not in frame.f_locals:
        return
    if made.__qualname__ == f"{frame.f_locals['__qualname__']}.{made.__name__}":
        frame.f_locals[f"_pctx_sandbox_{made.__name__}"] = Repair(made, made.__name__)
