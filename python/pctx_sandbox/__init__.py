"""Runs Python functions that nobody has read, in boxes that see nothing of the host."""

from ._function import Result
from ._opaque import Opaque
from ._program import VERSION as __version__
from ._script import run
from .decorator import sandbox, sandbox_async
from .errors import (
    DependencyInstallError,
    LimaNotInstalledError,
    PlatformNotSupportedError,
    PodmanNotInstalledError,
    SandboxError,
    SandboxExecutionError,
    SandboxMemoryError,
    SandboxStartupError,
    SandboxTimeoutError,
    SerializationError,
)
from .executor import SandboxExecutor
from .guest.images import Image

__all__ = [
    "DependencyInstallError",
    "Image",
    "LimaNotInstalledError",
    "Opaque",
    "PlatformNotSupportedError",
    "PodmanNotInstalledError",
    "Result",
    "SandboxError",
    "SandboxExecutionError",
    "SandboxExecutor",
    "SandboxMemoryError",
    "SandboxStartupError",
    "SandboxTimeoutError",
    "SerializationError",
    "__version__",
    "run",
    "sandbox",
    "sandbox_async",
]
