"""What a sandboxed function can do to its host, in seven groups: nothing. Each attack succeeds outside, in a control.

Runs in a fresh clone after `make demo`: uv run pytest tests/security/ -v
"""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from pctx_sandbox import SandboxExecutionError, SandboxMemoryError, SandboxTimeoutError, sandbox

pytestmark = pytest.mark.usefixtures("broker")


def read(path):
    with open(path) as file:
        return file.read()


def listed(path):
    import os

    return os.listdir(path)


class TestCredentials:
    """SSH keys, AWS and GCP credentials."""

    FILES = (".ssh/id_rsa", ".aws/credentials", ".config/gcloud/application_default_credentials.json", ".netrc")

    @pytest.mark.parametrize("name", FILES)
    def test_a_planted_credential_cannot_be_read(self, tmp_path, monkeypatch, name):
        monkeypatch.setenv("HOME", str(tmp_path))
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("planted")
        assert read(str(path)) == "planted"
        with pytest.raises(FileNotFoundError):
            sandbox(read)(str(path))
        with pytest.raises(FileNotFoundError):
            sandbox(lambda: open(os.path.expanduser(f"~/{name}")).read())()

    def test_the_callers_home_is_not_there(self):
        home = os.path.expanduser("~")
        assert isinstance(listed(home), list)
        with pytest.raises(OSError):
            sandbox(listed)(home)

    def test_passwords_of_the_host_are_not_there(self):
        with pytest.raises(OSError):
            sandbox(read)("/etc/shadow")
        assert "root:x:0:0:root:/root" not in sandbox(read)("/etc/passwd")


class TestEnvironment:
    def test_a_planted_secret_is_not_in_the_environment(self, monkeypatch):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")

        def environment():
            import os

            return dict(os.environ)

        assert environment()["AWS_SECRET_ACCESS_KEY"] == "planted-secret"
        assert "planted-secret" not in str(sandbox(environment)())

    @pytest.mark.parametrize("process", ["self", "1"])
    def test_nor_in_that_of_any_process(self, process):
        def environ(process):
            try:
                with open(f"/proc/{process}/environ", "rb") as file:
                    return file.read()
            except OSError:
                return b""

        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"PLANTED": "secret"})
        try:
            deadline = time.monotonic() + 10
            while b"PLANTED" not in environ(child.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert b"PLANTED" in environ(child.pid)
            assert b"PLANTED" not in sandbox(environ)(process) + sandbox(environ)(child.pid)
        finally:
            child.kill()
            child.communicate()


class TestNetwork:
    def test_a_port_of_the_host_cannot_be_reached(self):
        def connect(port):
            import socket

            with socket.create_connection(("127.0.0.1", port), 3) as sock:
                return sock.recv(5)

        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
            assert connect(server.getsockname()[1]) == b"hello"
            with pytest.raises(OSError):
                sandbox(connect)(server.getsockname()[1])

    @pytest.mark.parametrize("address", ["169.254.169.254", "8.8.8.8", "10.0.0.1", "192.168.0.1"])
    def test_no_address_has_a_route(self, address):
        def connect(address):
            import socket

            with socket.socket() as sock:
                sock.settimeout(3)
                return sock.connect_ex((address, 80))

        assert sandbox(connect)(address) == 101  # ENETUNREACH

    def test_names_are_not_resolved(self):
        def resolve():
            import socket

            return socket.getaddrinfo("example.com", 443)

        with pytest.raises(SandboxExecutionError):
            sandbox(resolve)()


class TestProcesses:
    def test_processes_of_the_host_are_not_seen(self):
        def seen():
            import os

            return [int(name) for name in os.listdir("/proc") if name.isdigit()]

        assert os.getpid() in seen()
        assert len(sandbox(seen)()) == 2

    def test_nor_signalled(self):
        def signal_it(pid):
            import os

            os.kill(pid, 0)
            return True

        child = subprocess.Popen(["sleep", "60"])
        try:
            assert signal_it(child.pid)
            with pytest.raises(SandboxExecutionError):
                sandbox(signal_it)(child.pid)
            assert child.poll() is None
        finally:
            child.kill()
            child.wait()

    def test_what_a_call_starts_ends_with_it(self, broker):
        def leave():
            import subprocess

            subprocess.Popen(["sleep", "61.25"], start_new_session=True)

        def found():
            return subprocess.run(["pgrep", "-f", "sleep 61.25"], capture_output=True).stdout.split()

        control = subprocess.Popen(["sleep", "61.25"])
        assert len(found()) == 1
        control.kill()
        control.wait()
        sandbox(leave)()
        deadline = time.monotonic() + 10
        while found() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not found()


class TestPrivilege:
    """root, sudo, chown."""

    def test_it_is_not_root(self):
        def ids():
            import os

            return os.getresuid() + os.getresgid()

        assert 0 not in sandbox(ids)()

    @pytest.mark.parametrize("call", ["setuid", "setgid"])
    def test_nor_becomes_root(self, call):
        def become(call):
            import os

            getattr(os, call)(0)

        with pytest.raises(OSError):  # EINVAL: the box has no id 0 to begin with
            sandbox(become)(call)

    def test_nor_by_sudo_or_su(self):
        def raise_rights():
            import shutil
            import subprocess

            tried = []
            for command in (["sudo", "-n", "id", "-u"], ["su", "-c", "id -u"], ["pkexec", "id", "-u"]):
                if shutil.which(command[0]):
                    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                    tried.append((done.returncode, done.stdout))
            return tried

        assert all(code != 0 and out != "0\n" for code, out in sandbox(raise_rights)())

    def test_it_gives_no_file_away(self):
        def chown():
            import os

            open("/tmp/own", "w").close()
            os.chown("/tmp/own", 0, 0)

        with pytest.raises(OSError):
            sandbox(chown)()

    @pytest.mark.parametrize("path", ["/usr/bin/evil", "/etc/passwd", "/lib/evil.so", "/evil"])
    def test_it_writes_nothing_of_the_hosts(self, path):
        def write(path):
            with open(path, "a") as file:
                file.write("x")

        with pytest.raises(OSError):
            sandbox(write)(path)


class TestLimits:
    """Time and memory."""

    def test_an_endless_loop_ends(self):
        def loop(seconds):
            import time

            began = time.monotonic()
            while time.monotonic() - began < seconds:
                pass
            return "done"

        assert sandbox(timeout_sec=10)(loop)(0.1) == "done"
        with pytest.raises(SandboxTimeoutError):
            sandbox(timeout_sec=1)(loop)(10**6)

    def test_two_gigabytes_are_refused(self):
        def allocate(megabytes):
            return len(b"x" * (megabytes << 20))

        assert sandbox(memory_mb=256)(allocate)(16) == 16 << 20
        with pytest.raises((SandboxMemoryError, MemoryError)):
            sandbox(memory_mb=256)(allocate)(2048)

    def test_a_fork_bomb_harms_nobody(self):
        def bomb():
            import os

            while True:
                try:
                    os.fork()
                except OSError:
                    pass

        with pytest.raises((SandboxTimeoutError, SandboxExecutionError)):
            sandbox(timeout_sec=2, pids=32)(bomb)()
        assert sandbox(lambda: 1)() == 1


class TestKernel:
    """ptrace and mount."""

    CALLS = {
        "ptrace": (101, 16, 1, 0, 0),
        "mount": (165, b"none", b"/tmp", b"tmpfs", 0, None),
        "umount2": (166, b"/tmp", 0),
        "unshare": (272, 0x10000000),
        "bpf": (321, 0, None, 0),
        "kexec_load": (246, 0, 0, None, 0),
        "init_module": (175, None, 0, b""),
        "reboot": (169, 0, 0, 0, None),
        "process_vm_readv": (310, 1, None, 0, None, 0, 0),
        "keyctl": (250, 0, -3, 0, 0, 0),
        "io_uring_setup": (425, 1, None),
    }

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs the numbers of x86-64")
    @pytest.mark.parametrize("name", CALLS)
    def test_is_refused(self, name):
        def call(arguments):
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            return libc.syscall(*arguments), ctypes.get_errno()

        assert sandbox(call)(self.CALLS[name]) in ((-1, 1), (-1, 38))

    def test_control_a_call_that_is_allowed_works_the_same_way(self):
        def getpid():
            import ctypes
            import os

            return ctypes.CDLL(None).syscall(39) == os.getpid()

        assert sandbox(getpid)()


class TestResults:
    def test_a_result_that_would_run_code_runs_nothing(self, tmp_path):
        import pickle

        target = tmp_path / "ran"

        class Trap:
            def __reduce__(self):
                return os.system, (f"touch {target}",)

        pickle.loads(pickle.dumps(Trap()))
        assert target.exists()
        target.unlink()

        def trap(path):
            import os

            class Trap:
                def __reduce__(self):
                    return os.system, (f"touch {path}",)

            return Trap()

        with pytest.raises(Exception, match="not data"):
            sandbox(trap)(str(target))
        assert not target.exists()
