"""What a caller can catch. Every message says the cause and the next step."""

from __future__ import annotations


class SandboxError(Exception):
    """The root of everything that pctx-sandbox raises."""


class SandboxStartupError(SandboxError):
    """No box could be made: the Broker does not start, or this host lacks what a box needs."""


class SandboxExecutionError(SandboxError):
    """The function raised, or its process died. The guest's exception comes back as text, never as an object."""

    def __init__(self, message: str, error_type: str = "", traceback_str: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.traceback_str = traceback_str

    def __reduce__(self) -> tuple[type[SandboxExecutionError], tuple[str, str, str]]:
        # The default would call the class with the message alone and lose the rest in a process pool.
        return type(self), (str(self), self.error_type, self.traceback_str)


class SandboxTimeoutError(SandboxError, TimeoutError):
    """The function ran longer than `timeout_sec` (or used more than `cpu_time_sec`) and was stopped."""


class SandboxMemoryError(SandboxError, MemoryError):
    """The function needed more than `memory_mb` and was stopped."""


class SerializationError(SandboxError):
    """A value cannot travel: it is not data, passes a limit, or needs a library that is missing where it goes."""


class DependencyInstallError(SandboxError):
    """An Environment could not be built; the message holds the resolver's own words."""


class PlatformNotSupportedError(SandboxError):
    """This operating system cannot run boxes by itself; the message names the way that works."""


class PodmanNotInstalledError(PlatformNotSupportedError):
    """`backend="podman"` was asked for and podman is not installed."""


class LimaNotInstalledError(PlatformNotSupportedError):
    """`backend="lima"` was asked for and limactl is not installed."""
