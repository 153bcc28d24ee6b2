"""Processes, IPC and networks of the host and of other boxes are out of reach."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading

import pytest


@pytest.fixture
def sleeper():
    """A process of the host, the caller's own, that a guest would like to see and end."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_guest_sees_only_its_own_processes(inside, outside, sleeper):
    code = "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()), os.getpid(), os.getppid())"
    assert inside(code).stdout == "[1, 2] 2 1\n"
    assert str(sleeper.pid) in outside(code).stdout


def test_guest_cannot_signal_host_processes(inside, sleeper):
    code = (
        "import errno, os, signal\n"
        f"for pid in ({sleeper.pid}, {os.getpid()}, -{os.getpgrp()}):\n"
        "    try: os.kill(pid, signal.SIGKILL); print('sent', pid)\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        f"try: os.pidfd_open({sleeper.pid}); print('opened')\n"
        "except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    assert set(inside(code).stdout.split()) <= {"ESRCH", "EPERM"}
    assert sleeper.poll() is None
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait(5) == -signal.SIGTERM


def test_guest_ending_everything_it_can_ends_only_its_box(inside, sleeper):
    ended = inside(
        "import os, signal, subprocess\nsubprocess.Popen(['sleep', '50'])\nos.kill(-1, signal.SIGKILL)\nprint('alone')"
    )
    assert ended.kind == "exited" and sleeper.poll() is None


def test_guest_cannot_trace_even_its_own_children(inside):
    code = (
        "import ctypes, os, time; libc = ctypes.CDLL(None, use_errno=True)\n"
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(5); os._exit(0)\n"
        "print(libc.ptrace(16, pid, 0, 0), ctypes.get_errno()); os.kill(pid, 9); os.wait()\n"
    )
    ended = inside(code)
    assert ended.stdout == "-1 1\n" and ended.denied("ptrace")


def test_sysv_memory_of_the_host_is_not_there(inside, outside):
    if not shutil.which("ipcmk") or not shutil.which("ipcrm"):
        pytest.skip("needs util-linux's ipcmk and ipcrm")
    identifier = outside(["ipcmk", "-M", "4096", "-p", "0666"]).stdout.split()[-1]
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.shmat.restype = ctypes.c_long\n"
        f"print(libc.shmat({identifier}, None, 0) != -1, ctypes.get_errno())\n"
    )
    try:
        assert inside(code).stdout.split()[0] == "False"
        assert outside(code).stdout.split()[0] == "True"
    finally:
        outside(["ipcrm", "-m", identifier])


def test_posix_shared_memory_is_per_box(inside, outside):
    name = f"pctx-{os.urandom(6).hex()}"
    code = f"import os; print(os.path.exists('/dev/shm/{name}'), os.listdir('/dev/shm'))"
    path = f"/dev/shm/{name}"
    with open(path, "w"):
        pass
    try:
        assert inside(code).stdout == "False []\n"
        assert outside(code).stdout.startswith("True")
    finally:
        os.unlink(path)


@contextlib.contextmanager
def serving(family, address):
    """A service of the host that answers every connection with `hello`."""
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"hello")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


CONNECT = (
    "import errno, socket\n"
    "s = socket.socket({family}); s.settimeout(3)\n"
    "try: s.connect({address!r}); print(s.recv(9).decode())\n"
    "except OSError as error: print(errno.errorcode.get(error.errno, error))\n"
)


def test_guest_cannot_reach_host_loopback(inside, outside):
    with serving(socket.AF_INET, ("127.0.0.1", 0)) as address:
        code = CONNECT.format(family="socket.AF_INET", address=address)
        assert inside(code).stdout == "ECONNREFUSED\n"
        assert outside(code).stdout == "hello\n"
        assert inside(code, "--network", "host", "-q").stdout == "hello\n"


def test_guest_cannot_reach_abstract_sockets(inside, outside):
    address = f"\0pctx-{os.urandom(6).hex()}"
    with serving(socket.AF_UNIX, address):
        code = CONNECT.format(family="socket.AF_UNIX", address=address)
        assert inside(code).stdout == "ECONNREFUSED\n"
        assert outside(code).stdout == "hello\n"
        # The network namespace is shared here: Landlock's scope is what holds, where the kernel has it.
        ended = inside(code, "--network", "host", "-q")
        landlock = ended.receipt["layers"]["landlock"]
        if landlock["on"] and int(landlock["detail"].removeprefix("ABI ")) >= 6:
            assert ended.stdout == "EPERM\n"


def test_guest_cannot_reach_path_sockets(inside, outside, tmp_path):
    address = str(tmp_path / "service.sock")
    with serving(socket.AF_UNIX, address):
        code = CONNECT.format(family="socket.AF_UNIX", address=address)
        assert inside(code).stdout == "ENOENT\n"
        assert outside(code).stdout == "hello\n"


def test_network_is_an_own_loopback_and_nothing_else(inside):
    code = (
        "import errno, socket\n"
        "print([line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]])\n"
        "print(len(open('/proc/net/route').readlines()))\n"
        "for address in ('192.0.2.1', '169.254.169.254', '10.0.0.1', '8.8.8.8'):\n"
        "    s = socket.socket(); s.settimeout(2)\n"
        "    try: s.connect((address, 80)); print('REACHED')\n"
        "    except OSError as error: print(errno.errorcode.get(error.errno, error))\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname()); client.close(); print('own loopback works')\n"
    )
    lines = inside(code).stdout.splitlines()
    assert lines[0] == "['lo']" and lines[1] == "1"
    assert lines[2:6] == ["ENETUNREACH"] * 4 and lines[6] == "own loopback works"


def test_names_do_not_resolve(inside):
    code = "import socket\ntry: print(socket.getaddrinfo('example.com', 80))\nexcept socket.gaierror: print('no')"
    assert inside(code).stdout == "no\n"


@pytest.mark.parametrize("kind", ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"])
def test_namespace_is_not_the_hosts(inside, kind):
    code = f"import os; print(os.readlink('/proc/self/ns/{kind}'))"
    first, second = inside(code).stdout, inside(code).stdout
    assert first.startswith(f"{kind}:[") and os.readlink(f"/proc/self/ns/{kind}") + "\n" not in (first, second)


def test_cgroup_paths_of_the_host_are_hidden(inside):
    lines = inside("print(open('/proc/self/cgroup').read())").stdout.split()
    assert lines and all(line.endswith(":/") for line in lines)


def test_two_boxes_at_a_time_do_not_see_each_other(sandbox_bin, inside):
    busy = subprocess.Popen(
        [sandbox_bin, "run", "-q", "--", "sh", "-c", "echo x > /tmp/mine; echo up; sleep 20"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert busy.stdout.readline() == b"up\n"
        code = "import os; print(os.listdir('/tmp'), len([n for n in os.listdir('/proc') if n.isdigit()]))"
        assert inside(code).stdout == "[] 2\n"
    finally:
        busy.terminate()
        busy.wait(10)
        busy.stdout.close()
