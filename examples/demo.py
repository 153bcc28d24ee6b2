"""What `make demo` shows: the example, its speed, the layers around it, and seven attacks inside and outside a box.

Ends with 1 if an attack succeeds inside or fails outside, and with the doctor's words where no box can be made.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import attacks
from pctx_sandbox import sandbox
from pctx_sandbox.errors import PlatformNotSupportedError, SandboxError, SandboxStartupError

SECRET = "the planted secret"
LIMIT_SECONDS = 2
PAUSE_SECONDS = 0.02


@sandbox(dependencies=["pandas"])
def process_data(data: list[dict]) -> dict:
    import pandas as pd

    df = pd.DataFrame(data)
    return {"rows": len(df), "columns": list(df.columns)}


def process_data_outside(data: list[dict]) -> dict:
    columns = list(data[0])
    return {"rows": len(data), "columns": columns}


@sandbox
def nothing() -> None:
    """For the layers of a box."""


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The value and its milliseconds, after a pause: people and agents do not call a hundred times in a row."""
    time.sleep(PAUSE_SECONDS)
    start = time.perf_counter()
    value = call()
    return value, (time.perf_counter() - start) * 1000


def show_example() -> None:
    data = [{"name": "Alice", "age": 30}]
    print("\nThe example:")
    value, first = timed(lambda: process_data(data))
    print(f"  process_data({data}) -> {value}")
    times = [timed(lambda: process_data(data))[1] for _ in range(99)]
    with ProcessPoolExecutor(1) as pool:
        pool.submit(process_data_outside, data).result()
        outside = [timed(lambda: pool.submit(process_data_outside, data).result())[1] for _ in range(99)]
    print(
        f"  call 1: {first:.1f} ms, call 2: {times[0]:.1f} ms, call 100: {times[-1]:.1f} ms,"
        " each in a new box, 20 ms apart"
    )
    print(
        f"  median of 99: {statistics.median(times):.2f} ms with pandas; a call without pandas and without a box in a "
        f"ProcessPoolExecutor: {statistics.median(outside):.2f} ms"
    )


def show_layers() -> None:
    print("\nEnforced around each call:")
    layers = nothing.run().receipt["layers"]
    for name, layer in sorted(layers.items()):
        print(f"  {'on ' if layer['on'] else 'OFF'} {name:<17} {layer['detail']}")
    if not all(layer["on"] for layer in layers.values()):
        print("  what is off, and how to have it: .venv/bin/pctx-sandbox doctor")


@contextlib.contextmanager
def host_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(SECRET.encode())

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def outside(function: Callable[..., Any], *args: Any) -> Any:
    """The same function in an ordinary process. Its result travels by pickle, as a pool's results do."""
    ours, theirs = multiprocessing.Pipe()

    def run() -> None:
        try:
            theirs.send_bytes(pickle.dumps(function(*args)))
        except BaseException as error:
            theirs.send_bytes(pickle.dumps(error))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    theirs.close()
    try:
        value = pickle.loads(ours.recv_bytes())
    except EOFError:
        value = RuntimeError("the process died")
    process.join()
    if isinstance(value, BaseException):
        raise value
    return value


def attack(title: str, function: Callable[..., Any], args: tuple[Any, ...], harm: Callable[[Any], bool]) -> bool:
    """True if it was stopped inside and succeeded outside."""
    boxed = sandbox(function, timeout_sec=LIMIT_SECONDS) if function is attacks.run_for_ever else sandbox(function)
    try:
        got = boxed(*args)
        stopped, reason = not harm(got), f"it got {got!r}"
    except SandboxError as error:
        stopped, reason = not harm(None), str(error).splitlines()[0]
    try:
        free = harm(outside(function, *args))
        free_reason = "succeeds" if free else "did no harm"
    except BaseException as error:
        free, free_reason = False, f"failed: {error}"
    print(f"  {'stopped' if stopped else 'NOT STOPPED'}: {title}\n      inside: {reason}\n      outside: {free_reason}")
    return stopped and free


def start_victim() -> subprocess.Popen[bytes]:
    """A process that lets itself be traced: Ubuntu forbids it to strangers, and the attack is to fail inside only."""
    allow = "import ctypes, time; ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)"
    victim = subprocess.Popen(
        [sys.executable, "-c", f"{allow}; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    )
    assert victim.stdout is not None
    victim.stdout.readline()
    return victim


def show_attacks() -> bool:
    print("\nSeven attacks, inside a box and outside:")
    victim = start_victim()
    with tempfile.TemporaryDirectory(prefix="pctx-demo-") as folder, host_port() as port:
        key = Path(folder) / "id_ed25519"
        key.write_text(SECRET)
        os.environ["PCTX_DEMO_SECRET"] = SECRET
        marker = os.path.join(folder, "ran-code")

        def code_ran(_: Any) -> bool:
            return os.path.isdir(marker)

        got = lambda value: value is not None  # noqa: E731
        results = [
            attack("read a planted key file", attacks.read_key_file, (str(key),), lambda v: v == SECRET),
            attack("read a planted secret in the environment", attacks.read_environment, ("PCTX_DEMO_SECRET",), got),
            attack("connect to a port of the host", attacks.connect_to_host, (port,), lambda v: v == SECRET),
            attack("trace another process", attacks.trace_process, (victim.pid,), got),
            attack("take 2 GB of memory", attacks.take_memory, (2 * 10**9,), got),
            attack("run for ever", attacks.run_for_ever, (LIMIT_SECONDS + 1,), got),
            attack("return a result that runs code", attacks.return_code, (marker,), code_ran),
        ]
        del os.environ["PCTX_DEMO_SECRET"]
    victim.kill()
    victim.wait()
    return all(results)


def main() -> int:
    try:
        show_example()
        show_layers()
        safe = show_attacks()
    except (SandboxStartupError, PlatformNotSupportedError) as error:
        print(f"\nNo box can be made here: {error}\n")
        subprocess.run([Path(sys.executable).parent / "pctx-sandbox", "doctor"], check=False)
        return 1
    print("\nAll seven were stopped inside and succeed outside." if safe else "\nAt least one attack went wrong.")
    return 0 if safe else 1


if __name__ == "__main__":
    sys.exit(main())
