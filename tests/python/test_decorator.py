"""The wrapper is a good citizen: wherever a function may stand, a sandboxed one may."""

import asyncio
import functools
import inspect
import multiprocessing
import pickle
import sys
import typing
from concurrent.futures import ProcessPoolExecutor

import neighbours
import pctx_sandbox
import pytest
from pctx_sandbox import sandbox, sandbox_async

pytestmark = pytest.mark.usefixtures("broker")


@sandbox
def add(a: int, b: int = 2) -> int:
    """Adds two numbers."""
    return a + b


@sandbox(memory_mb=512, timeout_sec=20)
async def add_later(a: int, b: int) -> int:
    import asyncio

    await asyncio.sleep(0)
    return a + b


@sandbox
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


@sandbox
def twice(n):
    return factorial(n) * 2


class Account:
    rate = 3

    def __init__(self, balance):
        self.balance = balance

    @sandbox
    def interest(self, years):
        return self.balance * self.rate * years

    @sandbox
    @classmethod
    def outer_class(cls, years):
        return cls.rate * years

    @classmethod
    @sandbox
    def inner_class(cls, years):
        return cls.rate * years

    @sandbox
    @staticmethod
    def outer_static(years):
        return years + 1

    @staticmethod
    @sandbox()
    def inner_static(years):
        return years + 1

    @sandbox
    async def later(self, years):
        return self.balance + years


class Savings(Account):
    rate = 5


def test_a_call_gives_the_value():
    assert add(1) == 3
    assert add(1, b=5) == 6


def test_with_parentheses_and_without():
    assert sandbox(lambda x: x * 2)(4) == 8
    assert sandbox()(lambda x: x * 2)(4) == 8


def test_the_version_and_the_marks():
    assert pctx_sandbox.__version__ == "0.2.0"
    assert add._is_sandboxed is True
    config = sandbox(dependencies=["Pandas ", "numpy"], memory_mb=64)(lambda: None)._sandbox_config
    assert (config["dependencies"], config["memory_mb"], config["timeout_sec"]) == (["numpy", "pandas"], 64, 30)
    same = sandbox(dependencies=["numpy", "pandas"])(lambda: None)._sandbox_config
    assert config["dep_hash"] == same["dep_hash"] != add._sandbox_config["dep_hash"]


def test_inspect_answers_as_for_the_original():
    assert str(inspect.signature(add)) == "(a: int, b: int = 2) -> int"
    assert typing.get_type_hints(add) == {"a": int, "b": int, "return": int}
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Adds two numbers.", __name__)
    assert not inspect.iscoroutinefunction(add)
    assert not asyncio.iscoroutinefunction(add)
    assert inspect.iscoroutinefunction(add_later)
    assert asyncio.iscoroutinefunction(add_later)
    assert str(inspect.signature(Account(1).interest)) == "(years)"


def test_coroutine_functions_run_in_the_box():
    assert asyncio.run(add_later(1, 2)) == 3
    assert asyncio.run(add_later.run(1, 2)).value == 3
    assert add_later.submit(1, 2).result(20) == 3

    async def collect():
        return [value async for value in sandbox_async(lambda x: x + 1).map(range(4), concurrency=2)]

    assert asyncio.run(collect()) == [1, 2, 3, 4]


def test_sandbox_async_makes_plain_functions_awaitable():
    @sandbox_async
    def double(x):
        return x * 2

    assert inspect.iscoroutinefunction(double)
    assert asyncio.run(double(4)) == 8
    assert asyncio.run(sandbox_async(memory_mb=256)(lambda x: x)(5)) == 5


def test_methods():
    account = Account(10)
    assert account.interest(2) == 60
    assert account.interest.run(2).value == 60
    assert account.interest.submit(2).result(20) == 60
    assert list(account.interest.map([1, 2])) == [30, 60]
    assert Account.interest(account, 2) == 60
    assert asyncio.run(account.later(1)) == 11


@pytest.mark.parametrize("name", ["outer_class", "inner_class"])
def test_class_methods_in_either_order(name):
    for kind, expected in ((Account, 6), (Savings, 10)):
        method = getattr(kind, name)
        assert method(2) == expected
        assert method.run(2).value == expected
        assert method.submit(2).result(20) == expected
        assert list(method.map([2])) == [expected]
    assert getattr(Savings(1), name)(2) == 10


@pytest.mark.parametrize("name", ["outer_static", "inner_static"])
def test_static_methods_in_either_order(name):
    method = getattr(Account, name)
    assert (method(1), method.run(1).value, list(method.map([1]))) == (2, 2, [2])
    assert getattr(Account(1), name)(1) == 2


def test_nothing_is_left_in_a_class():
    assert [name for name in vars(Account) if "pctx" in name] == []


def test_nested_functions_and_partials():
    base = 10

    @sandbox
    def nested(x):
        return base + x

    assert nested(1) == 11
    assert sandbox(functools.partial(divmod, 7))(2) == (3, 1)
    assert sandbox(functools.partial(lambda a, b: a - b, b=1))(2) == 1
    assert functools.partial(add, 1)(b=7) == 8


def test_below_and_above_other_decorators():
    def plus_one(function):
        @functools.wraps(function)
        def inner(*args):
            return function(*args) + 1

        return inner

    above = plus_one(sandbox(lambda x: x * 2))
    below = sandbox(plus_one(lambda x: x * 2))
    assert (above(3), below(3)) == (7, 7)

    @sandbox
    def uses(x):
        return above(x)

    assert uses(3) == 7


def test_inside_a_box_every_sandboxed_function_is_plain():
    assert factorial(5) == 120
    assert twice(4) == 48
    assert sandbox(lambda: type(factorial).__name__)() == "function"

    @sandbox
    def decorates():
        from pctx_sandbox import SandboxError, sandbox

        @sandbox(dependencies=["pandas"])
        def inner(x):
            return x + 1

        return inner(1), issubclass(SandboxError, Exception)

    assert decorates() == (2, True)


def test_it_pickles_by_name():
    assert pickle.loads(pickle.dumps(neighbours.triple)) is neighbours.triple
    account = Account(10)
    assert pickle.loads(pickle.dumps(account.interest))(2) == 60


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_pool_can_call_it(method):
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(neighbours.triple, 3).result(60) == 9


def test_main_scripts_can_call_it(tmp_path):
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(
        "from pctx_sandbox import sandbox\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "def helper(p): return Point(p.x + 1)\n"
        "@sandbox\n"
        "def move(p):\n"
        "    assert isinstance(p, Point)\n"
        "    return helper(p).x\n"
        "print(move(Point(4)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=neighbours.environment())
    assert done.stderr == ""
    assert done.stdout == "5\n"


def test_generator_functions_are_refused_at_decoration():
    def numbers():
        yield 1

    async def later():
        yield 1

    for function in (numbers, later):
        with pytest.raises(TypeError, match="return a list"):
            sandbox(function)
    assert sandbox(lambda: list(range(2)))() == [0, 1]


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="is a class"):
        sandbox()(Account)
    with pytest.raises(TypeError, match="is a class"):
        sandbox(Account)
    with pytest.raises(TypeError, match="takes a function"):
        sandbox()(3)
    with pytest.raises(TypeError, match="sandboxed already"):
        sandbox(add)


def test_run_tells_everything():
    @sandbox
    def speak(name):
        import sys

        print("hello", name)
        print("careful", file=sys.stderr)
        return len(name)

    result = speak.run("Ada")
    assert (result.value, result.stdout, result.stderr) == (3, "hello Ada\n", "careful\n")
    assert result.receipt
    assert result.files == ()


def test_joblib_can_call_it():
    joblib = pytest.importorskip("joblib")
    assert joblib.Parallel(n_jobs=2)(joblib.delayed(neighbours.triple)(n) for n in range(3)) == [0, 3, 6]
