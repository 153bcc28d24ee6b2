#!/usr/bin/env python3
"""Writes src/cli/run_first.ld: the functions that a cold run calls, in the order in which it calls them.

The linker puts them side by side. Scattered over the whole program they cost a page fault each, and the kernel time to
take the pages back at every end. Run it when the cold path has changed much; a list that is a little out of date, or
made with another compiler, still holds for the names that it has in common with the program.

How: the release build runs `true` in a box, one instruction at a time (ptrace), first as whoever calls this and, if
that is root, as an ordinary user too. Takes a minute or two.
"""

import bisect
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
BUILD = TREE / "build/release"
SCRIPT = TREE / "src/cli/run_first.ld"

TRACEME, PEEKUSER, SINGLESTEP, DETACH, SETOPTIONS = 0, 3, 9, 17, 0x4200
FOLLOW_AND_END_WITH_US = 0x2 | 0x4 | 0x8 | 0x10 | 0x100000  # fork, vfork, clone, exec; EXITKILL
EXECUTED = 4  # PTRACE_EVENT_EXEC
RIP = 16 * 8  # in struct user
ORDINARY = 65534

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long] * 4


def steps(program, uid):
    """Addresses of the program's own instructions in the order of their first execution, in all its processes."""
    child = os.fork()
    if child == 0:
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        libc.ptrace(TRACEME, 0, 0, 0)
        os.execve(program, [program, "run", "--", "/usr/bin/true"], {"PATH": "/usr/bin:/bin"})
    os.waitpid(child, 0)
    libc.ptrace(SETOPTIONS, child, 0, FOLLOW_AND_END_WITH_US)
    libc.ptrace(SINGLESTEP, child, 0, 0)
    seen = {}
    while True:
        try:
            pid, status = os.waitpid(-1, 0x40000000)  # __WALL
        except ChildProcessError:
            return list(seen)
        if not os.WIFSTOPPED(status):
            if pid == child and status != 0:
                sys.exit(f"{program} ended with wait status {status}")
            continue
        if status >> 16 == EXECUTED:  # the guest, or init
            libc.ptrace(DETACH, pid, 0, 0)
            continue
        seen.setdefault(libc.ptrace(PEEKUSER, pid, RIP, 0))
        number = os.WSTOPSIG(status)
        libc.ptrace(SINGLESTEP, pid, 0, 0 if number in (signal.SIGTRAP, signal.SIGSTOP) else number)


def linked_with_map(folder):
    """The program, linked once more with a map, and the map: (address, size, section, file) of each piece of text."""
    command = subprocess.check_output(["ninja", "-C", BUILD, "-t", "commands", "pctx-sandbox"], text=True).splitlines()[
        -1
    ]
    command = command.replace(" -o pctx-sandbox ", f" -o {folder}/pctx-sandbox -Wl,-Map,{folder}/map ")
    subprocess.run(command, shell=True, check=True, cwd=BUILD, stderr=subprocess.DEVNULL)
    text = (folder / "map").read_text().partition("Linker script and memory map")[2]
    piece = re.compile(r"^ (\.text\S*)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) (\S.*)$", re.MULTILINE)
    pieces = [(int(at, 16), int(size, 16), name, file) for name, at, size, file in piece.findall(text)]
    return sorted(entry for entry in pieces if entry[0] and entry[1])


def pattern(section, file):
    """How a linker script names it. A function of ours has a section of its own, whichever file it is compiled into."""
    if section.startswith(".text._Z") or section == ".text.startup.main":
        return f"*({section})"
    archive = re.search(r"([^/]+\.a)\(([^)]+)\)$", file)
    return f"*{archive[1]}:{archive[2]}({section})" if archive else f"*{file.rsplit('/', 1)[-1]}({section})"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        pieces = linked_with_map(folder)
        starts = [at for at, _, _, _ in pieces]
        found = {}
        for uid in [None, ORDINARY] if os.geteuid() == 0 else [None]:
            print(f"stepping through a run as {'ourselves' if uid is None else 'an ordinary user'}", file=sys.stderr)
            for address in steps(str(folder / "pctx-sandbox"), uid):
                at, size, section, file = pieces[bisect.bisect_right(starts, address) - 1]
                if at <= address < at + size:
                    found.setdefault(pattern(section, file))
    lines = "".join(f"    {each}\n" for each in found)
    SCRIPT.write_text(
        "/* Adds to the linker's own script: what a cold run executes, side by side. By scripts/order_text.py. */\n"
        "SECTIONS\n{\n  .text.run_first :\n  {\n" + lines + "  }\n}\nINSERT BEFORE .text;\n"
    )
    print(f"{SCRIPT.relative_to(TREE)}: {len(found)} pieces of text", file=sys.stderr)


if __name__ == "__main__":
    if shutil.which("ninja") is None or not (BUILD / "build.ninja").exists():
        sys.exit("there is no release build; run `make test` or `cmake --preset release` first")
    main()
