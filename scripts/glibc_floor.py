#!/usr/bin/env python3
"""The oldest glibc on which compiled files load, read from the symbol versions that they name.

usage: scripts/glibc_floor.py FILE...    prints one version, such as 2.17, for all of them; needs readelf (binutils)

Exits with 1 when a file needs a library that is not glibc's own: a wheel may not count on any other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

# What PEP 600 expects of a system of that age, as far as it is glibc's.
OF_GLIBC = re.compile(r"^(libc|libm|libdl|librt|libpthread|ld-linux[\w-]*)\.so\.\d+$")


def dynamic_facts(path: str) -> str:
    command = ["readelf", "--wide", "--dynamic", "--version-info", path]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"LC_ALL": "C"}
    ).stdout


def foreign_libraries(facts: str) -> list[str]:
    return [name for name in re.findall(r"\(NEEDED\).*\[(.+?)\]", facts) if not OF_GLIBC.match(name)]


def floor(facts: str) -> tuple[int, int]:
    """(2, 17); a static program asks for nothing."""
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", facts)
    return max(((int(major), int(minor)) for major, minor in versions), default=(2, 0))


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    highest = (2, 0)
    for path in paths:
        facts = dynamic_facts(path)
        if foreign := foreign_libraries(facts):
            print(f"{path} needs {', '.join(foreign)}, which not every system has", file=sys.stderr)
            return 1
        highest = max(highest, floor(facts))
    print(f"{highest[0]}.{highest[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
