"""Virtualenvs, and interpreters outside /usr, as people have them."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def make(path, *options, python=sys.executable):
    """What `python -m venv` makes, without pip: nothing here installs anything."""
    subprocess.run([str(python), "-m", "venv", "--without-pip", *options, str(path)], check=True)
    return path


def site_packages(venv):
    return next(Path(venv).glob("lib/python*/site-packages"))


def copy_interpreter(prefix):
    """A Python of its own in `prefix`; returns the program."""
    (prefix / "bin").mkdir(parents=True)
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    shutil.copy(base, prefix / "bin" / VERSION)
    ignored = shutil.ignore_patterns(
        "test", "tests", "site-packages", "dist-packages", "__pycache__", "idlelib", "config-*"
    )
    shutil.copytree(sysconfig.get_path("stdlib"), prefix / "lib" / VERSION, ignore=ignored)
    for library in Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent").glob("libpython3*.so*"):
        shutil.copy(library, prefix / "lib")
    return prefix / "bin" / VERSION


def interpreter_elsewhere(folder):
    """A Python below `folder`, as pyenv and uv install them, and a link to it, as uv makes them."""
    copy_interpreter(folder / "versions" / "own-1.2")
    (folder / "versions" / "own").symlink_to("own-1.2")
    return folder / "versions" / "own" / "bin" / VERSION
