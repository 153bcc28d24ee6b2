"""What `@sandbox` promises, in the seven groups of its README: each attack in a Worker, and as a control outside.

The attacks are plain functions. `attacked(f, ...)` calls one in a box; the control calls the same function here, where
it must succeed, or the test proves nothing. Every group runs over every backend.
"""

import ast
import builtins
import contextlib
import errno
import inspect
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from pctx_sandbox import SandboxExecutionError, SandboxMemoryError, SandboxTimeoutError, sandbox

SECRET = "planted-by-the-test"
# A box knows one uid. The kernel says that there is no other before it asks for the right to take it.
NO_SUCH_ID = (errno.EPERM, errno.EINVAL)
CREDENTIALS = {
    "ssh": ".ssh/id_ed25519",
    "aws": ".aws/credentials",
    "gcp": ".config/gcloud/application_default_credentials.json",
}

pytestmark = pytest.mark.usefixtures("each_backend")


def attacked(attack, *args, **settings):
    return sandbox(**settings)(attack)(*args)


def read(path):
    with open(path) as file:
        return file.read()


def call(name, *numbers):
    """A system call by way of libc: what it returned, and errno. Texts are paths or file system names."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    words = [word.encode() if isinstance(word, str) else ctypes.c_long(word) for word in numbers]
    return getattr(libc, name)(*words), ctypes.get_errno()


class TestFilesystemIsolation:
    @pytest.fixture
    def home(self, open_place, monkeypatch):
        """A home of the host, with credentials that every uid may read: only the box stands in between."""
        for path in CREDENTIALS.values():
            file = open_place / path
            file.parent.mkdir(parents=True)
            file.write_text(SECRET)
        monkeypatch.setenv("HOME", str(open_place))
        return open_place

    @pytest.mark.parametrize("kind", CREDENTIALS)
    def test_credentials_are_not_there(self, home, kind):
        path = str(home / CREDENTIALS[kind])
        assert read(path) == SECRET
        with pytest.raises(FileNotFoundError):
            attacked(read, path)

    @pytest.mark.parametrize("kind", CREDENTIALS)
    def test_credentials_are_not_in_the_guests_own_home(self, home, kind):
        def find(path):
            return os.path.exists(os.path.expanduser(f"~/{path}"))

        assert find(CREDENTIALS[kind])
        assert attacked(find, CREDENTIALS[kind]) is False

    def test_password_hashes_are_not_there(self):
        assert os.path.exists("/etc/shadow")
        with pytest.raises(FileNotFoundError):
            attacked(read, "/etc/shadow")

    def test_system_files_cannot_be_changed(self):
        def write():
            with open("/usr/bin/planted", "w"):
                pass

        with pytest.raises(OSError) as caught:
            attacked(write)
        assert caught.value.errno in (errno.EROFS, errno.EACCES)
        assert not os.path.exists("/usr/bin/planted")

    def test_what_a_call_writes_stays_in_its_box(self):
        def write(path):
            Path(path).write_text("left behind")
            return os.path.exists(path)

        path = f"/tmp/pctx-planted-{os.getpid()}"
        assert attacked(write, path)
        assert not os.path.exists(path)
        assert attacked(os.path.exists, path) is False


class TestEnvironmentIsolation:
    def test_variables_of_the_host_are_not_there(self, monkeypatch):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

        def look():
            return SECRET in str(dict(os.environ))

        assert look()
        assert attacked(look) is False

    def test_they_are_not_in_proc_either(self, monkeypatch):
        def look():
            found = []
            for name in os.listdir("/proc"):
                if name.isdigit():
                    try:
                        found.append(Path(f"/proc/{name}/environ").read_bytes())
                    except OSError:
                        continue
            return b"\0".join(found)

        code = f"{inspect.getsource(look).strip()}\n".replace("\n        ", "\n")
        seen = subprocess.run(
            ["python3", "-c", f"import os, sys\nfrom pathlib import Path\n{code}\nsys.stdout.buffer.write(look())"],
            env={"PATH": os.environ["PATH"], "PLANTED": SECRET},
            capture_output=True,
        )
        assert SECRET.encode() in seen.stdout, seen.stderr
        monkeypatch.setenv("PLANTED", SECRET)
        assert SECRET.encode() not in attacked(look)


class TestNetworkIsolation:
    @pytest.fixture
    def port(self):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve():
                try:
                    while True:
                        server.accept()[0].close()
                except OSError:
                    pass

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            yield server.getsockname()[1]
            server.shutdown(socket.SHUT_RDWR)
            thread.join()

    def test_a_port_of_the_host_cannot_be_reached(self, port):
        def connect(port):
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return "connected"

        assert connect(port) == "connected"
        with pytest.raises(ConnectionRefusedError):
            attacked(connect, port)

    def test_nothing_outside_can_be_reached(self):
        def send():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                return sock.sendto(b"x", ("192.0.2.1", 9))

        with pytest.raises(OSError) as caught:
            attacked(send)
        assert caught.value.errno == errno.ENETUNREACH

    def test_names_do_not_resolve(self):
        def resolve():
            return socket.getaddrinfo("example.com", 80)

        with pytest.raises(SandboxExecutionError) as caught:
            attacked(resolve)
        assert caught.value.error_type == "socket.gaierror"

    def test_the_network_is_not_opened_by_asking(self):
        with pytest.raises(TypeError, match="allow_network"):
            attacked(len, "x", allow_network=True)
        with pytest.raises(ValueError, match="allow_network"):
            attacked(len, "x", allow_network=["http://example.com/"])


class TestProcessIsolation:
    def test_processes_of_the_host_are_not_seen(self):
        def processes():
            return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())

        assert os.getpid() in processes()
        seen = attacked(processes)
        assert len(seen) == 2 and seen[0] == 1

    def test_processes_of_the_host_cannot_be_signalled(self):
        def end(pid):
            os.kill(pid, 9)

        with subprocess.Popen(["sleep", "600"]) as victim:
            with pytest.raises(ProcessLookupError):
                attacked(end, victim.pid)
            assert victim.poll() is None
            end(victim.pid)
            assert victim.wait(timeout=10) == -9

    def test_two_calls_do_not_share_a_process(self):
        def leave():
            before = getattr(builtins, "left", None)
            builtins.left = "behind"
            return before

        assert (leave(), leave()) == (None, "behind")
        del builtins.left
        boxed = sandbox(leave)
        assert (boxed(), boxed()) == (None, None)


class TestPrivilegeIsolation:
    def test_the_guest_is_not_root_and_cannot_become_it(self):
        def become_root():
            before = os.getuid()
            os.setuid(0)
            return before

        def who():
            return os.getresuid()

        assert 0 not in attacked(who)
        with pytest.raises(OSError) as caught:
            attacked(become_root)
        assert caught.value.errno in NO_SUCH_ID

    def test_sudo_does_nothing(self):
        def run_sudo():
            return subprocess.run(["sudo", "-n", "id", "-u"], capture_output=True, text=True).stdout.strip()

        with contextlib.suppress(FileNotFoundError):  # usually it is not even there
            assert attacked(run_sudo) != "0"

    def test_owners_cannot_be_changed(self):
        def change_owner():
            with open("/tmp/own", "w"):
                pass
            os.chown("/tmp/own", 0, 0)

        with pytest.raises(OSError) as caught:
            attacked(change_owner)
        assert caught.value.errno in NO_SUCH_ID

    def test_no_capability_and_no_way_to_one(self):
        def rights():
            status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
            return {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")}

        seen = attacked(rights)
        assert seen.pop("NoNewPrivs") == "1"
        assert set(seen.values()) == {"0000000000000000"}


class TestResourceLimits:
    def test_time_is_limited(self):
        def loop():
            while True:
                pass

        with pytest.raises(SandboxTimeoutError, match="timeout_sec=1"):
            attacked(loop, timeout_sec=1)

    def test_memory_is_limited(self):
        def take(size):
            memory = bytearray(size)
            memory[::4096] = b"x" * len(memory[::4096])
            return len(memory)

        assert attacked(take, 64 << 20, memory_mb=512) == 64 << 20
        with pytest.raises(SandboxMemoryError):
            attacked(take, 1 << 30, memory_mb=512)

    def test_processes_are_limited(self):
        def fork(count):
            for made in range(count):
                try:
                    if os.fork() == 0:
                        import time

                        time.sleep(60)
                        os._exit(0)
                except OSError as error:
                    return made, error.errno
            return count, 0

        assert attacked(fork, 4, pids=32) == (4, 0)
        made, code = attacked(fork, 200, pids=32)
        assert made < 32 and code == errno.EAGAIN

    def test_disk_is_limited(self):
        def fill(size):
            with open("/tmp/large", "wb") as file:
                file.write(bytes(size))

        attacked(fill, 4 << 20, disk_mb=16)
        with pytest.raises(OSError) as caught:
            attacked(fill, 64 << 20, disk_mb=16)
        assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)


class TestSyscallFiltering:
    def outside(self, outside, prefix, *arguments):
        """The same system call in a process with all rights over namespaces of its own."""
        code = f"{inspect.getsource(call)}\nprint(call{arguments!r})"
        return ast.literal_eval(outside([*prefix, "/usr/bin/python3", "-c", code]).stdout)

    def test_ptrace_is_refused(self, outside, powers):
        trace_me = ("ptrace", 0, 0, 0, 0)
        assert self.outside(outside, powers, *trace_me)[0] == 0
        assert attacked(call, *trace_me) == (-1, errno.EPERM)

    def test_mount_is_refused(self, outside, powers):
        mount = ("mount", "none", "/mnt", "tmpfs", 0, 0)
        assert self.outside(outside, powers, *mount)[0] == 0
        assert attacked(call, *mount) == (-1, errno.EPERM)

    @pytest.mark.parametrize("kind", ["CLONE_NEWUSER", "CLONE_NEWNS", "CLONE_NEWNET"])
    def test_new_namespaces_are_refused(self, outside, powers, kind):
        number = {"CLONE_NEWUSER": 0x10000000, "CLONE_NEWNS": 0x00020000, "CLONE_NEWNET": 0x40000000}[kind]
        assert self.outside(outside, powers, "unshare", number)[0] == 0
        assert attacked(call, "unshare", number) == (-1, errno.EPERM)
