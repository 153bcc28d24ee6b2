"""Which modules are the caller's own, which the box has by itself, and which package on the index provides the rest."""

from __future__ import annotations

import functools
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from types import ModuleType

from ._arguments import dependency_for, installed_modules
from .errors import SerializationError

# Ours; inside a box both names are what the guest's part of this package puts there.
LENT = frozenset({"pctx_sandbox", "cloudpickle"})
LARGEST_INCLUDE = 32 << 20
SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".mypy_cache", ".pytest_cache", "node_modules"})


@functools.lru_cache(maxsize=1)
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths}
    folders.update(getattr(site, "getsitepackages", list)())
    folders.add(getattr(site, "getusersitepackages", str)())
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders if folder)


def root_of(module: str) -> str:
    return module.partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _is_own_root(root: str) -> bool:
    if root in sys.stdlib_module_names or root in LENT or root in sys.builtin_module_names:
        return False
    place = _place_of(sys.modules.get(root))
    if place is None:
        return True
    if {"site-packages", "dist-packages"} & set(place.split(os.sep)):
        return False
    # A virtual environment may lie inside the standard library's prefix and the other way round: longest wins nothing,
    # since site-packages was asked for first.
    return not os.path.realpath(place).startswith(_installed_folders())


def _place_of(module: ModuleType | None) -> str | None:
    """The file of a module, or the folder of a namespace package; None for what has neither."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file
    for folder in getattr(module, "__path__", ()):
        return os.path.join(str(folder), "")
    return None


def is_own(module: str | None, included: Iterable[str] = ()) -> bool:
    """True if what a module defines must travel by value: the box has no way to import it."""
    if not module:
        return False
    root = root_of(module)
    if root in ("__main__", "__mp_main__"):
        return True
    if root in included:
        return False
    return _is_own_root(root)


def advice_for_missing(module: str, included: Iterable[str] = ()) -> str:
    """The next step after `No module named ...` inside a box. The guest's name is looked up, never imported."""
    root = root_of(module)
    if not root.isidentifier() or root in included:
        return ""
    entry = dependency_for(root)
    if root in installed_modules():
        return f"add {entry!r} to dependencies=[...]: this program has it installed, the box does not"
    if root in sys.modules and _is_own_root(root):
        return f"add include=[{root!r}] to ship your own package for imports in the function's body"
    return f"if {root!r} comes from a package on the index, add that package to dependencies=[...]"


def collect_include(names: tuple[str, ...]) -> dict[str, bytes]:
    """The files of the caller's packages by relative path, sorted: the same sources give the same bytes."""
    files: dict[str, bytes] = {}
    size = 0
    for name in names:
        for relative, path in sorted(_files_of(name)):
            with open(path, "rb") as file:
                data = file.read(LARGEST_INCLUDE + 1)
            size += len(data)
            if size > LARGEST_INCLUDE:
                raise SerializationError(
                    f"include={list(names)!r} holds more than {LARGEST_INCLUDE >> 20} MiB\n"
                    "hint: lend large folders with mnt_dir=, and include only packages of sources"
                )
            files[relative] = data
    return files


def include_signature(names: tuple[str, ...]) -> tuple[object, ...]:
    """Changes when a file of the packages does."""
    found: list[object] = []
    for name in names:
        for relative, path in sorted(_files_of(name)):
            status = os.stat(path)
            found.append((relative, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _files_of(name: str) -> list[tuple[str, str]]:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise SerializationError(
            f"include={[name]!r}: this program cannot import {name!r}\nhint: name a package or module of your own"
        )
    if not spec.submodule_search_locations:
        if not spec.origin or not spec.origin.endswith(".py"):
            raise SerializationError(
                f"include={[name]!r}: {name} has no Python source\nhint: packages from the index go into dependencies="
            )
        return [(os.path.basename(spec.origin), spec.origin)]
    found: list[tuple[str, str]] = []
    for root in spec.submodule_search_locations:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
            for file in names:
                path = os.path.join(folder, file)
                if not file.endswith((".pyc", ".pyo")) and os.path.isfile(path):
                    found.append((os.path.join(name, os.path.relpath(path, root)), path))
    return found
