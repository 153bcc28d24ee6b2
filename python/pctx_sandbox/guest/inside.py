"""What `import pctx_sandbox` means inside a box: the same names, and every sandboxed function is a plain one.

The box is already there, so recursion, calls between sandboxed functions and modules that decorate at import just run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .images import Image

__version__ = "0.2.0"
__all__ = ["Image", "Opaque", "SandboxExecutor", "install", "sandbox", "sandbox_async"]


def sandbox(dependencies: Any = None, *_: Any, **__: Any) -> Any:
    """Leaves the function as it is, bare or with any arguments."""
    if callable(dependencies) or isinstance(dependencies, staticmethod | classmethod):
        return dependencies
    return _same


sandbox_async = sandbox


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class Opaque:
    """Only a name for annotations here: a handle that is passed in arrives as the value it holds."""


class SandboxExecutor:
    """Refuses: a box cannot start boxes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("SandboxExecutor cannot be used inside a box; call the function directly, it is plain here")


def _exceptions() -> dict[str, type]:
    """The package's exceptions, so that `except SandboxError` in a shipped function finds its name."""
    root = type("SandboxError", (Exception,), {})
    found: dict[str, type] = {"SandboxError": root}
    extra: dict[str, tuple[type, ...]] = {
        "SandboxStartupError": (),
        "SandboxExecutionError": (),
        "SandboxTimeoutError": (TimeoutError,),
        "SandboxMemoryError": (MemoryError,),
        "SerializationError": (),
        "DependencyInstallError": (),
        "PlatformNotSupportedError": (),
    }
    for name, bases in extra.items():
        found[name] = type(name, (root, *bases), {})
    found["PodmanNotInstalledError"] = type("PodmanNotInstalledError", (found["PlatformNotSupportedError"],), {})
    return found


globals().update(_exceptions())

# Where the caller's package keeps these names: what was pickled there by name is found here.
_HOST_MODULES = ("errors", "decorator", "executor", "_opaque", "_wrapper")


def installed() -> bool:
    return bool(getattr(sys.modules[__name__.rpartition(".")[0]], "INSIDE", False))


def install() -> None:
    """Makes this module `pctx_sandbox` and the guest package `pctx_sandbox.guest`, however they were loaded."""
    here: Any = sys.modules[__name__]
    here.__path__ = []
    sys.modules["pctx_sandbox"] = here
    for name in _HOST_MODULES:
        sys.modules[f"pctx_sandbox.{name}"] = here
    package = __name__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            sys.modules["pctx_sandbox.guest" + name[len(package) :]] = module
    guest: Any = sys.modules[package]
    guest.INSIDE = True
    here.guest = guest
