"""The AppArmor profile of the processes that make boxes: it is entered, it is enough, and it is not more than that."""

import contextlib
import errno
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import SLOW, wait_until, with_own_broker

pytestmark = [pytest.mark.vm, pytest.mark.root_only]

LAUNCH = "pctx-sandbox-launch"
LIMIT = 60 * max(1, SLOW / 4)


@pytest.fixture(autouse=True)
def needs_apparmor(machine):
    if not machine.apparmor:
        pytest.skip("needs a kernel with AppArmor")


def label_of_init(seen):
    """Older kernels name a process by the descriptor that it was started from."""
    return seen[".init"] if ".init" in seen else seen["5"]


def label(pid):
    return Path(f"/proc/{pid}/attr/current").read_text().strip("\0\n")


def labels_below(pid):
    """The profile of every process below `pid`, by its name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                found.setdefault(Path(f"/proc/{child}/comm").read_text().strip(), set()).add(label(child))
            with contextlib.suppress(OSError):
                for name, labels in labels_below(child).items():
                    found.setdefault(name, set()).update(labels)
    return found


def test_the_first_process_of_a_box_is_confined_and_the_supervisor_is_not(binary):
    run = subprocess.Popen([binary, "run", "-q", "--timeout", "600s", "--", "sleep", "500"])
    try:
        assert wait_until(lambda: "sleep" in labels_below(run.pid), 30)
        seen = labels_below(run.pid)
        assert "unconfined" in label(run.pid)  # the control
        assert seen["sleep"] == {"pctx-sandbox-guest (enforce)"}
        assert label_of_init(seen) == {f"{LAUNCH} (enforce)"}, seen
    finally:
        run.terminate()
        run.wait(LIMIT)


CALL = """
from pctx_sandbox import sandbox

@sandbox(timeout_sec=600)
def stay():
    import time
    print("here", flush=True)
    time.sleep(500)

stay()
"""


def test_whoever_makes_the_boxes_of_workers_is_confined(binary, tmp_path):
    script = tmp_path / "call.py"
    script.write_text(CALL)
    environment = with_own_broker(binary, tmp_path)
    caller = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert caller.stdout.readline() == "here\n"
        seen = labels_below(min(int(path.name) for path in Path("/proc").glob("[0-9]*") if serves(path, tmp_path)))
        assert seen["pctx-maker"] == label_of_init(seen) == {f"{LAUNCH} (enforce)"}, seen
    finally:
        caller.kill()
        caller.wait()
        subprocess.run([binary, "stop"], env=environment, capture_output=True, timeout=LIMIT)


def serves(process, folder):
    """The Broker, or somebody below it."""
    with contextlib.suppress(OSError):
        environment = (process / "environ").read_bytes()
        words = (process / "cmdline").read_bytes().split(b"\0")
        return b"serve" in words and str(folder).encode() in environment
    return False


TRY = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(): return libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) and ctypes.get_errno()
def fails(deed):
    try: deed()
    except OSError as error: return error.errno
    return 0
def raw(): return fails(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
def chown(): return fails(lambda: os.chown(sys.argv[3], 1234, 1234))
def host(): return libc.sethostname(b"vm", 2) and ctypes.get_errno()
def ptrace(): return libc.ptrace(16, int(sys.argv[2]), 0, 0) and ctypes.get_errno()
print(globals()[sys.argv[1]]())
"""


@pytest.mark.parametrize(
    "deed, allowed", [("mount", True), ("host", True), ("raw", False), ("ptrace", False), ("chown", False)]
)
def test_it_allows_what_makes_a_box_and_nothing_else(deed, allowed, tmp_path):
    """As root, in namespaces where nothing but the profile is in the way. EACCES, or EPERM for want of a capability."""
    (tmp_path / "file").touch()
    other = subprocess.Popen(["sleep", "500"])
    try:
        words = ["python3", "-c", TRY, deed, str(other.pid), str(tmp_path / "file")]
        free = subprocess.run(["unshare", "--mount", "--uts", "--", *words], capture_output=True, text=True)
        assert free.stdout == "0\n", free  # the control
        words = ["unshare", "--mount", "--uts", "--", "aa-exec", "-p", LAUNCH, "--", *words]
        bound = subprocess.run(words, capture_output=True, text=True)
        assert bound.stdout in (("0\n",) if allowed else (f"{errno.EACCES}\n", f"{errno.EPERM}\n")), bound
    finally:
        other.kill()
        other.wait()
