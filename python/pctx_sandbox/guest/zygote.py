"""The Zygote: imports an Environment's packages once, then does nothing but fork Workers into boxes made for them.

Started by the Broker, in a box of its own, with one JSON argument; descriptor 0 is the socket to the Broker. Nothing
that this process says about itself is believed: the Broker looks at every Worker from outside before it lends it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn


def _keep_libffi_from_files() -> None:
    """Newer libffi keeps open the file that its trampolines lie in, from the first callback on; _ctypes or ctypes make
    one when they are imported. Where it cannot open that file it makes them in memory, for good: so the first callback
    is made while nothing can be opened.
    """
    spec = importlib.util.find_spec("_ctypes")
    assert spec is not None and spec.loader is not None
    native = importlib.util.module_from_spec(spec)  # loads the library; what it does by itself comes with exec_module
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        spec.loader.exec_module(native)
        sys.modules["_ctypes"] = native
        kind = {"_flags_": native.FUNCFLAG_CDECL, "_argtypes_": (), "_restype_": None}
        type(native.CFuncPtr)("Callback", (native.CFuncPtr,), kind)(lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_keep_libffi_from_files()
import ctypes  # noqa: E402

SUPPORT = "/run/pctx"
# Threads that survive a fork harmlessly because nobody waits for them (pyarrow's allocator frees memory in one).
HARMLESS_THREADS = {"jemalloc_bg_thd"}
# By a part of the library's name: the variable that it reads at its start, and what tells it the same later.
THREAD_SETTERS = {
    "openblas": (
        "OPENBLAS_NUM_THREADS",
        "openblas_set_num_threads",
        "openblas_set_num_threads64_",
        "scipy_openblas_set_num_threads",
        "scipy_openblas_set_num_threads64_",
    ),
    "mkl_rt": ("MKL_NUM_THREADS", "MKL_Set_Num_Threads"),
    "gomp": ("OMP_NUM_THREADS", "omp_set_num_threads"),
}
NAMESPACES = 7
ENDS = 4  # what a Worker holds
RANDOM_DEVICE = os.makedev(1, 9)
LAST_DESCRIPTOR = 64
# A library that starts a thread per CPU at import cannot be forked after it.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Threads(NamedTuple):
    """How many a call may have: what its variables say, and what tells libraries that have been loaded with one."""

    variables: dict[str, str]
    setters: list[Callable[[], object]]


def main() -> NoReturn:
    config = json.loads(sys.argv[1])
    wanted = {name: os.environ.get(name, str(config["threads"])) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    worker = _load_support()
    if not config["environment"]:
        _finish_site()
    control = socket.socket(fileno=0)
    left = json.loads(control.recv(1 << 17))["left"]
    loaded = _preload(control, config["preload"], left)
    sys.argv = [""]
    start = os.getcwd()
    os.chdir("/")
    worker.prepare()
    threads = Threads(wanted, _thread_setters(wanted))
    gc.collect()
    gc.freeze()  # a collection in a Worker would write to every object's header, and copy its page
    control.send(json.dumps({"ready": {"preloaded": loaded, "left": left}}).encode())
    _fork_for_ever(control, worker, start, threads)


def _load_support() -> Any:
    """Our own modules and the caller's cloudpickle, before anything of the Environment can take their names."""
    sys.path.insert(0, SUPPORT)
    importlib.import_module("cloudpickle")
    worker = importlib.import_module("guest.worker")
    sys.path.remove(SUPPORT)
    return worker


def _finish_site() -> None:
    """Without an Environment Python starts without site: system packages stay out. What people type stays in."""
    import site

    for name in ("setquit", "setcopyright", "sethelper"):
        getattr(site, name)()


def _threads() -> set[str]:
    names = set()
    for task in os.listdir("/proc/self/task"):
        if int(task) == os.getpid():
            continue
        with open(f"/proc/self/task/{task}/comm") as comm:
            names.add(comm.read().strip())
    return names - HARMLESS_THREADS


def _descriptors() -> set[str]:
    """What is open beside our own three, and the one that lists them."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2:
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def _forget_random_device() -> None:
    """Pythons built for old systems, as uv installs them, keep /dev/urandom open, and open it anew when it is gone.

    A Worker that shared it with its Zygote could leave flags on it for the next one; the Broker lends none that does.
    """
    if hasattr(os, "getrandom"):
        return
    for number in range(3, LAST_DESCRIPTOR):
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == RANDOM_DEVICE:
                os.close(number)


def _shares_memory() -> bool:
    with open("/proc/self/maps") as maps:
        return any(line.split(None, 2)[1][1::2] == "ws" for line in maps)


def _why_unfit(before: set[str]) -> str:
    """Why Workers cannot be forked after the last import. The Broker looks for itself; this is for honest packages."""
    if threads := _threads():
        return f"it starts threads: {', '.join(sorted(threads))}"
    if opened := _descriptors() - before:
        return f"it keeps files open: {', '.join(sorted(opened))}"
    if _shares_memory():
        return "it keeps memory that is shared between processes"
    if _has_children():
        return "it starts processes"
    return ""


def _has_children() -> bool:
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return bool(children.read())


def _preload(control: socket.socket, names: list[str], left: dict[str, str]) -> list[str]:
    """Imports what it can; the rest, with the reasons, is added to `left`. The Broker learns what it is at."""
    loaded: list[str] = []
    _forget_random_device()
    before = _descriptors()
    for name in names:
        if name in left:
            continue
        control.send(name.encode())
        try:
            importlib.import_module(name)
        except BaseException as error:
            left[name] = f"{type(error).__name__}: {error}"[:500]
        _forget_random_device()
        if reason := _why_unfit(before):
            # It cannot be undone from here. The next Zygote leaves this package to its Workers.
            os.write(2, reason[:500].encode())
            os._exit(1)
        if name not in left:
            loaded.append(name)
    return loaded


def _fork_for_ever(control: socket.socket, worker: Any, start: str, threads: Threads) -> NoReturn:
    native = ctypes.PyDLL(f"{SUPPORT}/guest/_fork.so")
    api = ctypes.pythonapi
    while True:
        order, fds, _, _ = socket.recv_fds(control, 16, 16)
        if not order:
            os._exit(0)
        namespaces = (ctypes.c_int * NAMESPACES)(*fds[ENDS : ENDS + NAMESPACES])
        tasks = (ctypes.c_int * (len(fds) - ENDS - NAMESPACES))(*fds[ENDS + NAMESPACES :])
        api.PyOS_BeforeFork()
        answer = native.pctx_fork(namespaces, NAMESPACES, tasks, len(tasks))
        if answer == 0:
            api.PyOS_AfterFork_Child()
            os.chdir(start)
            _become_worker(worker, threads, *fds[:ENDS])
        api.PyOS_AfterFork_Parent()
        for fd in fds:
            os.close(fd)
        control.send(b"0" if answer > 0 else str(-answer).encode())


def _thread_setters(wanted: dict[str, str]) -> list[Callable[[], object]]:
    """What tells the libraries that are loaded how many threads to use; the others will read the variables."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    setters: list[Callable[[], object]] = []
    for path in sorted(paths):
        for part, (variable, *functions) in THREAD_SETTERS.items():
            if part in os.path.basename(path) and wanted[variable].isdigit() and wanted[variable] != "1":
                library = ctypes.CDLL(path)
                found = [getattr(library, name) for name in functions if hasattr(library, name)]
                setters += [functools.partial(setter, int(wanted[variable])) for setter in found]
    return setters


def _become_worker(worker: Any, threads: Threads, null: int, sock: int, out: int, err: int) -> NoReturn:
    for source, target in ((null, 0), (out, 1), (err, 2), (sock, 3)):
        os.dup2(source, target)
    os.closerange(4, LAST_DESCRIPTOR)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # the others notice the fork by themselves
    os.environ.update(threads.variables)
    worker.warm()
    _forget_random_device()
    os.write(3, b"R")
    # Some libraries start their threads at once when they are told, and a Worker that waits has only one.
    worker.serve(3, lambda: [tell() for tell in threads.setters])
    os._exit(0)


if __name__ == "__main__":
    main()
