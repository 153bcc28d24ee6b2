"""Puts the packages of `include=` where imports inside the box find them: own files, read-only by their modes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping


def install(files: Mapping[str, bytes]) -> str:
    """Writes the files (relative path: contents) into a fresh folder and puts it first on sys.path."""
    root = tempfile.mkdtemp(prefix="include-")
    folders = {root}
    for name, data in files.items():
        path = os.path.join(root, name)
        folder = os.path.dirname(path)
        if folder not in folders:
            os.makedirs(folder, exist_ok=True)
            folders.add(folder)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    for folder in sorted(folders, reverse=True):
        os.chmod(folder, 0o555)
    sys.path.insert(0, root)
    return root
