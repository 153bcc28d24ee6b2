"""The project's own files, for tests that read them."""

import subprocess
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent


def files(*patterns):
    """Paths, relative to the tree, of files that are committed or about to be."""
    command = ["git", "-c", f"safe.directory={TREE}", "-C", str(TREE), "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({Path(name) for name in names if name and (TREE / name).is_file()})


def text(path):
    return (TREE / path).read_text(encoding="utf-8", errors="replace")
