"""Guests of the Podman backend against its own seams: the Broker's socket and the way to the relay inside, and copies
of lent folders that the host brings back. What a guest finds that has left its box is the control."""

import os
import shutil
import stat
import subprocess
import sys

import podman_host
import pytest
from pctx_sandbox import SandboxError, sandbox
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed

BACKENDS = ("podman",)
if podman_host.trouble():
    pytest.skip(f"needs {podman_host.trouble()}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("each_backend")

# Looks for sockets by every way that a file has a name, and tries to talk to each.
SEARCH = """
import ctypes, glob, json, os, socket, stat, sys

def talk(path):
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as sock:
            sock.settimeout(5)
            try:
                sock.connect(path)
                sock.send(b'{"status": {}}')
                return sock.recv(1 << 16)[:20].decode("utf-8", "replace")
            except OSError:
                continue
    return None

def search():
    found, seen = {}, set()
    tops = ["/"] + glob.glob("/proc/[0-9]*/root") + glob.glob("/proc/[0-9]*/cwd")
    for top in tops:
        for folder, folders, names in os.walk(top):
            depth = folder[len(top):].count("/")
            folders[:] = [n for n in folders if depth < 5 and n not in ("proc", "usr", "sys", "lib", "lib64", "bin")]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        found[path] = talk(path)
                except OSError:
                    continue
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        words = line.split()
        if len(words) > 7:
            found["net " + words[7]] = talk(words[7].replace("@", chr(0), 1))
    # Descriptors of others, and their memory: by /proc, by pidfd and by ptrace.
    libc = ctypes.CDLL(None, use_errno=True)
    taken = []
    for entry in glob.glob("/proc/[0-9]*"):
        pid = int(entry[6:])
        if pid == os.getpid():
            continue
        try:
            taken += [entry + "/fd/" + fd for fd in os.listdir(entry + "/fd")]
        except OSError:
            pass
        pidfd = libc.syscall(434, pid, 0)
        if pidfd >= 0:
            taken += [f"pidfd {pid} {n}" for n in range(32) if libc.syscall(438, pidfd, n, 0) >= 0]
        if libc.syscall(101, 16, pid, 0, 0) == 0:
            taken.append(f"ptrace {pid}")
    return {"sockets": found, "taken": taken}
"""


def test_a_guest_finds_no_socket_and_no_descriptor_of_the_brokers():
    """The control: whoever is in the container, outside of a box, finds the Broker's socket with the same search."""

    @sandbox(timeout_sec=120)
    def guest(code):
        scope = {}
        exec(code, scope)
        return scope["search"]()

    inside = guest(SEARCH)
    assert inside == {"sockets": {}, "taken": []}
    name = os.environ["PCTX_SANDBOX_CONTAINER"]
    command = ["podman", "exec", name, "/usr/bin/python3", "-c", SEARCH + "\nprint(json.dumps(search()['sockets']))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "broker-" in done.stdout and "memory_budget" in done.stdout, done.stderr


def test_a_forged_answer_is_data_or_an_error():
    """A guest writes to whatever descriptor it has, in place of the answer and after it."""

    @sandbox(timeout_sec=60)
    def forge(what, then_answer):
        import os
        import stat

        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, what)
            except OSError:
                continue
        if not then_answer:
            os._exit(0)
        return "answer"

    pickled = b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x06touch x\x85R."
    for what in (b"\0" * 64, b'{"ended": {}}', pickled, b"\xff" * 4096, (1 << 40).to_bytes(8, "little") * 8):
        for then_answer in (True, False):
            with pytest.raises(SandboxError):
                forge(what, then_answer)
    assert sandbox(lambda: 1)() == 1


# --- copies -----------------------------------------------------------------------------------------------------------

TRAPS = """
import os, socket, stat
os.chdir("/mnt")
os.symlink(target, "link")
os.symlink("/", "folder-link")
os.mkfifo("fifo")
with socket.socket(socket.AF_UNIX) as sock:
    sock.bind("socket")
open("set-id", "w").close()
try:
    os.chmod("set-id", 0o6755)
except OSError:
    pass
open("twice", "w").close()
os.link("twice", "twice-again")
try:
    os.mknod("device", stat.S_IFBLK | 0o600, os.makedev(8, 0))
except OSError:
    pass
os.unlink("file")
os.symlink(target, "file")
os.rename("folder", "moved")
os.symlink(outside, "folder")
open("plain", "w").write("comes back")
os.mkdir("closed")
open("closed/in", "w").close()
os.chmod("closed", 0)
"""


@pytest.fixture
def lent(tmp_path):
    """A folder to lend, beside one that is not."""
    tmp_path.chmod(0o755)
    for name in ("lent", "lent/folder", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "lent/file").write_text("the host's")
    (tmp_path / "lent/folder/inner").write_text("the host's")
    (tmp_path / "outside/inner").write_text("not lent")
    (tmp_path / "target").write_text("not lent")
    return tmp_path / "lent"


def check_the_host(lent):
    outside = lent.parent
    assert (outside / "target").read_text() == "not lent" and (outside / "outside/inner").read_text() == "not lent"
    assert sorted(path.name for path in (outside / "outside").iterdir()) == ["inner"]
    for path in lent.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), path
        assert not mode & (stat.S_ISUID | stat.S_ISGID), path
        assert path.lstat().st_uid == os.geteuid(), path


def test_only_plain_files_come_back_from_a_call(lent):
    @sandbox(mnt_dir=lent, timeout_sec=120)
    def trap(code, target, outside):
        exec(code, {"target": target, "outside": outside})
        return True

    for _ in range(2):  # the second call finds a place that the first one has tried to spoil
        assert trap(TRAPS, str(lent.parent / "target"), str(lent.parent / "outside"))
        check_the_host(lent)
        assert (lent / "plain").read_text() == "comes back"
        shutil.rmtree(lent / "moved")
        for name in ("plain", "set-id", "twice", "twice-again"):
            (lent / name).unlink(missing_ok=True)
        shutil.rmtree(lent / "closed", ignore_errors=True)
        (lent / "file").write_text("the host's")
        (lent / "folder").mkdir(exist_ok=True)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_only_plain_files_come_back_from_a_script(lent, tmp_path_factory, warm):
    venv = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    conf = SandboxConfig(venv_path=venv, enable_network=False)
    head = f"target, outside = {str(lent.parent / 'target')!r}, {str(lent.parent / 'outside')!r}\n"
    result, changed = run_sandboxed(conf, head + TRAPS, mnt_dir=lent, timeout=120, warm=warm)
    assert result.returncode == 0, result.stderr
    check_the_host(lent)
    assert "plain" in changed and {"link", "fifo", "socket"} <= {each.path for each in result.files.skipped}


def test_a_folder_too_deep_to_name_neither_comes_back_nor_stays(lent):
    @sandbox(mnt_dir=lent, timeout_sec=120, inodes=20000)
    def dig(depth):
        import contextlib
        import os

        os.chdir("/mnt")
        for _ in range(depth):
            with contextlib.suppress(FileExistsError):  # what has come back from the call before
                os.mkdir("d" * 100)
            os.chdir("d" * 100)
        return True

    for _ in range(2):
        assert dig(300)  # 30,000 bytes: no system call takes such a path
        assert (lent / "file").read_text() == "the host's"


def test_what_a_call_leaves_running_does_not_write_into_the_next_ones_copy(lent):
    """A child outlives the answer for as long as it takes to kill it, and writes all the while."""

    @sandbox(mnt_dir=lent, timeout_sec=120)
    def leave(malformed):
        import contextlib
        import os
        import stat

        if os.fork() == 0:
            os.setsid()
            while True:
                with contextlib.suppress(OSError):
                    open("/mnt/leak", "w").close()
        while not os.path.exists("/mnt/leak"):
            pass
        if malformed:
            for fd in map(int, os.listdir("/proc/self/fd")):
                try:
                    if stat.S_ISSOCK(os.fstat(fd).st_mode):
                        os.write(fd, b"\xff" * 64)
                except OSError:
                    continue
        return True

    @sandbox(mnt_dir=lent, timeout_sec=120)
    def look():
        import os
        import time

        seen, end = 0, time.monotonic() + 0.1
        while time.monotonic() < end:
            seen += os.path.exists("/mnt/leak")
        return seen

    for number in range(12):
        if number % 3 == 2:
            with pytest.raises(SandboxError):
                leave(True)
        else:
            assert leave(False)
        (lent / "leak").unlink(missing_ok=True)
        assert look() == 0
        assert not (lent / "leak").exists()
