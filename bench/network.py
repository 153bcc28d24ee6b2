#!/usr/bin/env python3
"""What an allow-list costs: through the relay beside the same client without a box, in one interleaved run.

Everything happens in an internet of its own (tests/network_world.py). Writes network.json and network.md beside the
results of run.py. A row that misses its goal is marked, never left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tests"))

import network_world  # noqa: E402

SIZE = 400_000_000
CLIENT = f"""
import socket, sys, time
def fetch():
    with socket.create_connection(("a.test", 9000)) as s:
        s.sendall(b"send {SIZE}\\n")
        left, block = {SIZE}, bytearray(1 << 18)
        began = time.perf_counter()
        while left > 0: left -= s.recv_into(block)
        return {SIZE} / (time.perf_counter() - began) / 1e6
def connect():
    place = socket.getaddrinfo("a.test", 5432, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    times = []
    for _ in range(100):
        began = time.perf_counter()
        with socket.socket() as s:
            s.connect(place)
            s.recv(10)
            times.append((time.perf_counter() - began) * 1e6)
        time.sleep(0.002)
    return sorted(times)[50]
print(fetch() if sys.argv[1] == "fetch" else connect())
"""
WARM = """
import json, random, time
from pctx_sandbox import sandbox
def noop(): return None
contestants = {"none": sandbox(noop), "allow": sandbox(allow_network=["a.test"])(noop)}
if __name__ == "__main__":
    times = {name: [] for name in contestants}
    for _ in range(12):
        for name in random.sample(list(contestants), 2):
            call = contestants[name]
            for index in range(22):
                time.sleep(0.02)
                began = time.perf_counter()
                call()
                if index > 1: times[name].append((time.perf_counter() - began) * 1e3)
    print(json.dumps(times))
"""


class Bench:
    def __init__(self, world: network_world.World, binary: str) -> None:
        self.world, self.binary = world, binary
        self.rows: list[tuple[str, str, str, str, bool]] = []
        self.results: dict[str, dict[str, list[float]]] = {}

    def output(self, *command: object, **env: str) -> str:
        done = self.world.run(*command, env=env, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stderr}")
        return str(done.stdout)

    def compare(self, title: str, unit: str, times: dict[str, list[float]], goal: float, at_least: bool) -> None:
        (_, without), (_, through) = times.items()
        ratio = statistics.median(through) / statistics.median(without)
        met = ratio >= goal if at_least else ratio <= goal
        shown = [f"{statistics.median(values):.3g} {unit}" for values in (without, through)]
        self.rows.append((title, *shown, f"{ratio:.2f} (goal {'≥' if at_least else '≤'} {goal})", met))
        self.results[title] = times

    def client(self, what: str, rounds: int) -> dict[str, list[float]]:
        box = [self.binary, "run", "-q", "--timeout", "120", "--network", "allow:a.test:9000,a.test:5432", "--"]
        times: dict[str, list[float]] = {"direct": [], "through the relay": []}
        for _ in range(rounds):
            for values, prefix in zip(times.values(), ([], box), strict=True):
                values.append(float(self.output(*prefix, "/usr/bin/python3", "-c", CLIENT, what)))
        return times

    def starts(self, rounds: int) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {"none": [], "allow": []}
        script = (
            "import os, sys, time\n"
            "def spawn(words):\n"
            "    began = time.perf_counter()\n"
            "    os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)\n"
            "    return (time.perf_counter() - began) * 1e3\n"
            "box = [sys.argv[1], 'run', '-q']\n"
            f"for _ in range({rounds}):\n"
            "    print(spawn([*box, '--', 'true']), spawn([*box, '--network', 'allow:a.test', '--', 'true']))\n"
        )
        for line in self.output(sys.executable, "-c", script, self.binary).splitlines():
            for values, word in zip(times.values(), line.split(), strict=True):
                values.append(float(word))
        return times

    def warm(self) -> dict[str, list[float]]:
        file = self.world.folder / "warm.py"
        file.write_text(WARM)
        env = {"PCTX_SANDBOX_SOCKET": str(self.world.folder / "s"), "PCTX_SANDBOX_BINARY": self.binary}
        try:
            told: dict[str, list[float]] = json.loads(self.output(sys.executable, file, **env))
        finally:
            self.world.run(self.binary, "stop", env=env)
        return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--binary", default=str(TREE / ".venv" / "bin" / "pctx-sandbox"))
    parser.add_argument("--out", type=Path, default=TREE / "bench" / "results")
    arguments = parser.parse_args()
    world = network_world.World()
    try:
        world.names(network_world.RECORDS)
        bench = Bench(world, arguments.binary)
        few = max(3, arguments.rounds // 8)
        bench.compare("throughput", "MB/s", bench.client("fetch", few), 0.5, True)
        bench.compare("a new connection, to the server's first byte", "µs", bench.client("connect", few), 3, False)
        bench.compare("start of a box", "ms", bench.starts(arguments.rounds), 1.3, False)
        # "Not slower": as far as two medians of one run can tell.
        bench.compare("a warm call", "ms", bench.warm(), 1.1, False)
    finally:
        world.close()
    lines = [f"Load average {os.getloadavg()[0]:.1f} at the end.", ""]
    lines += ["| network by name | without | with the relay | ratio |", "|---|---|---|---|"]
    for title, without, through, ratio, met in bench.rows:
        lines.append(f"| {title} | {without} | {through} | {ratio}{'' if met else ' **missed**'} |")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "network.json").write_text(json.dumps(bench.results, indent=1))
    text = "\n".join(lines) + "\n"
    (arguments.out / "network.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
