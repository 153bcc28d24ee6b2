"""What a decorator's arguments mean: checked once, at decoration, each mistake answered with one sentence."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from . import _network
from ._requirements import dependency_hash, normalise

BACKENDS = ("auto", "namespaces", "podman", "lima")
# A name that is known and that nothing answers to: a call says so, and nobody is offered it.
_NOT_HERE = "microvm"
RETURNS = ("data", "opaque")
# docs/reference/policy.md describes them.
LAYERS = (
    "user",
    "pid",
    "mount",
    "network",
    "ipc",
    "uts",
    "cgroup-namespace",
    "proc",
    "capabilities",
    "no-new-privs",
    "seccomp",
    "landlock",
    "subordinate-ids",
    "cgroups",
    "apparmor",
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of one `@sandbox(...)`, valid and in normal form."""

    dependencies: tuple[str, ...]
    memory_mb: int
    timeout_sec: float
    cpus: float
    allow_network: tuple[str, ...]
    network_private: tuple[str, ...]
    net_rate: int | str | None
    net_bytes: int | str | None
    net_connections: int | None
    disable_cache: bool
    pids: int
    disk_mb: int
    inodes: int
    output_mb: float
    cpu_time_sec: float | None
    env: tuple[tuple[str, str], ...]
    mnt_dir: str | None
    include: tuple[str, ...]
    returns: str
    backend: str
    build_timeout_sec: float
    queue_timeout_sec: float
    require: tuple[str, ...]
    allow_degraded: tuple[str, ...]
    dep_hash: str

    def policy(self) -> dict[str, Any]:
        """The policy of a call, as a policy file would say it."""
        limits: dict[str, Any] = {
            "memory": self.memory_mb * MIB,
            "cpus": self.cpus,
            "pids": self.pids,
            "disk": self.disk_mb * MIB,
            "inodes": self.inodes,
            "timeout": self.timeout_sec,
        }
        if self.cpu_time_sec is not None:
            limits["cpu_time"] = self.cpu_time_sec
        policy: dict[str, Any] = {"limits": limits, "network": self._network()}
        if self.env:
            policy["identity"] = {"env": dict(self.env)}
        if self.mnt_dir is not None:
            policy["files"] = {"mnt": self.mnt_dir}
        if self.require:
            policy["require"] = list(self.require)
        if self.allow_degraded:
            policy["allow_degraded"] = list(self.allow_degraded)
        return policy

    def _network(self) -> str | dict[str, Any]:
        if not self.allow_network:
            return "none"
        network: dict[str, Any] = {"allow": list(self.allow_network)}
        if self.network_private:
            network["private"] = list(self.network_private)
        for key, value in (("rate", self.net_rate), ("bytes", self.net_bytes), ("connections", self.net_connections)):
            if value is not None:
                network[key] = value
        return network

    def public(self) -> dict[str, Any]:
        """What `_sandbox_config` shows."""
        shown = dataclasses.asdict(self)
        shown["dependencies"] = list(self.dependencies)
        shown["env"] = dict(self.env)
        shown["allow_network"] = list(self.allow_network) or None
        return shown


def make_settings(
    dependencies: Iterable[str] | None,
    allow_network: object,
    network_private: Iterable[str],
    net_rate: object,
    net_bytes: object,
    net_connections: object,
    env: Mapping[str, str] | None,
    mnt_dir: str | os.PathLike[str] | None,
    include: Iterable[str],
    require: Iterable[str],
    allow_degraded: Iterable[str],
    **plain: Any,
) -> Settings:
    """Checks every argument. TypeError for a wrong kind, ValueError for a wrong value, each with what to write."""
    allowed = _network.check_entries(allow_network)
    companions: dict[str, Any] = {
        "network_private": _network.check_private(network_private),
        "net_rate": _network.check_amount("net_rate", net_rate),
        "net_bytes": _network.check_amount("net_bytes", net_bytes),
        "net_connections": _network.check_count("net_connections", net_connections, most=_network.MOST_CONNECTIONS),
    }
    for name, value in companions.items():
        if value and not allowed:
            raise ValueError(f"{name} says something about allow_network, which is not there")
    wanted = normalise(dependencies)
    for name, least in (("memory_mb", 16), ("pids", 1), ("disk_mb", 1), ("inodes", 16)):
        check_number(name, plain[name], least, whole=True)
    for name in ("timeout_sec", "cpus", "output_mb", "build_timeout_sec", "queue_timeout_sec"):
        check_number(name, plain[name], 0, whole=False)
    if plain["cpu_time_sec"] is not None:
        check_number("cpu_time_sec", plain["cpu_time_sec"], 0, whole=False)
    if not isinstance(plain["disable_cache"], bool):
        raise TypeError(f"disable_cache takes True or False, not {plain['disable_cache']!r}")
    _check_choice("returns", plain["returns"], RETURNS)
    if plain["backend"] != _NOT_HERE:
        _check_choice("backend", plain["backend"], BACKENDS)
    return Settings(
        dependencies=wanted,
        allow_network=allowed,
        env=check_env(env),
        mnt_dir=None if mnt_dir is None else os.path.abspath(_check_path(mnt_dir)),
        include=_check_names("include", include),
        require=_check_layers("require", require),
        allow_degraded=_check_layers("allow_degraded", allow_degraded),
        dep_hash=dependency_hash(wanted),
        **companions,
        **plain,
    )


def check_number(name: str, value: object, least: float, *, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or (whole and isinstance(value, float)):
        raise TypeError(f"{name} takes a {'whole number' if whole else 'number'}, not {value!r}")
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{name}={value!r}: a limit must be finite")
    if value < least or (least == 0 and value <= 0):
        raise ValueError(
            f"{name}={value!r} is too small; it must be {'more than 0' if least == 0 else f'at least {least}'}"
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; choose one of {', '.join(map(repr, choices))}")


def _check_path(path: str | os.PathLike[str]) -> str:
    found = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(found, str) or not found or "\0" in found:
        raise TypeError(f"mnt_dir takes the path of a folder, not {path!r}")
    return found


def check_env(env: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if env is None:
        return ()
    if env is os.environ:
        raise ValueError("env=os.environ would hand every secret to the box; name the variables: env={'TZ': 'UTC'}")
    if not isinstance(env, Mapping):
        raise TypeError(f"env takes a dict of strings, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env takes strings only: env={{{name!r}: {str(value)!r}}}")
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ValueError(f"env: {name!r} cannot be the name of a variable, or its value holds a NUL")
    return tuple(sorted(env.items()))


def _check_names(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"{name} takes a list: {name}=[{values!r}]")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str) or not value.isidentifier():
            raise ValueError(f"{name} takes names of top-level packages or modules of your own, not {value!r}")
    return tuple(sorted(set(found)))


def _check_layers(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"{name} takes a list: {name}=[{values!r}]")
    found = tuple(values)
    for value in found:
        if value not in LAYERS:
            raise ValueError(f"{name}: {value!r} is no layer; known are {', '.join(LAYERS)}")
    return tuple(sorted(set(found)))
