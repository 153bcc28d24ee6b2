"""Nothing passes from one sandboxed call to another, and what a Worker sees of itself is its box alone.

Each claim about calls is held against a control: the same function twice in one process, where it does pass.
"""

import collections
import inspect
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from pctx_sandbox import _broker, sandbox

pytestmark = pytest.mark.usefixtures("broker")


@sandbox
def leave_and_look():
    """Reports what an earlier call left, then leaves the same things for the next one."""
    import builtins
    import ctypes
    import os
    import pathlib
    import socket
    import subprocess
    import sys
    import tempfile
    import time

    found = []
    if hasattr(builtins, "left_global"):
        found.append("global")
    builtins.left_global = True
    if "left_module" in sys.modules:
        found.append("module")
    sys.modules["left_module"] = sys
    if "LEFT_VARIABLE" in os.environ:
        found.append("environment")
    os.environ["LEFT_VARIABLE"] = "1"
    for folder in (tempfile.gettempdir(), "/dev/shm", os.environ["HOME"]):
        file = pathlib.Path(folder, "left")
        if file.exists():
            found.append(f"file in {folder}")
        file.write_text("left")
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0x5EED, 4096, 0o666)
    if segment >= 0:
        found.append("SysV shared memory")
    libc.shmget(0x5EED, 4096, 0o1666)
    queue = libc.mq_open(b"/left", os.O_RDWR)
    if queue >= 0:
        found.append("POSIX message queue")
    libc.mq_open(b"/left", os.O_RDWR | os.O_CREAT, 0o666, None)
    abstract = socket.socket(socket.AF_UNIX)
    try:
        abstract.connect("\0left")
        found.append("abstract socket")
    except OSError:
        pass
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind("\0left")
        listener.listen()
    except OSError:
        pass
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pathlib.Path("/proc", pid, "comm").read_text() == "sleep\n":
                found.append("process")
        except OSError:
            pass
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    time.sleep(0.1)  # until it has its name
    builtins.left_listener = listener
    return found


def test_nothing_of_one_call_is_found_by_the_next():
    assert [leave_and_look() for _ in range(4)] == [[], [], [], []]


def test_control_the_same_in_one_process_is_found():
    here = leave_and_look.__wrapped__
    code = f"import inspect\n{_source(here)}\nleave_and_look(); print(sorted(leave_and_look()))"
    env = {"HOME": "/tmp", "PATH": os.environ.get("PATH", "/usr/bin"), "TMPDIR": "/tmp"}
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--net"]
    own_tmp = 'mount -t tmpfs none /tmp && mount -t tmpfs none /dev/shm && exec "$@"'
    python = os.path.realpath(sys.executable)  # the environment's own may lie below the /tmp that is covered
    done = subprocess.run(
        [*command, "sh", "-c", own_tmp, "sh", python, "-c", code], env=env, capture_output=True, text=True
    )
    if "unshare" in done.stderr:
        pytest.skip(f"needs util-linux's unshare for the control: {done.stderr}")
    for word in ("global", "module", "environment", "file in /tmp", "file in /dev/shm", "SysV", "abstract", "process"):
        assert word in done.stdout, (word, done.stdout, done.stderr)


def _source(function):
    import inspect
    import textwrap

    return textwrap.dedent(inspect.getsource(function)).partition("@sandbox\n")[2]


@sandbox
def random_state():
    import os
    import random
    import secrets
    import ssl
    import tempfile
    import uuid

    return {
        "ssl": ssl.RAND_bytes(16).hex(),
        "tempfile": os.path.basename(tempfile.mktemp()),
        "uuid4": uuid.uuid4().hex,
        "random": random.random(),
        "secrets": secrets.token_hex(16),
        "urandom": os.urandom(16).hex(),
        "pid": os.getpid(),
    }


def test_randomness_never_repeats_over_100_workers():
    states = [random_state() for _ in range(100)]
    for source in ("ssl", "tempfile", "uuid4", "random", "secrets", "urandom"):
        repeated = [value for value, times in collections.Counter(s[source] for s in states).items() if times > 1]
        assert not repeated, f"{source} repeated: {repeated}"


def test_control_a_plain_fork_repeats_its_random_numbers():
    code = (
        "import ctypes, os, random\nlibc = ctypes.CDLL(None)\nr, w = os.pipe()\nrandom.random()\n"
        "for _ in range(2):\n"
        "    if libc.fork() == 0:\n        os.write(w, repr(random.random()).encode() + b' '); os._exit(0)\n"
        "    os.wait()\n"
        "a, b = os.read(r, 100).split()\nprint(a == b)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "True", done.stderr


@sandbox
def look_around():
    import ctypes
    import os
    import resource
    import stat

    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    libc = ctypes.CDLL(None, use_errno=True)

    def answer(name, *arguments):
        ctypes.set_errno(0)
        return getattr(libc, name)(*arguments), ctypes.get_errno()

    null = ctypes.c_void_p
    own = os.open("/proc/self/ns/user", os.O_RDONLY)
    calls = {
        "setns": answer("setns", own, 0),
        "setns user": answer("setns", own, 0x10000000),
        "unshare user": answer("unshare", 0x10000000),
        "unshare mount": answer("unshare", 0x00020000),
        "mount": answer("mount", b"none", b"/tmp", b"tmpfs", 0, null()),
        "umount": answer("umount2", b"/tmp", 2),
        "chroot": answer("chroot", b"/tmp"),
        "pidfd_open": answer("syscall", 434, 1, 0),
        "ptrace": answer("ptrace", 16, 1, 0, 0),
        "process_vm_readv": answer("process_vm_readv", 1, null(), 0, null(), 0, 0),
        "kcmp": answer("syscall", 312, os.getpid(), 1, 1, 0, 0),
        "bpf": answer("syscall", 321, 0, null(), 0),
        "io_uring_setup": answer("syscall", 425, 1, null()),
        "keyctl": answer("syscall", 250, 0, -3, 0, 0, 0),
        "userfaultfd": answer("syscall", 323, 0),
        "perf_event_open": answer("syscall", 298, null(), 0, -1, -1, 0),
        "setuid": answer("setuid", 0),
        "sethostname": answer("sethostname", b"x", 1),
        "kill init": answer("kill", 1, 9),
        "clone user": answer("syscall", 56, 0x10000000 | 17, 0, 0, 0, 0),
        "clone3": answer("syscall", 435, null(), 0),
    }
    os.close(own)
    descriptors = {}
    for number in range(256):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue
        descriptors[number] = stat.S_IFMT(mode)
    return {
        "status": status,
        "calls": calls,
        "descriptors": descriptors,
        "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "pid": os.getpid(),
        "uid": (os.getuid(), os.getgid(), os.getgroups()),
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
        "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line],
        "routes": open("/proc/net/route").read().count("\n") - 1,
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "threads": os.listdir("/proc/self/task"),
    }


@pytest.fixture(scope="module")
def seen():
    return look_around()


def test_no_capability_in_any_set(seen):
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(seen["status"][name], 16) == 0, name


def test_no_new_privs_and_a_filter(seen):
    assert seen["status"]["NoNewPrivs"] == "1"
    assert seen["status"]["Seccomp"] == "2"


def test_every_namespace_is_its_own(seen):
    for name in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        assert seen["namespaces"][name] != os.readlink(f"/proc/self/ns/{name}"), name


def test_two_workers_share_no_namespace(seen):
    other = look_around()["namespaces"]
    for name in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        assert seen["namespaces"][name] != other[name], name


def test_the_host_sees_an_unprivileged_uid_and_the_guest_no_root(seen):
    uid, gid, groups = seen["uid"]
    assert uid != 0 and gid != 0 and 0 not in groups
    assert os.getuid() != 0 or seen["status"]["Uid"].split()[0] != "0"


def test_only_its_own_descriptors(seen):
    kinds = {0: 0o020000, 1: 0o010000, 2: 0o010000, 3: 0o140000}
    assert seen["descriptors"] == kinds


def test_proc_shows_init_and_itself_alone(seen):
    assert seen["pids"] == [1, seen["pid"]]
    assert seen["pid"] > 2 and len(seen["threads"]) == 1


def test_no_network_but_an_own_loopback(seen):
    assert seen["interfaces"] == ["lo"] and seen["routes"] == 0


def test_nothing_of_the_callers_environment(seen, monkeypatch):
    monkeypatch.setenv("PLANTED_SECRET", "planted")
    environment = look_around()["environment"]
    assert "PLANTED_SECRET" not in environment and "planted" not in environment.values()
    assert not {name for name in environment if name.startswith(("PCTX_", "UV_", "PIP_", "SSH_", "AWS_"))}


def test_rights_of_a_native_attacker_are_refused(seen):
    for name, (value, error) in seen["calls"].items():
        assert value == -1 and error in (1, 38, 22, 3), (name, value, error)


def test_the_way_into_boxes_is_closed(seen):
    # A Worker is bound by its Zygote's filter, which lets setns through: what refuses it is that it has no right.
    assert seen["calls"]["setns user"][0] == -1
    assert seen["calls"]["unshare user"] == (-1, 1)
    assert seen["calls"]["mount"] == (-1, 1)
    assert seen["calls"]["pidfd_open"] == (-1, 38)


@sandbox
def read_files(paths):
    found = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                found[path] = file.read(64)
        except OSError as error:
            found[path] = error.errno
    return found


def test_host_files_are_not_there(secret):
    paths = [str(secret), "/etc/shadow", "/proc/1/environ", os.path.expanduser("~/.profile"), __file__]
    assert secret.read_bytes()
    found = read_files(paths)
    assert all(isinstance(answer, int) for answer in found.values()), found


def test_the_callers_loopback_cannot_be_reached():
    @sandbox
    def connect(port):
        import socket

        with socket.socket() as sock:
            sock.settimeout(3)
            return sock.connect_ex(("127.0.0.1", port))

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connect.__wrapped__(port) == 0
        assert connect(port) == 111


def test_abstract_sockets_of_the_host_cannot_be_reached():
    @sandbox
    def connect(name):
        import socket

        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(name)

    name = f"\0pctx-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert connect.__wrapped__(name) == 0
        assert connect(name) == 111


def test_a_working_folder_that_can_be_written():
    @sandbox
    def write():
        import os

        with open("relative.txt", "w") as file:
            file.write("x")
        return os.getcwd() == os.environ["HOME"]

    assert write()


def leave_a_writer(folder):
    """A child that writes as long as it lives; returns once it has begun."""
    import os

    if os.fork() == 0:
        number = 0
        while True:
            number += 1
            fd = os.open(f"{folder}/count", os.O_WRONLY | os.O_CREAT, 0o666)
            os.pwrite(fd, b"%20d" % number, 0)
            os.close(fd)
    while not os.path.exists(f"{folder}/count"):
        pass


def test_nothing_writes_to_a_lent_folder_once_the_call_has_returned(tmp_path):
    """Whoever has lent it looks into it next. The control: outside the writer goes on."""

    def changes(seconds):
        before = (tmp_path / "count").read_bytes()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (tmp_path / "count").read_bytes() != before:
                return True
        return False

    tmp_path.chmod(0o777)
    code = f"import os\n{inspect.getsource(leave_a_writer)}\nleave_a_writer({str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as outside:
        outside.wait(60)
        assert changes(60)
        os.killpg(outside.pid, signal.SIGKILL)
    call = sandbox(mnt_dir=tmp_path)(leave_a_writer)
    for _ in range(20):
        (tmp_path / "count").unlink()
        call("/mnt")
        assert not changes(0.05)


def test_a_call_cannot_take_back_what_it_printed(capfd):
    """Its caller would find nothing, and wait. The control: it may write there by name."""

    @sandbox
    def tries():
        import os

        def taken(fd):
            try:
                return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
            except OSError as error:
                return error.errno

        with open("/proc/self/fd/1", "w") as again:
            again.write("by name")
        return [taken(fd) for fd in (1, 2)]

    assert tries() == [13, 13]
    assert capfd.readouterr().out == "by name"


def test_a_caller_never_waits_in_a_read_of_what_a_call_printed():
    """A call with the caller's uid owns its pipes, and can take back what the caller was told to be there."""
    blocking = []
    watch = _broker.Lease.watch

    def look(lease, fd):
        blocking.extend(os.get_blocking(end) for end in (lease.out_fd, lease.err_fd))
        return watch(lease, fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_broker.Lease, "watch", look)
        sandbox(lambda: None)()
    assert blocking == [False, False]
