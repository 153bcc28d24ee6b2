"""Packages are imported in a Zygote, and from then on it is theirs. Nothing that one does there reaches another call.

Each package below has its way with the Zygote at import. The reason in `status` shows that it came that far and what
stopped it; the calls still work, because the package is then left to the Workers, where it harms only itself.
"""

import base64
import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pctx_sandbox import SandboxError, sandbox

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import wheels
from waiting import wait_until

# Minutes of killing and hanging on purpose: part of `make test-all`.
pytestmark = pytest.mark.chaos

# ruff: noqa: E501

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"

# Runs `attack(fds)` in the Zygote whenever it is about to fork; not in Workers, which import the package later.
AT_EVERY_FORK = """
import os, socket
real = socket.recv_fds
zygote = os.getpid()
def recv_fds(sock, size, most):
    order, fds, flags, address = real(sock, size, most)
    if os.getpid() == zygote and fds:
        attack(fds)
    return order, fds, flags, address
socket.recv_fds = recv_fds
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A folder of wheels and a store of Environments, for this module alone."""
    folder = tmp_path_factory.mktemp("wheels")
    cache = tmp_path_factory.mktemp("cache")
    settings = {
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
        "PCTX_SANDBOX_CACHE_DIR": str(cache),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
            patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(name, value)
        yield folder
    subprocess.run(["chmod", "-R", "u+w", str(cache)], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def left(broker, shop):
    """left("name", source): makes the package, calls a function that needs it, and tells why the Zygote left it."""

    def run(name, source, function=None, **settings):
        wheels.make(shop, name, "1.0", {f"{name}.py": source})
        boxed = sandbox(dependencies=[name], **settings)(function or plain)
        assert boxed(1) == 2
        assert [boxed(number) for number in range(5)] == [1, 2, 3, 4, 5]
        return reason(broker, name), boxed

    return run


def plain(number):
    return number + 1


def pool_of(broker, name):
    for pool in broker.status()["pools"]:
        if name in pool["preloaded"] or name in pool["left_to_workers"]:
            return pool
    raise AssertionError(f"no pool knows {name}: {broker.status()}")


def reason(broker, name):
    return pool_of(broker, name)["left_to_workers"].get(name, "")


def test_control_a_harmless_package_is_imported_in_the_zygote(left, broker):
    why, boxed = left("harmless", "import os\npid = os.getpid()\n")
    assert why == "" and pool_of(broker, "harmless")["preloaded"] == ["harmless"]


@pytest.mark.parametrize(
    ("name", "source", "word"),
    [
        (
            "threads",
            "import threading, time\nthreading.Thread(target=time.sleep, args=(9**9,), daemon=True).start()",
            "threads",
        ),
        ("opens", "import os\nkept = os.open('/etc/passwd', os.O_RDONLY)", "files open: /etc/passwd"),
        (
            "listens",
            "import socket\nkept = socket.socket(socket.AF_UNIX)\nkept.bind('\\0x')\nkept.listen()",
            "files open",
        ),
        ("shares", "import mmap\nkept = mmap.mmap(-1, 4096)", ("shared between processes", "not permitted")),
        ("forks", "import os, time\nif os.fork() == 0:\n    time.sleep(9**6)", "starts processes"),
        ("raises", "raise ValueError('not today')", "ValueError: not today"),
        ("leaves", "import os\nos._exit(3)", "ended the Zygote"),
        ("exits", "import sys\nsys.exit(3)", "SystemExit"),
        ("crashes", "import ctypes\nctypes.string_at(0)", "ended the Zygote"),
        ("killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended the Zygote"),
        ("talks", "import os\nos.write(0, b'{\"ready\": 5}')\n", ""),
        ("babbles", "import os\nos.write(0, b'\\xff' * 1000)\n", "nobody asked for"),
        ("closes", "import os\nos.close(0)\n", ""),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() and len(value) < 12 else "",
)
def test_an_import_that_spoils_the_zygote_is_left_to_the_worker(left, name, source, word):
    why, _ = left(name, source)
    # Without a memory cgroup shared anonymous memory is refused to begin with.
    assert any(each in why for each in ([word] if isinstance(word, str) else word))


@pytest.mark.parametrize(
    ("name", "attack", "word"),
    [
        ("keeps", "def attack(fds): [os.dup(fd) for fd in fds]", "keeps descriptors"),
        ("swaps", """
def attack(fds):
    a, b = socket.socketpair()
    socket.send_fds(a, [b"x"], fds[4:])
    os.dup2(a.fileno(), 1); os.dup2(b.fileno(), 2)
    a.close(); b.close()
""", "keeps descriptors"),
        ("orphans", """
import time
def attack(fds):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(9**6)
        os._exit(0)
    os.wait()
""", "left a process behind"),
        ("children", """
import time
def attack(fds):
    if os.fork() == 0:
        time.sleep(9**6)
""", "children of its own"),
        ("moves", """
import ctypes
def attack(fds):
    ctypes.CDLL(None).setns(fds[4], 0x10000000)
""", "left its user namespace"),
        ("stands", "def attack(fds): os.chdir('/tmp')", "working directory"),
        ("hides", """
import threading, time, ctypes
def attack(fds):
    threading.Thread(target=hold, args=([os.dup(fd) for fd in fds],), daemon=True).start()
def hold(fds):
    time.sleep(9**6)
""", "keeps descriptors"),
    ],
)  # fmt: skip
def test_a_zygote_that_keeps_a_way_into_a_box_is_replaced(left, name, attack, word):
    why, _ = left(name, AT_EVERY_FORK + attack)
    assert word in why


def remember_in(name):
    def remember(number):
        """What another call left in the package's memory or at its working directory; then leaves its own."""
        import importlib

        shared = importlib.import_module(name)
        found = shared.look() if number else b""
        shared.leave(b"call-data")
        if b"call-data" in found:
            raise RuntimeError(found)
        return number + 1

    return remember


SHARED_MAPPING = """
import mmap
file = "/tmp/shared"
memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE)
def attack(fds):
    global memory
    fd = os.open(file, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, 4096)
    memory = mmap.mmap(fd, 4096)
    os.close(fd)
def back():
    global memory
    memory = None
os.register_at_fork(after_in_parent=back)
def look(): return bytes(memory[:9])
def leave(data): memory[:9] = data
"""

SHARED_FOLDER = """
place = -1
def attack(fds):
    global place
    place = os.open("/tmp", os.O_RDONLY)
real_chdir = os.chdir
def chdir(path):
    os.fchdir(place) if place >= 0 else real_chdir(path)
os.chdir = chdir
def back():
    global place
    if place >= 0: os.close(place)
    place = -1
os.register_at_fork(after_in_parent=back)
def look():
    try: return open("left", "rb").read()
    except OSError: return b""
def leave(data): open("left", "wb").write(data)
"""


@pytest.mark.parametrize(
    ("name", "source", "word"),
    [("mapped", SHARED_MAPPING, "writable mapping"), ("folded", SHARED_FOLDER, "does not stand in its box")],
    ids=["mapping", "folder"],
)
def test_workers_that_would_share_something_are_not_lent(left, name, source, word):
    why, _ = left(name, AT_EVERY_FORK + source, remember_in(name))
    assert word in why


def test_a_worker_in_its_zygotes_memory_is_not_lent(left, tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the attacker")
    library = tmp_path / "shared_worker.so"
    source = str(PAYLOADS / "shared_worker.c")
    subprocess.run([compiler, "-O1", "-w", "-shared", "-fPIC", "-s", "-o", str(library), source], check=True)
    native = base64.b85encode(library.read_bytes()).decode()
    attack = f"""
import base64, ctypes
open("/tmp/s.so", "wb").write(base64.b85decode({native!r}))
own = ctypes.CDLL("/tmp/s.so")
last = []
def attack(fds): last[:] = fds
class Native:
    def pctx_fork(self, namespaces, count, tasks, task_count):
        return own.shared_fork(namespaces, (ctypes.c_int * 4)(*last[:4]))
ctypes.PyDLL = lambda path: Native()
"""
    why, _ = left("onemind", AT_EVERY_FORK + attack)
    assert "shares memory" in why


def test_hooks_and_handlers_of_a_package_harm_only_its_worker(left):
    source = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(1))
signal.setitimer(signal.ITIMER_REAL, 3600)
os.register_at_fork(before=lambda: None, after_in_child=lambda: os.environ.update(HOOKED="1"))
"""
    why, _ = left("hooks", source)
    assert why == ""


def test_a_hook_that_ends_every_worker_is_left_to_the_worker(left):
    why, _ = left("endshook", "import os\nos.register_at_fork(after_in_child=lambda: os._exit(1))")
    assert "ended before it was ready" in why or "ended while it was made ready" in why


def test_a_zygote_that_dies_at_every_fork_is_left_without_the_package(left):
    why, _ = left("dies", AT_EVERY_FORK + "def attack(fds): os._exit(1)")
    assert "ended while" in why


def test_children_left_at_import_are_ended(broker, left):
    source = """
import ctypes, os, time
if os.fork() == 0:
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"pctx-stray")
        time.sleep(9**6)
    os._exit(0)
os.wait()
"""
    why, _ = left("strays", source)
    assert why == ""
    assert not broker.below("pctx-stray")


# Runs `wake()` a second after the Zygote, or a Worker, has begun to wait: both have been looked at by then.
LATER = """
import os, signal, socket
kept = []
def later():
    signal.signal(signal.SIGALRM, lambda *_: wake())
    signal.setitimer(signal.ITIMER_REAL, 1)
def stay():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.pause()
"""
IN_ZYGOTE = "later()"
IN_WORKERS = "os.register_at_fork(after_in_child=later)"
WAKES = {
    "opens": "def wake(): kept.append(socket.socketpair())",
    "starts": "def wake():\n    if os.fork() == 0: stay()",
    "orphans": "def wake():\n    if os.fork() == 0:\n        if os.fork() == 0: stay()\n        os._exit(0)\n    os.wait()",
}


@pytest.mark.parametrize("when", [IN_ZYGOTE, IN_WORKERS], ids=["zygote", "worker"])
@pytest.mark.parametrize("what", WAKES)
def test_a_package_that_wakes_up_where_it_waits_is_left_to_the_worker(broker, shop, what, when):
    name = f"{what}late{len(when)}"
    wheels.make(shop, name, "1.0", {f"{name}.py": "\n".join([LATER, WAKES[what], when])})
    boxed = sandbox(dependencies=[name])(plain)
    assert boxed(1) == 2 and reason(broker, name) == ""
    wait_until(lambda: reason(broker, name), pause=0.2)
    assert "while nobody calls it" in reason(broker, name)
    assert boxed(1) == 2


@pytest.mark.parametrize("when", [IN_ZYGOTE, IN_WORKERS], ids=["zygote", "worker"])
def test_control_a_package_may_wake_up_and_open_nothing(broker, shop, when):
    name = f"wakes{len(when)}"
    source = "\n".join([LATER, "def wake(): socket.socketpair()[0].close()", when])
    wheels.make(shop, name, "1.0", {f"{name}.py": source})
    boxed = sandbox(dependencies=[name])(plain)
    assert boxed(1) == 2
    time.sleep(4)
    assert reason(broker, name) == "" and boxed(1) == 2


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("name", "source", "word"),
    [
        ("hangs", "import time\ntime.sleep(9**6)", "takes too long"),
        ("stops", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "takes too long"),
        ("hangsfork", AT_EVERY_FORK + "import time\ndef attack(fds): time.sleep(9**6)", "hangs"),
    ],
)
def test_an_import_that_hangs_is_left_to_the_worker(broker, shop, name, source, word):
    wheels.make(shop, name, "1.0", {f"{name}.py": source})
    began = time.monotonic()
    assert sandbox(dependencies=[name], queue_timeout_sec=120)(plain)(1) == 2
    assert time.monotonic() - began < 60
    assert word in reason(broker, name)


def test_the_zygote_has_limits_of_its_own(broker, shop):
    source = (
        "import os\ntry:\n    while os.fork(): pass\n    os._exit(0)\nexcept OSError: pass\nkept = bytearray(64 << 30)"
    )
    wheels.make(shop, "greedy", "1.0", {"greedy.py": source})
    with contextlib.suppress(SandboxError):
        assert sandbox(dependencies=["greedy"])(plain)(1) == 2
    assert sandbox(plain)(1) == 2


def test_workers_of_an_environment_that_was_built_again_are_not_lent(broker, shop):
    def value():
        import again  # type: ignore[import-not-found]

        return again.value

    for number in (1, 2):
        wheels.make(shop, "again", "1.0", {"again.py": f"value = {number}\n"})
        assert [sandbox(dependencies=["again"], disable_cache=True)(value)() for _ in range(2)] == [number] * 2


def test_an_import_that_takes_all_memory_is_left_to_the_worker(broker, shop):
    """4 GiB are a Zygote's, by its cgroup or, where there is none, because the Broker looks."""
    source = "def plain(n): return n\nheld = [b'x' * (64 << 20) for _ in range(80)]\n"
    wheels.make(shop, "glutton", "1.0", {"glutton.py": source})

    @sandbox(dependencies=["glutton"], memory_mb=200, queue_timeout_sec=120)
    def call():
        return "served"

    assert call() == "served"
    assert "ended the Zygote" in reason(broker, "glutton")
