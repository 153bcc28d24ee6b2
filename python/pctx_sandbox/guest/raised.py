"""Describes an exception as text for the caller: types, messages, frames with their source lines."""

from __future__ import annotations

import json
import linecache
import traceback
from types import TracebackType
from typing import Any

LONGEST_MESSAGE = 32 << 10
LONGEST_LINE = 400
MOST_FRAMES = 60
MOST_LINKS = 8


def describe(error: BaseException, skip_file: str, stage: str) -> bytes:
    """The JSON of a `raised` answer. Frames of `skip_file` (our own) are left out; `stage` says what we were doing."""
    parts: list[dict[str, Any]] = []
    seen: set[int] = set()
    current: BaseException | None = error
    link = ""
    while current is not None and id(current) not in seen and len(parts) < MOST_LINKS:
        seen.add(id(current))
        parts.append(
            {
                "type": type_name(type(current)),
                "text": exception_text(current),
                "frames": frames_of(current.__traceback__, skip_file),
                "link": link,
            }
        )
        if current.__cause__ is not None:
            link, current = "cause", current.__cause__
        elif current.__context__ is not None and not current.__suppress_context__:
            link, current = "context", current.__context__
        else:
            current = None
    answer: dict[str, Any] = {
        "error_type": type_name(type(error)),
        "message": message_of(error),
        "builtins": [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"],
        "chain": parts,
        "stage": stage,
    }
    if isinstance(error, SystemExit):
        code = error.code
        answer["exit_code"] = code if type(code) is int else (0 if code is None else 1)
    if isinstance(error, OSError) and type(error.errno) is int:
        answer["errno"] = error.errno
    if isinstance(error, ImportError) and type(error.name) is str:
        answer["module"] = error.name[:200]
    return json.dumps(answer).encode()


def type_name(kind: type) -> str:
    name = f"{kind.__qualname__}"
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    return name[:200]


def message_of(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_MESSAGE]
    except BaseException as broken:  # the guest's own __str__ may do anything
        return f"<its __str__ raised {type(broken).__name__}>"


def exception_text(error: BaseException) -> str:
    """The last lines of a traceback: type and message, the place of a SyntaxError, notes, members of a group."""
    try:
        text = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    except BaseException:
        text = f"{type_name(type(error))}: {message_of(error)}"
    for member in getattr(error, "exceptions", ())[:20]:
        if isinstance(member, BaseException):
            text += f"\n  - {type_name(type(member))}: {message_of(member)[:LONGEST_LINE]}"
    return text[:LONGEST_MESSAGE]


def frames_of(trace: TracebackType | None, skip_file: str) -> list[list[Any]]:
    """[file, line, function, source line], outermost first; the line is empty for a file that only the caller has."""
    found: list[list[Any]] = []
    for frame, number in traceback.walk_tb(trace):
        code = frame.f_code
        if code.co_filename == skip_file:
            continue
        linecache.lazycache(code.co_filename, frame.f_globals)
        line = linecache.getline(code.co_filename, number).strip()
        found.append([code.co_filename[:LONGEST_LINE], number, code.co_name[:LONGEST_LINE], line[:LONGEST_LINE]])
    if len(found) > MOST_FRAMES:
        half = MOST_FRAMES // 2
        found = [*found[:half], ["", len(found) - 2 * half, "", ""], *found[-half:]]
    return found
