"""Dependencies as one normal form, so that `["pandas", "numpy"]` and `["numpy", "pandas "]` are one Environment."""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_EXTRAS = re.compile(r"\s*\[([^\]]*)\]")
_CLAUSE = re.compile(r"(===|==|~=|!=|<=|>=|<|>)\s*([A-Za-z0-9.*+!_-]+)")
_FILES = (".whl", ".zip", ".tar.gz", ".tgz", ".toml", ".txt")


def normalise(dependencies: Iterable[str] | None) -> tuple[str, ...]:
    """The requirements, each in its shortest usual form, sorted, without repeats. Raises ValueError with a sentence."""
    if dependencies is None:
        return ()
    if isinstance(dependencies, str):
        raise TypeError(f"dependencies takes a list of requirements: dependencies=[{dependencies!r}]")
    return tuple(sorted({_normalise_one(entry) for entry in dependencies}))


def _normalise_one(entry: object) -> str:
    if not isinstance(entry, str):
        raise TypeError(f"dependencies takes strings such as 'pandas>=2', not {type(entry).__name__}")
    text = entry.strip()
    if not text:
        raise ValueError("dependencies has an empty entry; remove it")
    _refuse_what_is_no_name(entry, text)
    requirement, _, marker = text.partition(";")
    matched = _NAME.match(requirement)
    if matched is None:
        raise ValueError(f"dependencies: {entry!r} does not begin with a package's name, as in 'pandas>=2'")
    name = re.sub(r"[-_.]+", "-", matched.group()).lower()
    rest = requirement[matched.end() :]
    extras = ""
    bracket = _EXTRAS.match(rest)
    if bracket is not None:
        named = sorted({re.sub(r"[-_.]+", "-", extra.strip()).lower() for extra in bracket.group(1).split(",")} - {""})
        extras = f"[{','.join(named)}]" if named else ""
        rest = rest[bracket.end() :]
    return name + extras + _clauses(entry, rest) + (f"; {' '.join(marker.split())}" if marker.strip() else "")


def _refuse_what_is_no_name(entry: str, text: str) -> None:
    if text.startswith("-"):
        raise ValueError(
            f"dependencies takes requirements, no options: {entry!r}; set the index in uv's or pip's settings"
        )
    if "://" in text or re.search(r"\s@\s|^[^;]*@", text):
        raise ValueError(f"dependencies takes names from the index, no URLs: {entry!r}; write 'name==version'")
    if text.startswith((".", "/", "~")) or "/" in text.partition(";")[0] or text.endswith(_FILES):
        raise ValueError(
            f"dependencies takes names from the index, no paths: {entry!r}; ship own code with include=[...]"
        )
    if any(ord(letter) < 32 for letter in text):
        raise ValueError(f"dependencies: {entry!r} has a control character; write one requirement per entry")


def _clauses(entry: str, rest: str) -> str:
    rest = rest.strip()
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1]
    found = []
    for part in filter(None, (part.strip() for part in rest.split(","))):
        clause = _CLAUSE.fullmatch(part)
        if clause is None:
            raise ValueError(
                f"dependencies: {entry!r} is no requirement; write it as 'pandas', 'pandas==2.2.3' or 'pandas>=2,<3'"
            )
        found.append(clause.group(1) + clause.group(2))
    return ",".join(sorted(found))


def dependency_hash(dependencies: tuple[str, ...]) -> str:
    """Names a set of requirements for this Python and platform in configuration and logs."""
    parts = [*dependencies, f"python{sys.version_info[0]}.{sys.version_info[1]}", sysconfig.get_platform()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
