#!/usr/bin/env python3
"""Calls through Podman beside the same calls on the namespaces backend, and the first call beside a bare container.

Interleaved, in a random order each round. Writes podman.json and podman.md beside the results of run.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pctx_sandbox import _broker, sandbox

TREE = Path(__file__).resolve().parent.parent
CONTAINER = f"pctx-bench-{os.getpid()}"
PAUSE = 0.02
BLOCK = 20


def noop() -> None:
    return None


boxed = {name: sandbox(backend=name)(noop) for name in ("namespaces", "podman")}  # type: ignore[call-overload]


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def podman(*words: str) -> None:
    subprocess.run(["podman", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def bare(image: str) -> None:
    """The least that Podman can do with the same image: no Broker, no box, no result."""
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 16384)
    limits = ["--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={processes}:{processes}"]
    podman("run", "--rm", "--network", "none", *limits, "-v", "/usr:/usr:ro", image, "/usr/bin/python3", "-c", "pass")


def first_call() -> None:
    boxed["podman"]()


def measure(rounds: int, folder: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"namespaces": [], "podman": [], "first": [], "bare": []}
    for call in boxed.values():
        call()
    image = (Path(folder) / "s.podman/image").read_text().split("\n")[1]
    for _ in range(rounds):
        order = list(boxed)
        random.shuffle(order)
        for name in order:
            for _ in range(BLOCK):
                time.sleep(PAUSE)
                times[name].append(timed(boxed[name]))
        times["bare"].append(timed(lambda: bare(image)))
        _broker.close_all()
        podman("rm", "--force", CONTAINER)
        times["first"].append(timed(first_call))
    return times


def report(times: dict[str, list[float]]) -> str:
    middle = {name: statistics.median(values) for name, values in times.items()}
    warm, first = middle["podman"] / middle["namespaces"], middle["first"] / middle["bare"]
    missed = {"warm": "" if warm <= 1.5 else ", missed", "first": "" if first <= 2 else ", missed"}
    return "\n".join(
        [
            f"Load average {os.getloadavg()[0]:.1f} at the end.",
            "",
            "| Podman | without | with | ratio |",
            "|---|---|---|---|",
            "| a warm call, against the namespaces backend "
            f"| {middle['namespaces']:.2f} ms | {middle['podman']:.2f} ms | {warm:.2f} (goal ≤ 1.5{missed['warm']}) |",
            "| the first call with the image present, against `podman run … python3 -c pass` "
            f"| {middle['bare']:.0f} ms | {middle['first']:.0f} ms | {first:.2f} (goal ≤ 2{missed['first']}) |",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--program", default=str(TREE / ".venv" / "bin" / "pctx-sandbox"))
    parser.add_argument("--out", type=Path, default=TREE / "bench" / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if shutil.which("podman") is None:
        (options.out / "podman.md").write_text("Not measured: podman (not installed).\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="pctx-bench-") as folder:
        os.environ.update(
            PCTX_SANDBOX_SOCKET=f"{folder}/s",
            PCTX_SANDBOX_BINARY=options.program,
            PCTX_SANDBOX_CONTAINER=CONTAINER,
        )
        try:
            times = measure(options.rounds, folder)
        finally:
            _broker.close_all()
            subprocess.run([options.program, "stop"], capture_output=True)
            subprocess.run(["podman", "rm", "--force", "--ignore", CONTAINER], capture_output=True)
    (options.out / "podman.json").write_text(json.dumps(times, indent=1))
    (options.out / "podman.md").write_text(report(times))
    print(report(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
