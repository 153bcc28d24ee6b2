"""What a script may do: the configuration that people write, and the policy that the engine reads."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import _network
from .._settings import MIB, check_env, check_number
from ..errors import SandboxError
from .virtualenv import Virtualenv

log = logging.getLogger("pctx_sandbox")

VENV_VARIABLE = "CODEEXEC_SANDBOX_VENV"
PROFILE_VARIABLE = "CODEEXEC_SANDBOX_AA_PROFILE_NAME"
# The engine's own defaults, but for the time: as with subprocess.run, without `timeout` there is no limit.
LIMITS: dict[str, Any] = {
    "memory_mb": 1024,
    "cpus": 1,
    "pids": 64,
    "disk_mb": 256,
    "inodes": 20_000,
    "output_mb": 16,
    "cpu_time_sec": None,
}
_LEAST = {"memory_mb": 16, "pids": 1, "disk_mb": 1, "inodes": 16}
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ConfigurationError(SandboxError, ValueError):
    """The configuration is incomplete; the message names what is missing."""


@dataclasses.dataclass(frozen=True)
class SandboxConfig:
    """Which virtualenv runs scripts, and what they may do.

    `enable_network=True` is the host's own network; `allow_network=["api.example.com"]` opens these hosts only.
    `limits`: memory_mb, cpus, pids, disk_mb, inodes, output_mb, cpu_time_sec. `preload` names modules that are
    imported before the script starts. `warm=False` starts a new interpreter for every script.
    """

    venv_path: str | os.PathLike[str]
    apparmor_profile_name: str | None = None
    enable_network: bool = True
    allow_network: Sequence[str] | None = None
    network_private: Sequence[str] = ()
    limits: Mapping[str, Any] | None = None
    preload: Sequence[str] = ()
    warm: bool = True
    env: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.venv_path, str | os.PathLike):
            raise TypeError(f"venv_path takes the path of a virtualenv, not {self.venv_path!r}")
        name = self.apparmor_profile_name
        if name is not None and (not isinstance(name, str) or not name or "\0" in name):
            raise TypeError(f"apparmor_profile_name takes the name of a profile, not {name!r}")
        for field in ("enable_network", "warm"):
            if not isinstance(getattr(self, field), bool):
                raise TypeError(f"{field} takes True or False, not {getattr(self, field)!r}")
        if self.allow_network is not None and not self.enable_network:
            raise ValueError("allow_network opens hosts and enable_network=False closes all: leave one of them out")
        _network.check_entries(self.allow_network)
        if _network.check_private(self.network_private) and not self.allow_network:
            raise ValueError("network_private says something about allow_network, which is not there")
        checked_limits(self.limits)
        checked_preload(self.preload)
        check_env(self.env)


def get_default_sandbox_config() -> SandboxConfig:
    """The configuration that the environment names. ConfigurationError if it names no virtualenv."""
    venv = os.environ.get(VENV_VARIABLE)
    if not venv:
        raise ConfigurationError(
            f"{VENV_VARIABLE} is not set, so there is no default virtualenv\n"
            f"hint: export {VENV_VARIABLE}=/path/to/venv, or use SandboxConfig(venv_path=...)"
        )
    profile = os.environ.get(PROFILE_VARIABLE) or None
    if profile is None and kernel_has_apparmor():
        raise ConfigurationError(
            f"{PROFILE_VARIABLE} is not set, and this kernel has AppArmor\n"
            f"hint: export {PROFILE_VARIABLE}=my_sandbox_profile, or use SandboxConfig(venv_path=...)"
        )
    return SandboxConfig(venv_path=venv, apparmor_profile_name=profile)


def kernel_has_apparmor() -> bool:
    """Whether profiles can be loaded here at all."""
    try:
        with open("/sys/module/apparmor/parameters/enabled") as file:
            return file.read(1) == "Y"
    except OSError:
        return False


def checked_limits(limits: Mapping[str, Any] | None) -> dict[str, Any]:
    """All limits, those that are not named with their defaults."""
    if limits is not None and not isinstance(limits, Mapping):
        raise TypeError(f"limits takes a dict, for example {{'memory_mb': 512}}, not {limits!r}")
    for name, value in (limits or {}).items():
        if name not in LIMITS:
            raise ValueError(f"limits: {name!r} is not known; known are {', '.join(LIMITS)}")
        if value is not None or name != "cpu_time_sec":
            check_number(name, value, _LEAST.get(name, 0), whole=name in _LEAST)
    return {**LIMITS, **(limits or {})}


def checked_preload(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"preload takes a list: preload=[{names!r}]")
    found = tuple(dict.fromkeys(names))
    for name in found:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"preload takes names of modules, not {name!r}")
    return found


def output_bytes(limits: Mapping[str, Any]) -> int:
    return int(limits["output_mb"] * MIB)


def make_policy(
    conf: SandboxConfig, venv: Virtualenv, limits: Mapping[str, Any], timeout: float | None, scratch_mnt: bool
) -> dict[str, Any]:
    """The policy of one script, as a policy file would say it; `/mnt` itself is added where the folder is known."""
    bounds: dict[str, Any] = {
        "memory": limits["memory_mb"] * MIB,
        "cpus": limits["cpus"],
        "pids": limits["pids"],
        "disk": limits["disk_mb"] * MIB,
        "inodes": limits["inodes"],
        "output": output_bytes(limits),
        "timeout": timeout if timeout is not None else 0,
    }
    if limits["cpu_time_sec"] is not None:
        bounds["cpu_time"] = limits["cpu_time_sec"]
    files: dict[str, Any] = {"ro_as_is": list(venv.lent), "workdir": "/mnt"}
    if scratch_mnt:
        files["tmpfs"] = [f"/mnt:{bounds['disk']}"]
    variables = {
        "VIRTUAL_ENV": venv.place,
        "PATH": f"{venv.place}/bin:{DEFAULT_PATH}",
        # What was printed before a time-out is there, and no __pycache__ appears among the changed files.
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict(check_env(conf.env)),
    }
    policy = {"limits": bounds, "files": files, "identity": {"env": variables}, "network": _network_policy(conf)}
    if conf.apparmor_profile_name is not None:
        if kernel_has_apparmor():
            policy["apparmor"] = conf.apparmor_profile_name
        else:
            _say_without_apparmor(conf.apparmor_profile_name)
    return policy


@functools.lru_cache(maxsize=64)
def _say_without_apparmor(profile: str) -> None:
    """Once: the same program runs on hosts with and without, and the Receipt says that the layer is off."""
    log.warning(
        "this kernel has no AppArmor, or it is switched off: "
        "scripts run without the profile %r (the other layers hold)",
        profile,
    )


def _network_policy(conf: SandboxConfig) -> str | dict[str, Any]:
    if conf.allow_network is not None:
        allowed = list(_network.check_entries(conf.allow_network))
        private = list(_network.check_private(conf.network_private))
        return ({"allow": allowed, "private": private} if private else {"allow": allowed}) if allowed else "none"
    return "host" if conf.enable_network else "none"
