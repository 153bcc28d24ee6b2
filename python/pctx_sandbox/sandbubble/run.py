"""`run_sandboxed` and `run_sandboxed_async`: a snippet or a script, with a virtualenv, in a box."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _futures
from ..client import Canceller
from .cold import run_cold
from .config import SandboxConfig
from .elsewhere import choose, refuse_what_it_cannot, run_warm_elsewhere
from .request import Request, make_request
from .result import ScriptResult, make_result
from .warm import run_warm


def run_sandboxed(
    conf: SandboxConfig,
    code: str | None = None,
    script_path: str | os.PathLike[str] | None = None,
    mnt_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    args: Sequence[str] = (),
    stdin: str | bytes | None = None,
    limits: Mapping[str, Any] | None = None,
    *,
    preload: Sequence[str] | None = None,
    warm: bool | None = None,
) -> tuple[ScriptResult, list[str]]:
    """Runs a script as `python script.py` would: (result, paths created or modified under /mnt).

    Exactly one of `code` and `script_path` (under /mnt). `mnt_dir` is the temporary folder or lies below it, else
    ValueError. Past `timeout` seconds `subprocess.TimeoutExpired` is raised, with what was printed until then; without
    it there is no limit. The network is the host's unless `conf` closes it.
    """
    request = make_request(conf, code, script_path, mnt_dir, timeout, args, stdin, limits, preload, warm)
    result = run_request(request)
    return result, result.changed


async def run_sandboxed_async(
    conf: SandboxConfig,
    code: str | None = None,
    script_path: str | os.PathLike[str] | None = None,
    mnt_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    args: Sequence[str] = (),
    stdin: str | bytes | None = None,
    limits: Mapping[str, Any] | None = None,
    *,
    preload: Sequence[str] | None = None,
    warm: bool | None = None,
) -> tuple[ScriptResult, list[str]]:
    """As `run_sandboxed`, without blocking the event loop. Cancelling it kills the box."""
    request = make_request(conf, code, script_path, mnt_dir, timeout, args, stdin, limits, preload, warm)
    result = await _futures.wait_for(lambda _, canceller: run_request(request, canceller))
    return result, result.changed


def run_request(request: Request, canceller: Canceller | None = None) -> ScriptResult:
    warm = request.warm and request.venv.can_be_warm
    backend = choose(warm)
    refuse_what_it_cannot(request, backend)
    if not warm:
        return make_result(request, run_cold(request, canceller))
    ended = (run_warm_elsewhere if backend.socket else run_warm)(request, canceller, backend)
    receipt = ended.report.get("receipt")
    if isinstance(receipt, dict):
        receipt["backend"] = backend.shown()
    return make_result(request, ended)
