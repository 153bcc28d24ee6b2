"""What comes back from a script."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping
from typing import Any

from ..errors import SandboxStartupError
from .request import Request


@dataclasses.dataclass(frozen=True)
class SkippedFile:
    """Something under /mnt that is no plain file, or could not be looked into."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class ChangedFiles:
    """What the script did under /mnt: paths relative to it, sorted. `incomplete` says why if the list is not whole."""

    created: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    incomplete: str = ""


@dataclasses.dataclass(frozen=True)
class ScriptResult:
    """How a script ended. `returncode` is its own, or minus the signal that ended it, as in `subprocess`."""

    args: list[str]
    returncode: int
    stdout: str
    stderr: str
    stdout_bytes: bytes = dataclasses.field(repr=False)
    stderr_bytes: bytes = dataclasses.field(repr=False)
    truncated: bool  # it printed more than output_mb and was stopped there
    outcome: Mapping[str, Any]  # kind, exit_code, signal, limit, message
    files: ChangedFiles
    receipt: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def changed(self) -> list[str]:
        """Created or modified under /mnt, sorted; the script itself is not among them."""
        return sorted({*self.files.created, *self.files.modified})


@dataclasses.dataclass
class Ended:
    """What the engine reports, and the two streams."""

    report: Mapping[str, Any]
    stdout: bytes
    stderr: bytes
    too_much: bool = False  # the streams were cut


def make_result(request: Request, ended: Ended) -> ScriptResult:
    """The result; `subprocess.TimeoutExpired` if the time was up."""
    outcome = ended.report.get("outcome")
    receipt = ended.report.get("receipt")
    if not isinstance(outcome, dict) or not isinstance(receipt, dict):
        raise SandboxStartupError("the engine's report is not understood\nhint: install the package again")
    kind, code, signal = outcome.get("kind"), outcome.get("exit_code"), outcome.get("signal")
    files = _files(ended.report.get("changed"), request.script)
    stdout, stderr = ended.stdout.decode("utf-8", "replace"), ended.stderr.decode("utf-8", "replace")
    if kind == "timed_out" and outcome.get("limit") == "timeout" and request.timeout is not None:
        expired = subprocess.TimeoutExpired(request.command, request.timeout, stdout, stderr)
        expired.receipt, expired.files = receipt, files  # type: ignore[attr-defined]
        raise expired
    return ScriptResult(
        args=request.command,
        returncode=code if isinstance(code, int) else -signal if isinstance(signal, int) and signal > 0 else -9,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=ended.stdout,
        stderr_bytes=ended.stderr,
        truncated=ended.too_much or kind == "output_limit",
        outcome=outcome,
        files=files,
        receipt=receipt,
    )


def _files(changed: object, script: str | None) -> ChangedFiles:
    if not isinstance(changed, dict):
        return ChangedFiles()

    def names(key: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in changed.get(key) or () if name != script))

    skipped = tuple(SkippedFile(entry["path"], entry["reason"]) for entry in changed.get("skipped") or ())
    return ChangedFiles(
        names("created"), names("modified"), names("deleted"), skipped, str(changed.get("truncated") or "")
    )
