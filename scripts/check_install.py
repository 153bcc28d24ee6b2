#!/usr/bin/env python3
"""Installs the wheel for one Python and calls a function, with the newest and then the oldest allowed dependencies.

usage: scripts/check_install.py WHEEL [PYTHON]      PYTHON defaults to the interpreter that runs this

Needs nothing beside the standard library, so that it runs in a root that has nothing else. Everything is made in a
temporary folder, the Broker and its cache included. The last line is `N passed, N failed, N skipped`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CALL = """
import sys
from pctx_sandbox import sandbox

@sandbox
def inside(words):
    import os
    return {"words": sorted(words), "home": os.listdir(os.path.expanduser("~"))}

@sandbox(dependencies=["six"])
def with_a_package():
    import six
    return six.PY3

assert inside({"b", "a"}) == {"words": ["a", "b"], "home": []}
assert list(inside.map([["x"], ["y"]], progress=True)) == [{"words": [w], "home": []} for w in "xy"]
assert with_a_package() is True
print("called from", sys.version.split()[0])
"""


def lower_bounds(wheel: str) -> list[str]:
    """`cloudpickle>=3.0` becomes `cloudpickle==3.0`, as the wheel itself declares it."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = re.findall(r"^Requires-Dist: (.+>=.+)$", archive.read(name).decode(), re.MULTILINE)
    return [requirement.replace(">=", "==", 1) for requirement in declared]


class Check:
    def __init__(self, wheel: str, python: str, folder: Path):
        self.wheel, self.python, self.folder = wheel, python, folder
        self.passed = self.failed = 0
        self.env = os.environ | {
            "PCTX_SANDBOX_SOCKET": str(folder / "broker.sock"),
            "PCTX_SANDBOX_CACHE_DIR": str(folder / "cache"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        for name in ("PYTHONPATH", "PYTHONHOME", "PCTX_SANDBOX_BINARY"):
            self.env.pop(name, None)

    def step(self, claim: str, *command: object) -> bool:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        fine = done.returncode == 0
        print(f"{'ok' if fine else 'FAILED'}: {claim}", flush=True)
        if not fine:
            print(done.stdout[-6000:], flush=True)
        self.passed, self.failed = self.passed + fine, self.failed + (not fine)
        return fine

    def run(self) -> None:
        environment = self.folder / "env"
        python, program = environment / "bin/python", environment / "bin/pctx-sandbox"
        (self.folder / "call.py").write_text(CALL)
        if not self.step(f"an environment of {self.python}", self.python, "-m", "venv", environment):
            return
        pip = (python, "-m", "pip", "install", "--only-binary", ":all:")
        if not self.step("the wheel installs without a compiler", *pip, self.wheel):
            return
        try:
            self.step("the program is on the PATH of the environment", program, "--version")
            self.step("it runs a command in a box", program, "run", "--", "true")
            self.step("@sandbox with the newest dependencies", python, "call.py")
            self.step("the Broker stops", program, "stop")
            oldest = lower_bounds(self.wheel)
            if self.step(f"the oldest dependencies: {', '.join(oldest)}", *pip, *oldest):
                self.env["PCTX_SANDBOX_CACHE_DIR"] = str(self.folder / "cache-of-oldest")  # built by the oldest uv
                self.step("@sandbox with the oldest dependencies", python, "call.py")
        finally:
            subprocess.run([program, "stop"], env=self.env, stdout=subprocess.DEVNULL, check=False)


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    wheel = str(Path(arguments[0]).resolve())
    # Not below /tmp, which a box replaces by its own: the Environments that are built here could not be lent.
    cache = Path.home() / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pctx-install-", dir=cache, ignore_cleanup_errors=True) as folder:
        check = Check(wheel, arguments[1] if len(arguments) > 1 else sys.executable, Path(folder))
        check.run()
    print(f"{check.passed} passed, {check.failed} failed, 0 skipped")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
