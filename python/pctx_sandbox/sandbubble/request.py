"""One call's arguments, checked: which script, folder and input. Everything wrong is said before a box exists."""

from __future__ import annotations

import dataclasses
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from .config import SandboxConfig, checked_limits, checked_preload
from .virtualenv import Virtualenv, inspect_virtualenv

# Where a snippet lies in its box. What is imported is found beside it, then in /mnt.
CODE_PLACE = "/tmp/script.py"
MOST_CODE = 64 << 20
MOST_ARGUMENTS = 128 << 10


@dataclasses.dataclass(frozen=True)
class Request:
    """A script to run: `code`, or a file below `folder`; `place` is what `sys.argv[0]` says."""

    conf: SandboxConfig
    venv: Virtualenv
    code: bytes | None
    place: str
    folder: str | None
    script: str | None  # relative to the folder
    timeout: float | None
    args: tuple[str, ...]
    stdin: bytes
    limits: dict[str, Any]
    preload: tuple[str, ...]
    warm: bool

    @property
    def command(self) -> list[str]:
        """As it would be typed, for `subprocess.TimeoutExpired` and people."""
        return [self.venv.python, self.place, *self.args]


def make_request(
    conf: SandboxConfig,
    code: str | None,
    script_path: str | os.PathLike[str] | None,
    mnt_dir: str | os.PathLike[str] | None,
    timeout: float | None,
    args: Sequence[str],
    stdin: str | bytes | None,
    limits: Mapping[str, Any] | None,
    preload: Sequence[str] | None,
    warm: bool | None,
) -> Request:
    if not isinstance(conf, SandboxConfig):
        raise TypeError(f"the first argument is a SandboxConfig, not {conf!r}")
    if (code is None) == (script_path is None):
        given = "both are given" if code is not None else "neither is given"
        raise ValueError(f"run_sandboxed takes exactly one of code and script_path, and {given}")
    folder = None if mnt_dir is None else _checked_folder(mnt_dir)
    venv = inspect_virtualenv(conf.venv_path)
    if folder is not None and (reached := venv.reached_through(folder)):
        raise ValueError(
            f"{reached} lies in mnt_dir, or behind a link there, where scripts could change what later ones run\n"
            "hint: keep it in a folder of its own"
        )
    script = None
    place = CODE_PLACE
    if script_path is not None:
        script = _checked_script(script_path, folder)
        place = f"/mnt/{script}"
    return Request(
        conf=conf,
        venv=venv,
        code=None if code is None else _checked_code(code),
        place=place,
        folder=folder,
        script=script,
        timeout=_checked_timeout(timeout),
        args=_checked_arguments(args),
        stdin=_checked_input(stdin),
        limits=checked_limits({**(conf.limits or {}), **(_mapping(limits))}),
        preload=checked_preload(conf.preload if preload is None else preload),
        warm=conf.warm if warm is None else _checked_switch("warm", warm),
    )


def _mapping(limits: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if limits is not None and not isinstance(limits, Mapping):
        raise TypeError(f"limits takes a dict, for example {{'memory_mb': 512}}, not {limits!r}")
    return limits or {}


def _checked_switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} takes True or False, not {value!r}")
    return value


def _text_of(name: str, path: object) -> str:
    found = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(found, str):
        raise TypeError(f"{name} takes a path, not {path!r}")
    if not found or "\0" in found:
        raise ValueError(f"{name}={found!r} is no path: it is empty or holds a null byte")
    return found


def temporary_folders() -> list[str]:
    """The system's temporary folder, links resolved: what $TMPDIR says now, and what Python decided at its start."""
    named = os.environ.get("TMPDIR", "")
    found = [named] if named and os.path.isabs(named) and os.path.isdir(named) else []
    found.append(tempfile.gettempdir())
    return list(dict.fromkeys(os.path.realpath(folder) for folder in found))


def _checked_folder(mnt_dir: object) -> str:
    path = _text_of("mnt_dir", mnt_dir)
    real = os.path.realpath(path)
    allowed = temporary_folders()
    if not any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in allowed):
        raise ValueError(
            f"mnt_dir={path!r} lies outside the temporary folder: it is {real}, and must be {allowed[0]} or below it\n"
            "hint: use tempfile.TemporaryDirectory()"
        )
    if not os.path.isdir(real):
        raise ValueError(f"mnt_dir={path!r} is not a folder\nhint: use tempfile.TemporaryDirectory()")
    return real


def _checked_script(script_path: object, folder: str | None) -> str:
    path = _text_of("script_path", script_path)
    parts = path.split("/")
    if parts[:2] != ["", "mnt"] or len(parts) < 3 or not all(parts[2:]) or {".", ".."} & set(parts):
        raise ValueError(
            f"script_path={path!r} does not lie under /mnt\n"
            "hint: put the script into mnt_dir and name it as the box sees it: script_path='/mnt/code.py'"
        )
    if folder is None:
        raise ValueError(f"script_path={path!r} needs mnt_dir: the folder that is /mnt in the box")
    _look_at_script(path, folder, parts[2:])
    return "/".join(parts[2:])


def _look_at_script(path: str, folder: str, parts: list[str]) -> None:
    """By descriptor, and no link on the way: what is checked is what lies there."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            try:
                status = os.stat(part, dir_fd=at, follow_symlinks=False)
            except OSError as error:
                raise FileNotFoundError(
                    error.errno, f"there is no script {path}: {'/'.join(parts)} is not in mnt_dir", folder
                ) from None
            if stat.S_ISLNK(status.st_mode):
                raise ValueError(f"script_path={path!r} is a link, or lies behind one\nhint: copy the script itself")
            if last and not stat.S_ISREG(status.st_mode):
                raise ValueError(f"script_path={path!r} is not a file")
            if not last:
                fd = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = fd
    finally:
        os.close(at)


def _checked_code(code: object) -> bytes:
    if not isinstance(code, str):
        raise TypeError(f"code takes the text of a program, not {type(code).__name__}")
    if "\0" in code:
        raise ValueError("code holds a null byte, which no Python program may")
    try:
        data = code.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"code cannot be written as UTF-8: {error}") from None
    if len(data) > MOST_CODE:
        raise ValueError(f"code takes {len(data)} bytes, more than {MOST_CODE}\nhint: put data into files of mnt_dir")
    return data


def _checked_timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout takes a number of seconds, not {timeout!r}")
    if not 0 < timeout < 1e9:
        raise ValueError(f"timeout={timeout!r} is no time to wait; it must be more than 0")
    return float(timeout)


def _checked_arguments(args: object) -> tuple[str, ...]:
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise TypeError(f"args takes a list of strings: args=[{args!r}]")
    for each in args:
        if not isinstance(each, str):
            raise TypeError(f"args takes strings, not {each!r}")
        if "\0" in each:
            raise ValueError(f"args: {each!r} holds a null byte, which no argument may")
    found = tuple(args)
    if sum(len(os.fsencode(each)) + 1 for each in found) > MOST_ARGUMENTS:
        raise ValueError(f"args take more than {MOST_ARGUMENTS} bytes\nhint: use stdin or a file in mnt_dir")
    return found


def _checked_input(stdin: object) -> bytes:
    if stdin is None:
        return b""
    if isinstance(stdin, str):
        return stdin.encode("utf-8", "surrogateescape")
    if isinstance(stdin, bytes | bytearray | memoryview):
        return bytes(stdin)
    raise TypeError(f"stdin takes text or bytes, not {type(stdin).__name__}")
