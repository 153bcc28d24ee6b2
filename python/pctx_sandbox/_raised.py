"""Turns a guest's ending into the exception that the caller sees. What a guest says is text, bounded and escaped."""

from __future__ import annotations

import builtins
import errno
import json
import linecache
import signal
from collections.abc import Iterable, Mapping
from typing import Any

from . import _modules
from ._output import escape
from ._settings import Settings
from .errors import (
    SandboxError,
    SandboxExecutionError,
    SandboxMemoryError,
    SandboxTimeoutError,
    SerializationError,
)

LONGEST = 64 << 10
# Raised for real, these would end or confuse the caller; they arrive as a plain SandboxExecutionError.
NEVER = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration)
LINKS = {
    "cause": "The above exception was the direct cause of the following exception:",
    "context": "During handling of the above exception, another exception occurred:",
}


def _usable(kind: object) -> bool:
    if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, NEVER):
        return False
    # Exception says nothing, and a group cannot be made without its members.
    return kind is not Exception and "Group" not in kind.__name__ and not issubclass(kind, Warning)


BUILTINS: dict[str, type[Exception]] = {
    name: kind for name, kind in vars(builtins).items() if _usable(kind) and kind.__name__ == name
}
_classes: dict[str, type[SandboxExecutionError]] = {}


def class_for(name: str) -> type[SandboxExecutionError]:
    """SandboxExecutionError that is also a builtin exception, so that `except ValueError` works across the box."""
    builtin = BUILTINS.get(name)
    if builtin is None:
        return SandboxExecutionError
    made = _classes.get(name)
    if made is None:
        base = SandboxMemoryError if builtin is MemoryError else builtin
        members = {
            "__init__": _init,
            "__str__": _str,
            "__reduce__": _reduce,
            "__module__": "pctx_sandbox",
            "_builtin": name,
        }
        made = _classes[name] = type(f"Sandbox{name}", (SandboxExecutionError, base), members)
    return made


def _init(self: Any, message: str, error_type: str = "", traceback_str: str = "") -> None:
    # Not through super(): UnicodeDecodeError and others ask for arguments that mean nothing here.
    Exception.__init__(self, message)
    self.error_type = error_type
    self.traceback_str = traceback_str


def _str(self: Any) -> str:
    return str(self.args[0]) if self.args else ""


def _reduce(self: Any) -> Any:
    return _remake, (self._builtin, str(self), self.error_type, self.traceback_str)


def _remake(name: str, message: str, error_type: str, traceback_str: str) -> SandboxExecutionError:
    return class_for(name)(message, error_type, traceback_str)


def _text(value: object, longest: int = LONGEST) -> str:
    return escape(value[:longest]) if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def parse(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise malformed("its text is no JSON") from None
    if not isinstance(answer, dict):
        raise malformed("its text is no object")
    return answer


def malformed(reason: str) -> SandboxExecutionError:
    return SandboxExecutionError(
        f"the box sent something that is no answer: {reason}\n"
        "hint: the function, or a package it uses, writes to descriptors that are not its own",
        "ProtocolError",
    )


def raised(body: bytes, name: str, settings: Settings, files: Iterable[str]) -> SandboxError:
    """The exception for a `raised` answer. `files` are the sources that the caller shipped: only they are read here."""
    answer = parse(body)
    error_type = _text(answer.get("error_type"), 200) or "Exception"
    message = _text(answer.get("message"))
    trace = _format(answer, frozenset(files))
    stage = answer.get("stage")
    if stage == "version":
        return SandboxExecutionError(
            f"{name}() cannot run in its box: {message}\nhint: run this program with the Environment's Python",
            error_type,
        )
    lines = [f"{error_type}: {message}" if message else error_type]
    if stage == "decode":
        lines[0] = f"{name}() could not be unpacked inside the box: {lines[0]}"
    if error_type == "SystemExit":
        lines[0] = f"{name}() called sys.exit({_exit_code(answer)})"
    advice = _advice(answer, settings)
    if advice:
        lines.append(f"hint: {advice}")
    if trace:
        lines.append(f"\ninside the box:\n{trace}")
    for builtin in _list(answer.get("builtins")):
        if builtin in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "StopAsyncIteration"):
            break
        if isinstance(builtin, str) and builtin in BUILTINS:
            made = class_for(builtin)("\n".join(lines), error_type, trace)
            _copy_errno(made, answer)
            return made
    return SandboxExecutionError("\n".join(lines), error_type, trace)


def _exit_code(answer: Mapping[str, Any]) -> str:
    code = answer.get("exit_code")
    return str(code) if type(code) is int and abs(code) < 1 << 32 else ""


def _copy_errno(made: SandboxExecutionError, answer: Mapping[str, Any]) -> None:
    number = answer.get("errno")
    if isinstance(made, OSError) and type(number) is int and 0 < number < 4096:
        made.errno = number


def _advice(answer: Mapping[str, Any], settings: Settings) -> str:
    names = _list(answer.get("builtins"))
    module = answer.get("module")
    if "ModuleNotFoundError" in names and isinstance(module, str):
        return _modules.advice_for_missing(module[:200], settings.include)
    if "MemoryError" in names:
        return f"the box has memory_mb={settings.memory_mb}; raise it, or work on less at once"
    if answer.get("errno") in (errno.ENOSPC, errno.EFBIG):
        return f"the box has disk_mb={settings.disk_mb} and inodes={settings.inodes}; raise them, or write less"
    if answer.get("errno") == 11 and ("BlockingIOError" in names):
        return f"the box has pids={settings.pids}; raise it, or start fewer processes and threads"
    return ""


def _format(answer: Mapping[str, Any], files: frozenset[str]) -> str:
    """The guest's traceback as Python would print it, causes first."""
    parts = []
    for part in _list(answer.get("chain"))[:16]:
        if not isinstance(part, dict):
            continue
        lines = ["Traceback (most recent call last):"]
        for frame in _list(part.get("frames"))[:100]:
            lines += _format_frame(frame, files)
        lines.append(_text(part.get("text")))
        link = LINKS.get(str(part.get("link")))
        parts.append("\n".join(lines) + (f"\n\n{link}\n" if link else ""))
    return "\n".join(reversed(parts))[:LONGEST]


def _format_frame(frame: object, files: frozenset[str]) -> list[str]:
    if not isinstance(frame, list) or len(frame) != 4 or type(frame[1]) is not int:
        return []
    file, number, function, line = frame
    if file == "":
        return [f"  [{number} frames left out]"]
    # A path that a box names is never opened, except one that this process itself sent there.
    if not line and isinstance(file, str) and file in files and 0 < number < 10_000_000:
        line = linecache.getline(file, number).strip()
    shown = [f'  File "{_text(file, 400)}", line {number}, in {_text(function, 400)}']
    return shown + ([f"    {_text(line, 400)}"] if line else [])


def refused(body: bytes, name: str) -> SerializationError:
    """The error for a result, or an argument inside, that cannot be had."""
    answer = parse(body)
    message = _text(answer.get("message"))
    library = answer.get("library")
    if answer.get("subject") == "argument" and isinstance(library, str) and library.isidentifier():
        from ._arguments import missing_library

        return missing_library(library, message)
    return SerializationError(f"{name}() returned something that is not data: {message}")


def ended(end: Mapping[str, Any], name: str, settings: Settings) -> SandboxError:
    """The exception for a Worker that ended without an answer, by the Broker's own word."""
    outcome = end.get("outcome")
    outcome = outcome if isinstance(outcome, dict) else {}
    kind = outcome.get("kind")
    limit = outcome.get("limit")
    said = f" ({_text(outcome.get('message'), 1000)})" if outcome.get("message") else ""
    if kind == "timed_out":
        return timed_out(name, settings, cpu=str(limit) in ("cpu-time", "cpu_time"))
    if kind == "out_of_memory" and limit != "memory":
        return SandboxMemoryError(f"{name}() was stopped{said}")
    if kind == "out_of_memory":
        return SandboxMemoryError(
            f"{name}() needed more than memory_mb={settings.memory_mb} and was stopped\n"
            f"hint: raise it, as in @sandbox(memory_mb={settings.memory_mb * 2}), or work on less at once"
        )
    if kind == "denied":
        why = _text(outcome.get("message") or "ended by SIGSYS", 1000)
        return SandboxExecutionError(
            f"{name}() was {why}\nhint: `.run()` shows denials in its receipt",
            "denied",
        )
    if limit == "pids":
        return SandboxExecutionError(
            f"{name}() started more than pids={settings.pids} processes and threads and was stopped\n"
            f"hint: raise it, as in @sandbox(pids={settings.pids * 2})",
            "pids",
        )
    if limit == "disk":
        return SandboxExecutionError(
            f"{name}() was {_text(outcome.get('message') or 'ended by SIGXFSZ', 1000)}\n"
            f"hint: raise it, as in @sandbox(disk_mb={settings.disk_mb * 2}), or write smaller files",
            "SIGXFSZ",
        )
    if kind == "signaled" and type(outcome.get("signal")) is int:
        number = outcome["signal"]
        known = number in signal.valid_signals()
        label = signal.Signals(number).name if known and number < 32 else f"signal {number}"
        return SandboxExecutionError(
            f"{name}() was killed by {label} (signal {number}){said}\n"
            "hint: a crash in native code, or the function killed itself; try it with less, or another package version",
            label,
        )
    code = outcome.get("exit_code")
    return SandboxExecutionError(
        f"{name}() ended its process{f' with exit code {code}' if type(code) is int else ''} before it returned{said}\n"
        "hint: return a value, or raise an exception, instead of os._exit()",
        "exit",
    )


def timed_out(name: str, settings: Settings, cpu: bool = False) -> SandboxTimeoutError:
    option = "cpu_time_sec" if cpu else "timeout_sec"
    value = settings.cpu_time_sec if cpu else settings.timeout_sec
    verb = "used more processor time than" if cpu else "ran longer than"
    return SandboxTimeoutError(
        f"{name}() {verb} {option}={value} and was stopped\n"
        f"hint: raise it, as in @sandbox({option}={(value or 1) * 2}), or do less in one call"
    )


def too_much_output(name: str, settings: Settings) -> SandboxExecutionError:
    return SandboxExecutionError(
        f"{name}() printed more than output_mb={settings.output_mb} and was stopped\n"
        "hint: print less, return the data, or raise output_mb",
        "output_limit",
    )
