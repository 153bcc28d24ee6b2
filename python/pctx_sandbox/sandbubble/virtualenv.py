"""What a virtualenv is made of, and what of the host must be lent so that its interpreter runs in a box.

Lent are the virtualenv's own parts (`pyvenv.cfg`, `bin`, `lib`...), not what else lies in its folder, and of an
interpreter outside /usr its programs and libraries. Nothing here runs anything: whoever may write to a virtualenv may
have made any file or link in it, a guest among them. No link leads what is lent out of it, or out of an installation of
Python, and nothing that is looked into can keep us waiting.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import stat

from .._output import printable
from ..errors import SandboxError

# What a virtualenv holds besides pyvenv.cfg. Anything else in the folder is somebody's own and stays outside.
PARTS = ("bin", "lib", "lib64", "share", "etc")
# What those who make virtualenvs leave beside them. A folder that holds nothing else is lent as a whole.
BESIDE = ("pyvenv.cfg", "include", ".gitignore", "CACHEDIR.TAG", ".lock", "environment.json", "manifest")
# Of an interpreter's own prefix.
BASE_PARTS = ("bin", "lib", "lib64")
# Folders of the box's own: what lies there on the host is shown in another place.
COVERED = ("/tmp", "/dev", "/proc", "/sys", "/etc", "/mnt", "/run", "/home/sandbox", "/var/tmp", "/var/run", "/script")
ELSEWHERE = "/run/virtualenv"
LONGEST_CONFIG = 64 << 10
MOST_LINKS = 40
MOST_STEPS = 4096
_MACHINES = {"x86_64": 62, "aarch64": 183}

# What a file looked like: empty if it was not there.
Mark = tuple[int, ...]


class VirtualenvError(SandboxError, ValueError):
    """The virtualenv cannot be used; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Virtualenv:
    """A usable virtualenv: what is lent, as `HOST:GUEST`, and where it is in the box."""

    given: str  # as its caller named it, absolute
    path: str  # on the host, links resolved
    place: str  # in the box
    version: tuple[int, int]
    implementation: str
    lent: tuple[str, ...]
    site_packages: tuple[str, ...]  # on the host
    interpreter: str  # the program itself, on the host

    @property
    def python(self) -> str:
        """The interpreter to start, as the box sees it."""
        return f"{self.place}/bin/python"

    @property
    def can_be_warm(self) -> bool:
        """Whether a Zygote can be made: lent folders must not lie where every Worker has folders of its own."""
        return self.implementation == "cpython" and not any(
            _is_below(entry.rpartition(":")[2], covered)
            for entry in self.lent
            for covered in ("/tmp", "/dev", "/home/sandbox", "/mnt")
        )

    def reached_through(self, folder: str) -> str:
        """Which of it lies in `folder`, or is found by way of it; empty for none."""
        if _is_below(self.path, folder) or _leads_through(self.given, folder):
            return f"the virtualenv {self.given}"
        for entry in self.lent:
            if _is_below(source := entry.partition(":")[0], folder):
                return f"{source}, which the virtualenv {self.given} needs,"
        return ""

    def fingerprint(self) -> tuple[Mark, ...]:
        """Another one once the virtualenv has changed: packages, start-up files, configuration, interpreter.

        Whatever installs or removes a package changes site-packages itself. An edit by hand inside a package is read by
        the next script all the same, unless the module was named in `preload`.
        """
        seen = [_mark(f"{self.path}/pyvenv.cfg"), _mark(f"{self.path}/bin/python")]  # a link to the interpreter
        for folder in self.site_packages:
            seen.append(_mark(folder))
            known = _startup_files.get(folder)
            if known is None or known[0] != seen[-1]:
                known = _startup_files[folder] = seen[-1], _list_startup_files(folder)
            seen += map(_mark, known[1])
        return tuple(seen)


# Files that Python reads at its start, by folder, and what the folder looked like when they were listed.
_startup_files: dict[str, tuple[Mark, tuple[str, ...]]] = {}
MOST_STARTUP_FILES = 1000


def _list_startup_files(folder: str) -> tuple[str, ...]:
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    found = sorted(name for name in names if name.endswith(".pth") or name.endswith("customize.py"))
    return tuple(os.path.join(folder, name) for name in found[:MOST_STARTUP_FILES])


def _mark(path: str) -> Mark:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _leads_through(path: str, folder: str) -> bool:
    """Whether the way to `path`, which is absolute, passes through `folder`: a link in there may lead it anywhere."""
    at, left = "/", path.split("/")
    for _ in range(MOST_STEPS):
        if not left:
            return False
        name = left.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        if _is_below(at, folder):
            return True
        following = os.path.join(at, name)
        try:
            target = os.readlink(following)
        except OSError:
            at = following
            continue
        if target.startswith("/"):
            at = "/"
        left[:0] = target.split("/")
    return True  # links without an end


_inspected: dict[str, tuple[tuple[Mark, ...], Virtualenv]] = {}
MOST_INSPECTED = 256


def inspect_virtualenv(given: str | os.PathLike[str]) -> Virtualenv:
    """Looks at the virtualenv. VirtualenvError, with one sentence, for everything that is not a usable one."""
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(path, str):
        raise TypeError(f"venv_path takes the path of a virtualenv, not {given!r}")
    path = os.path.abspath(path) if path else path
    marks = () if "\0" in path else tuple(_mark(path + name) for name in ("", "/pyvenv.cfg", "/bin/python", "/lib"))
    known = _inspected.get(path)
    if known is not None and known[0] == marks and all(map(os.path.isdir, known[1].site_packages)):
        return known[1]
    venv = _inspect(path)
    if len(_inspected) >= MOST_INSPECTED:
        _inspected.clear()
    _inspected[path] = marks, venv
    return venv


def _inspect(path: str) -> Virtualenv:
    if not path or "\0" in path:
        raise VirtualenvError(f"venv_path={path!r} is no path\nhint: give the folder that `python -m venv` made")
    if not os.path.isdir(path):
        raise VirtualenvError(f"there is no virtualenv {path}\nhint: make one with `python3 -m venv {path}`")
    real = os.path.realpath(path)
    if ":" in real:
        raise VirtualenvError(f"the virtualenv {real} has a colon in its path\nhint: move it to a path without one")
    config = _read_config(real)
    version = _version(real, config)
    site = _site_packages(real, version)
    program = _program(real, version)
    place = ELSEWHERE if any(_is_below(real, covered) for covered in COVERED) else real
    if set(os.listdir(real)) <= {*PARTS, *BESIDE}:
        lent = [f"{real}:{place}"]
    else:
        lent = [f"{real}/pyvenv.cfg:{place}/pyvenv.cfg"]
        for part in PARTS:
            if os.path.isdir(os.path.join(real, part)):
                found = _part_of(real, part)
                if found is None:
                    raise _broken(real, f"its {part} leads to a place outside of it")
                lent.append(f"{found}:{place}/{part}")
    for entry in _lent_interpreter(real, program, config, version):
        if entry not in lent:
            lent.append(entry)
    implementation = config.get("implementation", "cpython").lower()
    return Virtualenv(path, real, place, version, implementation, tuple(lent), site, program)


def _part_of(folder: str, part: str) -> str | None:
    """The part of `folder` with this name, links resolved; None if it is not there, or not in the folder."""
    found = os.path.realpath(os.path.join(folder, part))
    return found if _is_below(found, folder) and os.path.isdir(found) else None


def _is_installation(prefix: str, version: tuple[int, int]) -> bool:
    """Whether Python's own library is there; where it is, an interpreter may be looked for."""
    for lib in ("lib", "lib64"):
        module = os.path.realpath(f"{prefix}/{lib}/python{version[0]}.{version[1]}/os.py")
        if _is_below(module, prefix) and os.path.isfile(module):
            return True
    return False


def _read_head(path: str, size: int) -> bytes:
    """Of an ordinary file, and of no link: whatever else may be there, to open it could wait, or do something."""
    found = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return b""
        with open(f"/proc/self/fd/{found}", "rb", buffering=0) as file:
            return file.read(size)
    finally:
        os.close(found)


def _read_config(real: str) -> dict[str, str]:
    try:
        text = _read_head(os.path.join(real, "pyvenv.cfg"), LONGEST_CONFIG).decode("utf-8", "replace")
    except FileNotFoundError:
        raise VirtualenvError(
            f"{real} is no virtualenv: it has no pyvenv.cfg\nhint: give the folder that `python -m venv` made"
        ) from None
    except OSError as error:
        raise VirtualenvError(
            f"the virtualenv {real} cannot be read: {error}\nhint: check its owner and its permissions"
        ) from None
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _version(real: str, config: dict[str, str]) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", config.get("version") or config.get("version_info") or "")
    if found is None:
        raise _broken(real, "its pyvenv.cfg names no Python version")
    version = int(found.group(1)), int(found.group(2))
    if version < (3, 8):
        raise VirtualenvError(
            f"the virtualenv {real} is of Python {version[0]}.{version[1]}\nhint: make one with Python 3.8 or later"
        )
    return version


def _broken(real: str, why: str) -> VirtualenvError:
    return VirtualenvError(
        f"the virtualenv {real} is broken: {why}\nhint: make it again with `python3 -m venv --clear`"
    )


def _site_packages(real: str, version: tuple[int, int]) -> tuple[str, ...]:
    name = f"{version[0]}.{version[1]}"
    known = [os.path.join(real, lib, f"python{name}", "site-packages") for lib in ("lib", "lib64")]
    known.append(os.path.join(real, "lib", f"pypy{name}", "site-packages"))
    found = tuple(dict.fromkeys(os.path.realpath(folder) for folder in known if os.path.isdir(folder)))
    if found:
        return found
    lib = os.path.join(real, "lib")
    others = sorted(entry for entry in os.listdir(lib) if entry.startswith("python")) if os.path.isdir(lib) else []
    if others:
        raise _other_python(real, name, f"its packages are in lib/{_shown(others[0])}")
    raise _broken(real, f"it has no lib/python{name}/site-packages")


def _other_python(real: str, made_for: str, but: str) -> VirtualenvError:
    return VirtualenvError(
        f"the virtualenv {real} was made for Python {made_for}, but {but}\n"
        "hint: make it again with the Python that is to run it: `python3 -m venv --clear`"
    )


def _shown(text: str) -> str:
    """What somebody else may have named: nothing in it moves a cursor or begins a line."""
    return printable(text).replace("\n", "\\n")


def _program(real: str, version: tuple[int, int]) -> str:
    link = os.path.join(real, "bin", "python")
    program = os.path.realpath(link)
    shown = _shown(program)
    try:
        head = _read_head(program, 20)
    except OSError:
        if os.path.islink(link):
            raise _broken(real, f"its interpreter {shown} is not there any more") from None
        raise _broken(real, "it has no bin/python") from None
    if head[:4] != b"\x7fELF" or not os.access(program, os.X_OK):
        raise _broken(real, f"its interpreter {shown} is no program")
    machine = int.from_bytes(head[18:20], "little")
    if machine != _MACHINES.get(platform.machine(), machine):
        raise _broken(real, f"its interpreter {shown} is for another kind of machine")
    # By name, where it tells: python3.12 of a virtualenv whose packages are those of 3.11.
    named = re.fullmatch(r"python(\d+)\.(\d+)[a-z]*", os.path.basename(program))
    if named and (int(named.group(1)), int(named.group(2))) != version:
        raise _other_python(real, f"{version[0]}.{version[1]}", f"its interpreter is {shown}")
    if not re.match("python|pypy", os.path.basename(program)):
        raise _broken(real, f"its interpreter is {shown}")
    if not _is_below(program, real) and not _may_be_lent(program, version):
        raise _broken(real, f"its interpreter is {shown}, and there is no Python {version[0]}.{version[1]}")
    return program


def _may_be_lent(program: str, version: tuple[int, int]) -> bool:
    """Whether it belongs to an installation of Python. PyPy, whose library is elsewhere, is lent from /usr only."""
    prefix = os.path.dirname(os.path.dirname(program))
    return _is_below(program, "/usr") or _is_installation(prefix, version)


def _lent_interpreter(real: str, program: str, config: dict[str, str], version: tuple[int, int]) -> list[str]:
    """What of an interpreter outside /usr is lent, at every path under which the virtualenv may look for it."""
    lent: list[str] = []
    covered = [real, "/usr", "/bin", "/lib", "/lib64", "/sbin"]

    def lend(source: str, target: str) -> None:
        if not any(_is_below(target, folder) for folder in covered):
            lent.append(f"{source}:{target}")
            covered.append(target)

    home = config.get("home", "")
    homes = [os.path.dirname(program)]
    if os.path.isabs(home) and "\0" not in home and os.path.isdir(home):
        homes.append(os.path.normpath(home))
    for folder in homes:
        prefix = os.path.dirname(folder)
        # A prefix that is somebody's home, or the root, holds more than Python.
        own = os.path.basename(folder) == "bin" and not _is_shared(prefix)
        sources = os.path.realpath(prefix)
        if not _is_installation(sources, version):
            continue
        if own:
            for part in BASE_PARTS:
                if found := _part_of(sources, part):
                    lend(found, os.path.join(prefix, part))
        else:
            name = f"python{version[0]}.{version[1]}"
            for lib in ("lib", "lib64"):
                if found := _part_of(sources, f"{lib}/{name}"):
                    lend(found, os.path.join(prefix, lib, name))
            for name in (f"python{version[0]}.{version[1]}", "python3", "python"):
                target = os.path.realpath(os.path.join(folder, name))
                if target == program and _may_be_lent(target, version):
                    lend(target, os.path.join(folder, name))
    for hop in _hops(os.path.join(real, "bin", "python")):
        lend(program, hop)
    if any(":" in entry.partition(":")[2] for entry in lent):
        raise VirtualenvError(
            f"the interpreter {_shown(program)} of the virtualenv {real} has a colon in its path\n"
            "hint: use an interpreter at a path without one"
        )
    return lent


def _is_shared(prefix: str) -> bool:
    real = os.path.realpath(prefix)
    home = os.path.realpath(os.path.expanduser("~"))
    if real == "/" or _is_below(home, real):
        return True
    parent = os.path.dirname(real)
    return parent in ("/", "/home", "/var", "/mnt", "/media", "/srv") or real.endswith("/.local")


def _hops(link: str) -> list[str]:
    """Every path that is visited on the way from a link to its program: each must be there in the box too."""
    hops: list[str] = []
    at = link
    for _ in range(MOST_LINKS):
        if not os.path.islink(at):
            break
        target = os.readlink(at)
        at = os.path.normpath(os.path.join(os.path.dirname(at), target))
        hops.append(at)
    return hops
