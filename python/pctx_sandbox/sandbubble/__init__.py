"""Snippets and scripts that nobody has read, run with a virtualenv that is there, in boxes that see nothing else."""

from .config import ConfigurationError, SandboxConfig, get_default_sandbox_config
from .result import ChangedFiles, ScriptResult, SkippedFile
from .run import run_sandboxed, run_sandboxed_async
from .virtualenv import VirtualenvError

__all__ = [
    "ChangedFiles",
    "ConfigurationError",
    "SandboxConfig",
    "ScriptResult",
    "SkippedFile",
    "VirtualenvError",
    "get_default_sandbox_config",
    "run_sandboxed",
    "run_sandboxed_async",
]
