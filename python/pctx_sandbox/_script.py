"""`run`: a snippet for those who come without a virtualenv. Its dependencies become an Environment, built once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _program
from ._backend import VARIABLE
from ._environment import environment_for
from ._settings import Settings, make_settings
from .sandbubble.config import SandboxConfig
from .sandbubble.elsewhere import choose
from .sandbubble.request import make_request
from .sandbubble.result import ScriptResult
from .sandbubble.run import run_request


def run(
    code: str,
    dependencies: Iterable[str] | None = None,
    *,
    timeout: float | None = None,
    args: Sequence[str] = (),
    stdin: str | bytes | None = None,
    mnt_dir: str | os.PathLike[str] | None = None,
    limits: Mapping[str, Any] | None = None,
    allow_network: Sequence[str] | None = None,
    network_private: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] = (),
    warm: bool = True,
    disable_cache: bool = False,
) -> ScriptResult:
    """Runs the text of a program as `python script.py` would, in a box of its own: how it ended and what it printed.

    It has the standard library and the `dependencies` (PEP 508), which are installed once; `disable_cache=True`
    installs them afresh. It has no network but to the hosts in `allow_network`, private addresses only within
    `network_private`, and none of your environment's variables: `env` gives it some. `mnt_dir`, the temporary folder or
    one below it, is lent writable as /mnt; the result's `files` and `changed` say what was done there. `args` are
    `sys.argv[1:]`, `stdin` is text or bytes. `limits`: memory_mb, cpus, pids, disk_mb, inodes, output_mb, cpu_time_sec.
    `preload` names modules that are imported before the script starts; `warm=False` starts a new interpreter for it.

    Without `timeout` there is no time limit. Past its seconds `subprocess.TimeoutExpired` is raised, with what was
    printed until then. DependencyInstallError if the dependencies cannot be had, ValueError or TypeError for a wrong
    argument, SandboxStartupError if no box can be made. A program that fails raises nothing: see `returncode`.
    """
    settings = _settings(dependencies, disable_cache)
    _program.require_linux()
    backend = choose(warm)
    environment = environment_for(settings, backend.name if warm else os.environ.get(VARIABLE) or "auto")
    conf = SandboxConfig(
        venv_path=environment.path or _bare_virtualenv(environment.python, backend.support[0]),
        enable_network=allow_network is not None,
        allow_network=allow_network,
        network_private=network_private,
        env=env,
        preload=tuple(preload) if not isinstance(preload, str) else preload,
        warm=warm,
    )
    return run_request(make_request(conf, code, None, mnt_dir, timeout, args, stdin, limits, None, None))


def _settings(dependencies: Iterable[str] | None, disable_cache: bool) -> Settings:
    return make_settings(
        dependencies,
        allow_network=None,
        network_private=(),
        net_rate=None,
        net_bytes=None,
        net_connections=None,
        env=None,
        mnt_dir=None,
        include=(),
        require=(),
        allow_degraded=(),
        memory_mb=1024,
        timeout_sec=30.0,
        cpus=1,
        disable_cache=disable_cache,
        pids=64,
        disk_mb=256,
        inodes=20000,
        output_mb=16,
        cpu_time_sec=None,
        returns="data",
        backend="auto",
        build_timeout_sec=600,
        queue_timeout_sec=60,
    )


def _bare_virtualenv(python: str, folder: str) -> str:
    """A virtualenv of this interpreter with no package in it: without one, a script would see the system's. It lies in
    the folder, where a container has one for our code, else beside the Broker's socket."""
    import sys

    if not folder:
        socket = _program.socket_path()
        _program.check_folder(socket)
        folder = os.path.dirname(socket)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = hashlib.sha256(f"{python}\n{sys.version}".encode()).hexdigest()[:16]
    path = os.path.join(folder, f"python-{name}")
    if os.path.isfile(os.path.join(path, "pyvenv.cfg")):
        return path
    fresh = tempfile.mkdtemp(prefix="python-", dir=folder)
    os.makedirs(os.path.join(fresh, "lib", f"python{version}", "site-packages"))
    os.mkdir(os.path.join(fresh, "bin"))
    os.symlink(python, os.path.join(fresh, "bin", "python"))
    with open(os.path.join(fresh, "pyvenv.cfg"), "w") as file:
        file.write(f"home = {os.path.dirname(python)}\ninclude-system-site-packages = false\nversion = {version}\n")
    os.chmod(fresh, 0o755)
    try:
        os.rename(fresh, path)  # somebody else's that is there already is as good
    except OSError:
        import shutil

        shutil.rmtree(fresh, ignore_errors=True)
    return path
