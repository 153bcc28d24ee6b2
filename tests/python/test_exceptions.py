"""How a call can fail: each failure is an exception that says what happened, with which limit, and the next step."""

import builtins
import os
import pickle
import signal

import pytest
from pctx_sandbox import (
    SandboxError,
    SandboxExecutionError,
    SandboxMemoryError,
    SandboxTimeoutError,
    SerializationError,
    sandbox,
)
from pctx_sandbox._raised import BUILTINS, class_for

pytestmark = pytest.mark.usefixtures("broker")


class OwnError(KeyError):
    pass


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@sandbox
def raises(make):
    raise make()


def deeper(x):
    return 1 / x


@sandbox
def divides(x):
    try:
        return deeper(x)
    except ZeroDivisionError as error:
        raise ValueError("no number") from error


def test_builtin_exceptions_can_be_caught_by_their_own_name():
    with pytest.raises(ValueError, match="no number") as caught:
        divides(0)
    assert isinstance(caught.value, SandboxExecutionError)
    assert caught.value.error_type == "ValueError"
    assert divides(2) == 0.5


def test_the_guests_traceback_comes_with_source_lines_and_causes():
    with pytest.raises(ValueError) as caught:
        divides(0)
    text = caught.value.traceback_str
    assert "return 1 / x" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "direct cause" in text
    assert text.index("in deeper") < text.index('raise ValueError("no number")')
    assert text in str(caught.value)
    assert "guest/worker.py" not in text


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_every_builtin_exception_can_be_made_and_pickled(name):
    error = class_for(name)("words", "their.type", "trace")
    assert isinstance(error, getattr(builtins, name))
    assert isinstance(error, SandboxExecutionError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.error_type, again.traceback_str) == (
        type(error),
        "words",
        "their.type",
        "trace",
    )


@pytest.mark.parametrize(
    ("make", "base"),
    [
        (lambda: OwnError("x"), KeyError),
        (lambda: FileNotFoundError(2, "gone"), FileNotFoundError),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeDecodeError),
        (lambda: Silent(), SandboxExecutionError),
        (lambda: ConnectionRefusedError("no"), OSError),
        (lambda: TimeoutError("own"), TimeoutError),
    ],
)
def test_classes_arrive_as_their_nearest_builtin(make, base):
    with pytest.raises(base) as caught:
        raises(make)
    assert isinstance(caught.value, SandboxExecutionError)
    assert not isinstance(caught.value, SandboxTimeoutError)


def test_an_os_error_keeps_its_number():
    with pytest.raises(FileNotFoundError) as caught:
        sandbox(lambda: os.stat("/nonexistent/file"))()
    assert caught.value.errno == 2


@pytest.mark.parametrize(
    "make",
    [lambda: SystemExit(3), lambda: KeyboardInterrupt(), lambda: StopIteration(1), lambda: GeneratorExit()],
)
def test_exceptions_that_would_confuse_the_caller_arrive_plain(make):
    with pytest.raises(SandboxExecutionError) as caught:
        raises(make)
    assert type(caught.value) is SandboxExecutionError
    assert caught.value.error_type == type(make()).__name__


def test_sys_exit_tells_its_code():
    with pytest.raises(SandboxExecutionError, match=r"sys.exit\(3\)"):
        raises(lambda: SystemExit(3))


def test_an_exit_of_the_process_tells_its_code():
    with pytest.raises(SandboxExecutionError, match="exit code 7") as caught:
        sandbox(lambda: os._exit(7))()
    assert caught.value.error_type == "exit"


def test_a_crash_tells_its_signal():
    @sandbox
    def crash():
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(SandboxExecutionError, match="SIGSEGV") as caught:
        crash()
    assert caught.value.error_type == "SIGSEGV"


def test_a_timeout_names_the_limit_and_the_next_step():
    @sandbox(timeout_sec=0.5)
    def forever():
        while True:
            pass

    with pytest.raises(TimeoutError, match=r"timeout_sec=0.5") as caught:
        forever()
    assert isinstance(caught.value, SandboxTimeoutError)
    assert "hint:" in str(caught.value)


def test_memory_errors_name_the_limit():
    with pytest.raises(MemoryError, match="memory_mb=1024") as caught:
        raises(MemoryError)
    assert isinstance(caught.value, SandboxMemoryError)
    assert isinstance(caught.value, SandboxExecutionError)


def test_a_result_that_is_not_data_is_named():
    with pytest.raises(SerializationError, match=r"result\['handle'\]"):
        sandbox(lambda: {"handle": os.fdopen(1)})()
    assert sandbox(lambda: {"handle": "data"})() == {"handle": "data"}


def test_an_argument_whose_library_is_missing_inside_names_it():
    from pctx_sandbox import _raised

    body = b'{"message": "a numpy array", "subject": "argument", "library": "numpy"}'
    assert "'numpy' to dependencies" in str(_raised.refused(body, "f"))


def test_control_characters_of_a_message_are_shown():
    with pytest.raises(SandboxExecutionError) as caught:
        raises(lambda: RuntimeError("\x1b]0;title\x07"))
    assert "\x1b" not in str(caught.value)
    assert "\\x1b]0;title\\x07" in str(caught.value)


def test_a_long_message_is_cut():
    with pytest.raises(SandboxExecutionError) as caught:
        raises(lambda: RuntimeError("x" * 10_000_000))
    assert len(str(caught.value)) < 300_000


def test_deep_recursion_is_an_exception_with_a_short_traceback():
    def down(n):
        return down(n + 1)

    with pytest.raises(RecursionError) as caught:
        sandbox(down)(0)
    assert "frames left out" in str(caught.value)


def test_a_function_that_forks_and_returns_twice_gives_one_answer():
    @sandbox
    def twice():
        return "parent" if os.fork() else "child"

    assert twice() == "parent"


def test_a_wrong_call_is_the_functions_own_type_error():
    with pytest.raises(TypeError, match="positional argument"):
        sandbox(lambda x: x)()


def test_every_failure_is_a_sandbox_error():
    for error in (SandboxExecutionError, SandboxMemoryError, SandboxTimeoutError, SerializationError):
        assert issubclass(error, SandboxError)
