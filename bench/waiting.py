"""What the Workers that wait take: finds them from outside, as the kernel shows them, and reads their smaps_rollup."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def status(program: str) -> dict[str, Any]:
    done = subprocess.run([program, "status", "--json"], capture_output=True, text=True)
    return json.loads(done.stdout)


def fill(program: str, call: Callable[[], Any], count: int) -> int:
    """Calls until `count` Workers wait in the only pool, which grows whenever a caller finds none: how many wait."""
    for _ in range(20):
        waiting = _settle(program)
        if waiting >= count:
            return _shrink(program, count)
        # One finds the lease that this process keeps for its next call, one finds nothing.
        threads = [threading.Thread(target=call) for _ in range(waiting + 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return waiting


def _shrink(program: str, count: int) -> int:
    """Several callers that find none make it grow beyond; after five quiet seconds it halves what waits."""
    deadline = time.monotonic() + 15
    while (waiting := _settle(program)) > count and time.monotonic() < deadline:
        time.sleep(0.1)
    return waiting


def _settle(program: str) -> int:
    """The number of waiting Workers once none is being made."""
    for _ in range(100):
        (pool,) = status(program)["pools"]
        if not pool["making"] and pool["waiting"]:
            break
        time.sleep(0.05)
    return pool["waiting"]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers(broker: int) -> list[int]:
    """Python processes below the Broker that live in a pid namespace of their own: not Zygotes, not inits."""
    found = []
    for maker in _children(broker):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{maker}/comm").read_text().strip() != "pctx-maker":
                continue
            own = os.readlink(f"/proc/{maker}/ns/pid")
            for pid in _children(maker):
                program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
                if program.startswith("python") and os.readlink(f"/proc/{pid}/ns/pid") != own:
                    found.append(pid)
    return found


def rollup(pid: int) -> dict[str, float]:
    """MiB by name."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def measure(program: str) -> dict[str, float]:
    pids = workers(status(program)["pid"])
    each = [rollup(pid) for pid in pids]
    return {
        "workers": len(each),
        "pss": statistics.mean(one["Pss"] for one in each),
        "private_dirty": statistics.mean(one["Private_Dirty"] for one in each),
    }
