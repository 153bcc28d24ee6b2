"""Scripts in a container: the virtualenv is lent to the container read-only, folders travel as copies."""

from __future__ import annotations

import dataclasses
import os

from .. import _backend
from .._backend import Backend
from ..client import Canceller
from .config import ConfigurationError
from .request import Request
from .result import Ended
from .virtualenv import Virtualenv
from .warm import run_warm


def choose(warm: bool) -> Backend:
    """Which backend runs scripts. Without a Broker nothing need be decided here: `pctx-sandbox run` does it."""
    wanted = os.environ.get(_backend.VARIABLE) or "auto"
    return _backend.resolve("namespaces" if wanted == "auto" and not warm else wanted)


def refuse_what_it_cannot(request: Request, backend: Backend) -> None:
    if backend.socket and request.conf.enable_network and request.conf.allow_network is None:
        raise ConfigurationError(
            f"enable_network=True is this host's own network, which the container of {backend.name!r} does not have\n"
            "hint: name the hosts with SandboxConfig(allow_network=['api.example.com']) ('*' is every public one), "
            "or set enable_network=False"
        )


def run_warm_elsewhere(request: Request, canceller: Canceller | None, backend: Backend) -> Ended:
    """As `run_warm`, in a container."""
    _have_virtualenv(request.venv, backend)
    if request.folder is None:
        return run_warm(request, canceller, backend)
    from .._lent import lend_once

    with lend_once(request.folder, backend) as (seen, changed):
        ended = run_warm(dataclasses.replace(request, folder=seen), canceller, backend)
    ended.report = {**ended.report, "changed": changed}
    return ended


def sources(venv: Virtualenv) -> list[str]:
    """What of the host the virtualenv is made of."""
    return list(dict.fromkeys(entry.partition(":")[0] for entry in venv.lent))


_had: dict[tuple[str, str], str] = {}  # by backend and virtualenv: what it was like when it was lent
MOST_KNOWN = 256


def _have_virtualenv(venv: Virtualenv, backend: Backend) -> None:
    """One that was made anew at the same path is another folder, which the container lacks."""
    marks = venv.fingerprint()
    if _had.get((backend.name, venv.path)) == marks:
        return
    backend.lend(source for source in sources(venv) if backend.sees(source) == source)
    if len(_had) >= MOST_KNOWN:
        _had.clear()
    _had[backend.name, venv.path] = marks
