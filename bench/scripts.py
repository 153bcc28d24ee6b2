#!/usr/bin/env python3
"""Scripts with a virtualenv, warm and cold, beside what is usually done per call: bubblewrap with the same binds that
starts the virtualenv's Python. One interleaved run, as in warm.py.

Writes scripts.json and scripts.md beside the results of run.py. A row that misses its goal is marked, never left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed
from warm import PAUSE, TREE, Report, in_turns, timed

HELLO = "print('hi')"
FRAME = "import pandas as pd\nprint(len(pd.DataFrame([{'name': 'Alice', 'age': 30}])))"
WARM, COLD, FOLDER = "`run_sandboxed`, warm", "`run_sandboxed`, `warm=False`", "`run_sandboxed`, warm, with `mnt_dir`"
BWRAP = "bwrap with the same binds"
PRELOADED = '`run_sandboxed`, `preload=["pandas"]`'


def make_virtualenv(folder: Path, packages: list[str]) -> Path:
    """Below the tree: what lies in /tmp would be shown in another place, by us and by bwrap."""
    venv = folder / "venv"
    if not (venv / "pyvenv.cfg").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(pip, check=True)
    return venv


def bwrap_command(venv: Path, folder: str) -> list[str]:
    """What is lent is what we lend: system folders, the virtualenv, one writable folder; the host's network."""
    command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    command += ["--new-session", "--tmpfs", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64"):
        place = Path("/") / name
        if place.is_symlink():
            command += ["--symlink", os.readlink(place), str(place)]
        elif place.exists():
            command += ["--ro-bind", str(place), str(place)]
    for name in ("passwd", "group", "resolv.conf", "ssl", "ld.so.cache", "localtime"):
        if (Path("/etc") / name).exists():
            command += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    command += ["--ro-bind", str(venv), str(venv), "--bind", folder, "/mnt", "--chdir", "/mnt"]
    return [*command, str(venv / "bin" / "python"), "/mnt/code.py"]


def run_bwrap(command: list[str], expected: str) -> float:
    def call() -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.stdout != expected:
            raise RuntimeError(f"bwrap: {done.stderr}")

    return timed(call)


def run_ours(conf: SandboxConfig, code: str, expected: str, **options: Any) -> float:
    def call() -> None:
        res, _ = run_sandboxed(conf, code=code, timeout=60, **options)
        if res.stdout != expected:
            raise RuntimeError(res.stderr)

    return timed(call)


def hello(report: Report, venv: Path, rounds: int) -> None:
    conf = SandboxConfig(venv_path=venv)
    with tempfile.TemporaryDirectory(prefix="pctx-bench-") as folder:
        (Path(folder) / "code.py").write_text(HELLO)
        command = bwrap_command(venv, folder)
        calls: dict[str, Callable[[], float]] = {
            WARM: lambda: run_ours(conf, HELLO, "hi\n"),
            FOLDER: lambda: run_ours(conf, HELLO, "hi\n", mnt_dir=folder),
            COLD: lambda: run_ours(conf, HELLO, "hi\n", warm=False),
            BWRAP: lambda: run_bwrap(command, "hi\n"),
        }
        times = in_turns(calls, rounds, 10, PAUSE)
    report.times("`print('hi')`, calls 20 ms apart", times)
    p50 = {name: statistics.median(values) for name, values in times.items()}
    report.goal("`print('hi')`, p50, times faster than bwrap", p50[BWRAP] / p50[WARM], 10, at_most=False, must=True)
    report.goal("the same with `mnt_dir`", p50[BWRAP] / p50[FOLDER], 5, at_most=False, must=False)
    report.goal("the same cold, against bwrap", p50[COLD] / p50[BWRAP], 1.0, at_most=True, must=True)


def pandas(report: Report, venv: Path, rounds: int) -> None:
    conf = SandboxConfig(venv_path=venv, preload=["pandas"])
    with tempfile.TemporaryDirectory(prefix="pctx-bench-") as folder:
        (Path(folder) / "code.py").write_text(FRAME)
        command = bwrap_command(venv, folder)
        calls: dict[str, Callable[[], float]] = {
            PRELOADED: lambda: run_ours(conf, FRAME, "1\n"),
            BWRAP: lambda: run_bwrap(command, "1\n"),
        }
        times = in_turns(calls, max(3, rounds // 2), 3, PAUSE)
    report.times("pandas imported in the script", times)
    p50 = {name: statistics.median(values) for name, values in times.items()}
    what = "with pandas preloaded, p50, times faster than bwrap"
    report.goal(what, p50[BWRAP] / p50[PRELOADED], 20, at_most=False, must=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=["hello", "pandas"], help="hello pandas")
    parser.add_argument("--program", default=str(TREE / ".venv" / "bin" / "pctx-sandbox"))
    parser.add_argument("--out", type=Path, default=TREE / "bench" / "results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of all the clauses that clean up
    if shutil.which("bwrap") is None:
        print("bwrap is not installed: nothing to measure against", file=sys.stderr)
        return 1
    venv = make_virtualenv(TREE / "build" / "bench-scripts", ["pandas"])
    report = Report("")
    with tempfile.TemporaryDirectory(prefix="pctx-bench-") as folder:
        # A Broker of our own: nobody else's calls are in the figures.
        os.environ["PCTX_SANDBOX_SOCKET"] = f"{folder}/broker.sock"
        os.environ["PCTX_SANDBOX_BINARY"] = options.program
        try:
            parts = {"hello": hello, "pandas": pandas}
            for name in options.only:
                print(f"measuring: {name}", file=sys.stderr)
                parts[name](report, venv, options.rounds)
        finally:
            subprocess.run([options.program, "stop"], capture_output=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scripts.json").write_text(json.dumps(report.figures, indent=1))
    (options.out / "scripts.md").write_text(report.text())
    print(report.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
