"""What `@sandbox` makes of a function: callable as before, with `.run`, `.submit`, `.map` and `.shipped`."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from . import _futures
from ._function import Prepared, Result
from ._report import Shipped, shipped
from .shipping import Plain, function_of

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class Wrapper(Plain):
    """What both kinds share: they look like the function, pickle by name, and bind like a method."""

    # Slots, so that decorators which copy __dict__ copy the function's attributes and nothing of ours.
    __slots__ = ("__dict__", "__weakref__", "_first", "_prepared")

    _prepared: Prepared
    _first: tuple[Any, ...]
    __name__: str
    __qualname__: str

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._first = ()
        functools.update_wrapper(self, prepared.function)  # type: ignore[arg-type]
        if not hasattr(prepared.function, "__name__"):  # a partial, an instance with __call__
            self.__name__ = self.__qualname__ = prepared.name

    def plain_function(self) -> Callable[..., Any]:
        function = self._prepared.function
        return functools.partial(function, *self._first) if self._first else function

    @property
    def _is_sandboxed(self) -> bool:
        return True

    @property
    def _sandbox_config(self) -> dict[str, Any]:
        return self._prepared.settings.public()

    # With these four `inspect` takes the wrapper for a function, and answers as for the original.
    @property
    def __code__(self) -> types.CodeType:
        function = function_of(self._prepared.function)
        if function is None:
            raise AttributeError("__code__")
        return function.__code__

    @property
    def __defaults__(self) -> tuple[Any, ...] | None:
        return getattr(function_of(self._prepared.function), "__defaults__", None)

    @property
    def __kwdefaults__(self) -> dict[str, Any] | None:
        return getattr(function_of(self._prepared.function), "__kwdefaults__", None)

    @property
    def __globals__(self) -> dict[str, Any]:
        return getattr(function_of(self._prepared.function), "__globals__", {})

    def shipped(self) -> list[Shipped]:
        """What would travel with a call, beside its arguments: each thing with its kind and size in bytes."""
        return shipped(self._prepared.function, self._prepared.settings.include)

    def _bind(self, instance: object) -> Any:
        bound = object.__new__(type(self))
        bound._prepared = self._prepared
        bound._first = (instance,)
        bound.__dict__.update(self.__dict__)
        bound.__dict__["__wrapped__"] = types.MethodType(self._prepared.function, instance)
        bound.__dict__["__self__"] = instance
        bound.__dict__["__func__"] = self
        return bound

    def __reduce__(self) -> Any:
        if self._first:
            return getattr, (self._first[0], self.__name__)
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<sandboxed {self._prepared.function!r}>"


class Sandboxed(Wrapper, Generic[P, R]):
    """A function whose every call runs in a box of its own."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._prepared.call(self._first + args, kwargs)  # type: ignore[no-any-return]

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Calls the function and returns its value with its output, its receipt and its files."""
        return self._prepared.run(self._first + args, kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[R]:
        """Starts a call in the background. Cancelling the future kills the Worker."""
        return self._submit(self._first + args, kwargs)

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _futures.SandboxFuture[R]:
        return _futures.submit(lambda write, canceller: self._prepared.call(args, kwargs, write, canceller))

    def map(self, iterable: Iterable[Any], concurrency: int | None = None, progress: bool = False) -> Iterator[R]:
        """Calls the function with each item; results in order, at most `concurrency` calls (the CPUs) in flight."""
        return _futures.ordered_map(
            lambda item: self._submit((*self._first, item), {}), iterable, concurrency, progress
        )

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Sandboxed[P, R]: ...
    @overload
    def __get__(self: Sandboxed[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> Sandboxed[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._bind(instance)


class AsyncSandboxed(Wrapper, Generic[P, R]):
    """A coroutine function whose every call runs in a box of its own; the event loop goes on meanwhile."""

    __slots__ = ()

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:
            # Before 3.12 asyncio knows foreign coroutine functions by this mark alone.
            from asyncio import coroutines

            self.__dict__["_is_coroutine"] = coroutines._is_coroutine  # type: ignore[attr-defined]

    if sys.version_info < (3, 11):
        # There `inspect.iscoroutinefunction` looks at nothing but what says that it is a function.
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            return types.FunctionType

    @property
    def __code__(self) -> types.CodeType:
        function = function_of(self._prepared.function)
        if function is None:
            raise AttributeError("__code__")
        code = function.__code__
        return code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)

    async def _await(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        return await _futures.wait_for(lambda write, canceller: self._prepared.call(args, kwargs, write, canceller))

    async def _await_result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result[R]:
        return await _futures.wait_for(lambda write, canceller: self._prepared.run(args, kwargs, write, canceller))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._await(self._first + args, kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Result[R]]:
        """Calls the function and gives its value with its output, its receipt and its files."""
        return self._await_result(self._first + args, kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[R]:
        """Starts a call in the background, without an event loop. Cancelling the future kills the Worker."""
        everything = self._first + args
        return _futures.submit(lambda write, canceller: self._prepared.call(everything, kwargs, write, canceller))

    def map(self, iterable: Iterable[Any], concurrency: int | None = None, progress: bool = False) -> AsyncIterator[R]:
        """Calls the function with each item; results in order, for `async for`."""
        return _futures.ordered_map_async(
            lambda item: self._await((*self._first, item), {}), iterable, concurrency, progress
        )

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> AsyncSandboxed[P, R]: ...
    @overload
    def __get__(
        self: AsyncSandboxed[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> AsyncSandboxed[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._bind(instance)


class ClassMethod(classmethod):  # type: ignore[type-arg]
    """A classmethod that binds the wrapper inside it, so that `Class.method.run(...)` knows its class.

    Python 3.10 to 3.12 do so by themselves; 3.13 makes a plain method, whose `.run` would not be bound.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        inner = self.__func__
        if isinstance(inner, Wrapper):
            return inner._bind(owner if owner is not None else type(instance))
        return super().__get__(instance, owner)


class Repair:
    """Left in a class's body, it swaps a plain classmethod around a wrapper for ours when the class is made."""

    def __init__(self, wrapper: Wrapper, name: str) -> None:
        self._wrapper = wrapper
        self._name = name

    def __set_name__(self, owner: type, name: str) -> None:
        found: Any = owner.__dict__.get(self._name)
        wrapper: Any = self._wrapper
        if type(found) is classmethod and found.__func__ is wrapper:
            setattr(owner, self._name, ClassMethod(wrapper))
        delattr(owner, name)
