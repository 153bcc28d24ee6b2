"""Read by type checkers, never run: what they must believe about sandboxed functions (see test_typing.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

from pctx_sandbox import Result, SandboxExecutor, sandbox, sandbox_async
from typing_extensions import assert_type


@sandbox(dependencies=["pandas"])
def process_data(data: list[dict[str, Any]]) -> dict[str, int]:
    return {"rows": len(data)}


@sandbox
def bare(a: int, b: str = "") -> float:
    return a / 2


@sandbox()
async def later(a: int) -> str:
    return str(a)


@sandbox_async(memory_mb=256)
def made_async(a: int) -> str:
    return str(a)


@sandbox_async
async def stays_async(a: int) -> bytes:
    return b""


class Account:
    @sandbox
    def interest(self, years: int) -> float:
        return 1.0 * years

    @sandbox(timeout_sec=5)
    async def later(self, years: int) -> float:
        return 1.0 * years

    @staticmethod
    @sandbox
    def static(years: int) -> int:
        return years


assert_type(process_data([{"a": 1}]), dict[str, int])
assert_type(bare(1), float)
assert_type(bare(1, b="x"), float)
assert_type(bare.run(1), Result[float])
assert_type(bare.run(1).value, float)
assert_type(bare.submit(1, "x"), Future[float])
assert_type(bare.map([1, 2], concurrency=2), Iterator[float])
coroutine = assert_type(later(1), Coroutine[Any, Any, str])
assert_type(later.submit(1), Future[str])
assert_type(later.map([1]), AsyncIterator[str])
other = assert_type(made_async(1), Coroutine[Any, Any, str])
third = assert_type(stays_async(1), Coroutine[Any, Any, bytes])
assert_type(Account().interest(2), float)
assert_type(Account().interest.run(2), Result[float])
assert_type(Account.interest(Account(), 2), float)
fourth = assert_type(Account().later(2), Coroutine[Any, Any, float])
assert_type(Account.static(2), int)
assert_type(asyncio.run(later(1)), str)

with SandboxExecutor(["pandas"], memory_mb=512) as executor:
    assert_type(executor.submit(len, "text"), Future[int])

# Mistakes that a checker must see; an unused ignore is an error under --strict.
bare("text")  # type: ignore[arg-type]
bare(1, 2)  # type: ignore[arg-type]
bare.run()  # type: ignore[call-arg]
Account().interest("text")  # type: ignore[arg-type]
sandbox(memory_mb="1G")  # type: ignore[call-overload]
sandbox(returns="pickle")  # type: ignore[call-overload]
