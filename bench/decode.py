#!/usr/bin/env python3
"""The data path beside pickle, in one interleaved run: small values decoded, a large array there and back.

Every round times every contestant once, in a new random order. Reported are medians and ratios of medians; absolute
times of one machine are no evidence for another.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parent.parent


def use_this_tree() -> None:
    sys.path.insert(0, str(TREE / "python"))
    package = importlib.import_module("pctx_sandbox")
    package.__path__.append(str(TREE / "build" / "release" / "python" / "pctx_sandbox"))
    package.__path__.append(str(TREE / "build" / "native" / "python" / "pctx_sandbox"))


def nested_values(count: int) -> list[dict[str, Any]]:
    """About `count` small values in rows such as a function returns them: dicts, lists, tuples and leaves."""
    chance = random.Random(1)

    def leaf() -> Any:
        number = chance.randrange(10**6)
        return chance.choice((number % 200, number / 7, f"s{number}", None, number * 10**6, True))

    per_row = 12
    return [
        {"id": row, "name": f"n{row}", "tags": [leaf(), leaf()], "pair": (leaf(), leaf()), "more": {"x": leaf()}}
        for row in range(count // per_row)
    ]


def interleave(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            start = time.perf_counter()
            result = contestants[name]()
            times[name].append(time.perf_counter() - start)
            del result
    return {name: statistics.median(values) for name, values in times.items()}


def small_values(rounds: int) -> dict[str, float]:
    from pctx_sandbox._results import decode
    from pctx_sandbox.guest.encode import encode

    value = nested_values(100_000)
    theirs, ours = pickle.dumps(value, protocol=5), encode(value).payload
    assert decode(ours) == value
    contestants: dict[str, Callable[[], Any]] = {
        "pickle.loads": lambda: pickle.loads(theirs),
        "decode": lambda: decode(ours),
        "pickle.dumps": lambda: pickle.dumps(value, protocol=5),
        "encode": lambda: encode(value),
    }
    return interleave(contestants, rounds)


def large_array(rounds: int, megabytes: int) -> dict[str, float]:
    import numpy
    from pctx_sandbox._buffers import map_buffers, pack
    from pctx_sandbox._results import decode
    from pctx_sandbox.guest.encode import encode

    array = numpy.random.default_rng(1).random(megabytes * 2**20 // 8)

    def there_and_back() -> Any:
        encoded = encode(array)
        fd, table = pack(encoded.buffers)
        try:
            return decode(encoded.payload, map_buffers(fd, table)).sum()
        finally:
            os.close(fd)

    contestants: dict[str, Callable[[], Any]] = {
        "pickle in band": lambda: pickle.loads(pickle.dumps(array, protocol=5)).sum(),
        "sealed memfd": there_and_back,
    }
    return interleave(contestants, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    use_this_tree()
    small = small_values(options.rounds)
    large = large_array(max(5, options.rounds // 4), options.megabytes)
    ratios = {
        "decode / pickle.loads, 100,000 nested small values": small["decode"] / small["pickle.loads"],
        "encode / pickle.dumps, the same": small["encode"] / small["pickle.dumps"],
        f"{options.megabytes} MB array there, back and summed / pickle": large["sealed memfd"]
        / large["pickle in band"],
    }
    if options.json:
        print(json.dumps({"seconds": small | large, "ratios": ratios}, indent=2))
        return
    for name, seconds in (small | large).items():
        print(f"{name:16} {seconds * 1000:8.2f} ms")
    for name, ratio in ratios.items():
        print(f"{ratio:5.2f}  {name}")


if __name__ == "__main__":
    main()
