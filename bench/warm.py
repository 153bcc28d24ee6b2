#!/usr/bin/env python3
"""Warm calls beside an unsandboxed process pool and pctx-sandbox 0.1.0, in one interleaved run.

Contestants take turns in blocks, in a new random order each round, so that whatever else the machine does hits all of
them alike. Reported are p50, p95, p99 and ratios of p50; absolute times of one machine are no evidence for another.
Writes warm.json and warm.md beside the results of run.py. A row that misses its goal is marked, never left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import decode
import numpy
import waiting
from pctx_sandbox import sandbox
from peer import Peer, PeerMissing

TREE = Path(__file__).resolve().parent.parent
DATA = [{"name": "Alice", "age": 30}]
PAUSE = 0.02
TIMES = " \N{MULTIPLICATION SIGN}"
Times = dict[str, list[float]]


def noop() -> None:
    return None


def frame(data: list[dict[str, Any]]) -> dict[str, Any]:
    import pandas as pd

    df = pd.DataFrame(data)
    return {"rows": len(df), "columns": list(df.columns)}


def next_array(array: numpy.ndarray) -> numpy.ndarray:
    return array + 1


boxed_noop = sandbox(noop)
boxed_frame = sandbox(dependencies=["pandas"])(frame)
# The caller's own versions, so that the array travels between equals.
boxed_array = sandbox(dependencies=[f"numpy=={numpy.__version__}"])(next_array)


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    del result
    return seconds * 1000


def in_turns(contestants: dict[str, Callable[[], float]], rounds: int, block: int, pause: float) -> Times:
    """`block` calls of each in every round, each call `pause` seconds after the end of the one before."""
    times: Times = {name: [] for name in contestants}
    for index in range(rounds + 1):
        for name in random.sample(list(contestants), len(contestants)):
            for _ in range(block):
                if pause:
                    time.sleep(pause)
                took = contestants[name]()
                if index:  # the first round makes everybody warm
                    times[name].append(took)
    return times


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Report:
    """The tables, and the goals that were missed."""

    def __init__(self, left_out: str) -> None:
        kernel = ".".join(platform.release().split(".")[:2])
        self.lines = [
            f"Linux {kernel}, {os.cpu_count()} CPUs, Python {platform.python_version()}, interleaved; "
            f"load average {os.getloadavg()[0]:.1f} at the start. Every call of ours runs in a process that never ran "
            "anything else.",
        ]
        self.left_out = left_out
        self.figures: dict[str, Any] = {}
        self.summary: list[tuple[str, str, str]] = []

    def times(self, title: str, times: Times) -> None:
        self.lines += ["", f"| {title} | p50 ms | p95 ms | p99 ms |", "|---|---|---|---|"]
        for name, values in times.items():
            cells = " | ".join(f"{quantile(values, share):.2f}" for share in (0.5, 0.95, 0.99))
            self.lines.append(f"| {name} | {cells} |")
        self.figures[title] = {
            name: {f"p{round(share * 100)}": quantile(values, share) for share in (0.5, 0.95, 0.99)}
            for name, values in times.items()
        }

    def goal(self, what: str, value: float, goal: float, *, at_most: bool, must: bool, unit: str = TIMES) -> None:
        kept = value <= goal if at_most else value >= goal
        word = ("at most" if at_most else "at least") if must else "aim"
        shown = f"{value:.2f}{unit}" if value < 10 else f"{value:.1f}{unit}"
        self.summary.append((what, shown, f"{word} {goal:g}{unit}" + ("" if kept else ", missed")))
        self.figures[what] = {"value": value, "goal": goal, "kept": kept}

    def text(self) -> str:
        table = ["", "| what | measured | goal |", "|---|---|---|"]
        table += [f"| {what} | {shown} | {goal} |" for what, shown, goal in self.summary]
        notes = ["", f"Not measured: pctx-sandbox 0.1.0 ({self.left_out})."] if self.left_out else []
        return "\n".join([self.lines[0], *table, *self.lines[1:], *notes]) + "\n"


OURS, POOL, PEER = "`@sandbox`", "`ProcessPoolExecutor(1)`, no isolation", "pctx-sandbox 0.1.0, its reused worker"


def small_calls(report: Report, peer: Peer | None, rounds: int) -> None:
    """The no-op 20 ms apart and back-to-back, and the README's DataFrame function."""
    with ProcessPoolExecutor(1) as pool:
        calls: dict[str, Callable[[], float]] = {
            OURS: lambda: timed(boxed_noop),
            POOL: lambda: timed(lambda: pool.submit(noop).result()),
        }
        if peer is not None:
            calls[PEER] = lambda: peer.call("noop")
        apart = in_turns(calls, rounds, 10, PAUSE)
        close = in_turns(calls, rounds, 20, 0)
        calls = {
            OURS: lambda: timed(lambda: boxed_frame(DATA)),
            f"`ProcessPoolExecutor(1)`, pandas {version('pandas')}, no isolation": lambda: timed(
                lambda: pool.submit(frame, DATA).result()
            ),
        }
        if peer is not None:
            calls[PEER] = lambda: peer.call("frame")
        frames = in_turns(calls, rounds, 10, PAUSE)
    report.times("no-op, calls 20 ms apart", apart)
    report.times("no-op, back-to-back", close)
    report.times("DataFrame function, calls 20 ms apart", frames)
    p50 = statistics.median
    against_pool = "no-op 20 ms apart, p50, against a reused unsandboxed pool worker"
    report.goal(against_pool, p50(apart[OURS]) / p50(apart[POOL]), 1.0, at_most=True, must=True)
    report.goal("the same back-to-back", p50(close[OURS]) / p50(close[POOL]), 1.0, at_most=True, must=False)
    if peer is not None:
        for what, times, goal in (("no-op", apart, 30), ("DataFrame function", frames, 5)):
            value = p50(times[PEER]) / p50(times[OURS])
            report.goal(f"{what}, p50, times faster than 0.1.0", value, goal, at_most=False, must=True)


def large_array(report: Report, rounds: int) -> None:
    array = numpy.random.default_rng(1).random(100 * 10**6 // 8)
    with ProcessPoolExecutor(1) as pool:
        calls: dict[str, Callable[[], float]] = {
            OURS: lambda: timed(lambda: boxed_array(array)),
            POOL: lambda: timed(lambda: pool.submit(next_array, array).result()),
            f"{OURS}, and the result summed": lambda: timed(lambda: boxed_array(array).sum()),
            f"{POOL}, and the result summed": lambda: timed(lambda: pool.submit(next_array, array).result().sum()),
        }
        times = in_turns(calls, rounds, 1, PAUSE)
    report.times("100 MB array in, a new one out", times)
    medians = {name: statistics.median(values) for name, values in times.items()}
    what = "100 MB array in, a new one out, against the pool worker"
    report.goal(what, medians[OURS] / medians[POOL], 0.3, at_most=True, must=True)


def calls_per_second(call: Callable[[], Any], callers: int, seconds: float) -> float:
    counts = [0] * callers
    end = time.perf_counter() + seconds

    def run(index: int) -> None:
        while time.perf_counter() < end:
            call()
            counts[index] += 1

    start = time.perf_counter()
    threads = [threading.Thread(target=run, args=(index,)) for index in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def forks_per_second(seconds: float, *modules: str) -> float:
    command = [sys.executable, str(TREE / "bench" / "forker.py"), str(seconds), *modules]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def throughput(report: Report, rounds: int, seconds: float) -> None:
    boxed_with_pandas = sandbox(dependencies=["pandas"])(noop)
    runs: dict[str, Callable[[], float]] = {
        "16 callers, no packages": lambda: calls_per_second(boxed_noop, 16, seconds),
        "bare fork loop, no packages": lambda: forks_per_second(seconds),
        "16 callers, pandas": lambda: calls_per_second(boxed_with_pandas, 16, seconds),
        "bare fork loop, pandas imported": lambda: forks_per_second(seconds, "pandas"),
    }
    rates: Times = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            rates[name].append(runs[name]())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    report.lines += ["", "| throughput | calls per second |", "|---|---|"]
    report.lines += [f"| {name} | {value:.0f} |" for name, value in medians.items()]
    report.figures["throughput"] = medians
    for packages, loop, aim in (
        ("no packages", "bare fork loop, no packages", 0.15),
        ("pandas", "bare fork loop, pandas imported", 0.4),
    ):
        ours = f"16 callers, {packages}"
        what = f"calls per second, {ours}, against a bare fork loop"
        report.goal(what, medians[ours] / medians[loop], aim, at_most=False, must=False)


def memory(report: Report, program: str) -> None:
    restart(program)
    boxed_frame(DATA)
    waiting.fill(program, lambda: boxed_frame(DATA), 8)
    taken = waiting.measure(program)
    report.figures["memory"] = taken
    who = f"an idle Worker with pandas, {taken['workers']} waiting"
    report.goal(f"{who}: PSS", taken["pss"], 14, at_most=True, unit=" MiB", must=True)
    report.goal(f"{who}: private dirty", taken["private_dirty"], 8, at_most=True, unit=" MiB", must=True)


def restart(program: str) -> None:
    subprocess.run([program, "restart"], check=True, capture_output=True)


def first_call(report: Report, program: str, rounds: int) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    imports = [sys.executable, "-c", "import pandas"]
    for _ in range(rounds):
        theirs.append(timed(lambda: subprocess.run(imports, check=True)))
        restart(program)
        ours.append(timed(lambda: boxed_frame(DATA)))
    report.times(
        "first call",
        {"`@sandbox` with pandas, after `pctx-sandbox restart`": ours, '`python -c "import pandas"`': theirs},
    )
    value = statistics.median(ours) / statistics.median(theirs)
    what = 'first call after a restart, against `python -c "import pandas"`'
    report.goal(what, value, 1.5, at_most=True, must=False)


def decoding(report: Report, rounds: int) -> None:
    times = decode.small_values(rounds)
    what = "decoding 100,000 nested small values, against `pickle.loads`"
    report.goal(what, times["decode"] / times["pickle.loads"], 2, at_most=True, must=False)


def start_peer() -> tuple[Peer | None, str]:
    try:
        return Peer(), ""
    except PeerMissing as error:
        return None, str(error)


def measure(options: argparse.Namespace) -> Report:
    chosen = options.only or ["small", "array", "throughput", "decode", "first", "memory"]
    peer, left_out = start_peer() if "small" in chosen else (None, "")
    report = Report(left_out)
    rounds = options.rounds
    parts: dict[str, Callable[[], None]] = {
        "small": lambda: small_calls(report, peer, rounds),
        "array": lambda: large_array(report, max(5, rounds // 2)),
        "throughput": lambda: throughput(report, max(1, rounds // 7), options.seconds),
        "decode": lambda: decoding(report, rounds),
        "first": lambda: first_call(report, options.program, max(3, rounds // 3)),
        "memory": lambda: memory(report, options.program),
    }
    try:
        for name in chosen:
            print(f"measuring: {name}", file=sys.stderr)
            parts[name]()
    finally:
        if peer is not None:
            peer.close()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3, help="of one stretch of the throughput runs")
    parser.add_argument("--only", nargs="*", help="small array throughput decode first memory")
    parser.add_argument("--program", default=str(TREE / ".venv" / "bin" / "pctx-sandbox"))
    parser.add_argument("--out", type=Path, default=TREE / "bench" / "results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of all the clauses that clean up
    with tempfile.TemporaryDirectory(prefix="pctx-bench-") as folder:
        # A Broker of our own: nobody else's calls are in the figures, and nobody else's Broker is restarted.
        os.environ["PCTX_SANDBOX_SOCKET"] = f"{folder}/broker.sock"
        os.environ["PCTX_SANDBOX_BINARY"] = options.program
        try:
            report = measure(options)
        finally:
            subprocess.run([options.program, "stop"], capture_output=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "warm.json").write_text(json.dumps(report.figures, indent=1))
    (options.out / "warm.md").write_text(report.text())
    print(report.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
