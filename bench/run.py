#!/usr/bin/env python3
"""Cold starts beside the peers that are installed, in one interleaved run.

Every round runs every contestant once, in a new random order, so that whatever else the machine does hits all of
them alike. Reported are medians, p95 and ratios; absolute times of one machine are no evidence for another.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
READ_ONLY_ROOT = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]


def podman(runtime: list[str]) -> list[str]:
    """The host's own tree, under an overlay, and no network; limits that an ordinary caller may set."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    words = ["podman", *runtime, "run", "--rm", "--network=none"]
    for name, kind in limits.items():
        most = min(resource.getrlimit(kind)[1], 4096)
        words += ["--ulimit", f"{name}={most}:{most}"]
    return [*words, "--rootfs", "/:O"]


class Contestants:
    """How each sandbox starts a command; a peer that cannot start `true` here is left out, with its reason."""

    def __init__(self, binary: str, scratch: Path) -> None:
        self.scratch = scratch
        self.prefix: dict[str, list[str]] = {
            "unsandboxed": [],
            "pctx-sandbox": [binary, "run", "--"],
            "bwrap": ["bwrap", "--unshare-all", *READ_ONLY_ROOT, "--"],
            # Fewer mounts than any of the others: the host's own /dev and /tmp stay visible, and there is no /proc
            # of its own.
            "bwrap, host's tree as it is": ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--"],
            "nsjail": ["nsjail", "-Mo", "-q", "-c", "/", "--user", "65534", "--group", "65534", "--"],
            "firejail": ["firejail", "--quiet", "--noprofile", "--net=none", "--"],
            "crun": ["crun"],
            "podman": podman([]),
            "podman with runc": podman(["--runtime", "runc"]),
        }
        self.left_out: dict[str, str] = {}
        for name in list(self.prefix):
            if (reason := self.does_not_start(name)) is not None:
                self.left_out[name] = reason
                del self.prefix[name]

    def does_not_start(self, name: str) -> str | None:
        program = (self.prefix[name] or ["true"])[0]
        if shutil.which(program) is None:
            return "not installed"
        trial = subprocess.run(self.command(name, ["/usr/bin/true"]), capture_output=True, text=True)
        return (trial.stderr.strip().splitlines() or ["does not start"])[-1] if trial.returncode != 0 else None

    def command(self, name: str, command: list[str]) -> list[str]:
        if name == "crun":
            return self.crun(command)
        return [*self.prefix[name], *command]

    def crun(self, command: list[str]) -> list[str]:
        bundle = self.scratch / ("bundle-" + str(abs(hash(tuple(command)))))
        if not bundle.exists():
            bundle.mkdir()
            subprocess.run(["crun", "spec"], cwd=bundle, check=True)
            config = json.loads((bundle / "config.json").read_text())
            config["root"] = {"path": "/", "readonly": True}
            config["process"]["terminal"] = False
            config["process"]["args"] = command
            (bundle / "config.json").write_text(json.dumps(config))
        return ["crun", "run", "--bundle", str(bundle), f"bench-{os.getpid()}-{random.randrange(1 << 30)}"]


def spawn(command: list[str]) -> float:
    """Seconds from start to end. posix_spawn and a blocking wait: Popen.wait with a timeout polls in 50 ms steps."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    start = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=quiet)
    status = os.waitpid(pid, 0)[1]
    seconds = time.perf_counter() - start
    if status != 0:
        raise RuntimeError(f"{command} ended with status {status}")
    return seconds


def interleaved(contestants: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for index in range(rounds + 2):
        for name in random.sample(list(contestants), len(contestants)):
            seconds = spawn(contestants[name])
            if index >= 2:  # the first two rounds fill the page cache
                times[name].append(seconds * 1000)
        if sys.stderr.isatty():
            print(f"\r  round {index + 1} of {rounds + 2}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return times


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def table(title: str, times: dict[str, list[float]], reference: str) -> str:
    base = statistics.median(times[reference])
    lines = [f"| {title} | median ms | p95 ms | ratio to {reference} |", "|---|---|---|---|"]
    for name, values in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(values)
        lines.append(f"| {name} | {median:.2f} | {p95(values):.2f} | {median / base:.2f} |")
    return "\n".join(lines)


def compile_loop(scratch: Path) -> Path:
    program = scratch / "syscalls"
    subprocess.run(["cc", "-O2", "-static", "-o", program, TREE / "bench" / "syscalls.c"], check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--binary", default=str(TREE / ".venv" / "bin" / "pctx-sandbox"))
    parser.add_argument("--out", type=Path, default=TREE / "bench" / "results")
    arguments = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    kernel = ".".join(platform.release().split(".")[:2])
    sections = [
        f"Linux {kernel}, {os.cpu_count()} CPUs, {arguments.rounds} rounds, interleaved; "
        f"load average {os.getloadavg()[0]:.1f} at the start."
    ]
    with tempfile.TemporaryDirectory(prefix="pctx-bench-") as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)
        contestants = Contestants(arguments.binary, scratch)
        for title, command, reference in (
            ("`true`", ["/usr/bin/true"], "bwrap"),
            ("`python3 -c pass`", ["/usr/bin/python3", "-c", "pass"], "unsandboxed"),
        ):
            print(f"measuring {title}", file=sys.stderr)
            commands = {name: contestants.command(name, command) for name in contestants.prefix}
            times = interleaved(commands, arguments.rounds)
            results[title] = times
            sections.append(table(title, times, reference if reference in times else "unsandboxed"))
        loop = compile_loop(scratch)
        print("measuring system calls", file=sys.stderr)
        for what in ("getppid", "open"):
            inside: list[float] = []
            outside: list[float] = []
            box = [arguments.binary, "run", "-q", "--ro", f"{loop}:/loop", "--", "/loop", what]
            for _ in range(max(30, arguments.rounds // 2)):
                for times, command in random.sample([(outside, [loop, what]), (inside, box)], 2):
                    times.append(float(subprocess.check_output(command)))
            times = {"unsandboxed": outside, "pctx-sandbox": inside}
            title = "100,000 `getppid`" if what == "getppid" else "10,000 `open`/`close`"
            results[title] = times
            sections.append(table(title, times, "unsandboxed"))
        for name, reason in contestants.left_out.items():
            sections.append(f"Not measured: {name} ({reason}).")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "cold.json").write_text(json.dumps(results, indent=1))
    text = "\n\n".join(sections) + "\n"
    (arguments.out / "table.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
