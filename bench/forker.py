"""The bare loop that throughput is held against: forks this interpreter once per call, with no isolation at all.

`forker.py SECONDS [module]` imports the module, forks for that long, and prints calls per second. Each child runs a
no-op and sends its pickled result through a pipe; nothing else.
"""

import gc
import importlib
import os
import pickle
import sys
import time


def noop() -> None:
    return None


def main() -> None:
    if len(sys.argv) > 2:
        importlib.import_module(sys.argv[2])
    gc.collect()
    gc.freeze()
    seconds = float(sys.argv[1])
    calls = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, pickle.dumps(noop()))
            os._exit(0)
        os.close(writing)
        pickle.loads(os.read(reading, 4096))
        os.close(reading)
        os.waitpid(pid, 0)
        calls += 1
    print(calls / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
