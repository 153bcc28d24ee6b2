"""What the security tests share: run the same attack inside a box and outside of it, and compile the attackers in C.

`inside(...)` returns an Ended: outcome, output and receipt of one run. `outside(...)` is the positive control: the same
code without a box. `attacker("name")` is the path of a compiled program of tests/payloads.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"
# Not the interpreter of the tests: that one may be a script of a version manager, or lie below a closed home.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable


@dataclasses.dataclass
class Ended:
    status: int
    outcome: dict
    stdout: str
    stderr: str
    receipt: dict
    changed: dict | None = None

    @property
    def kind(self):
        return self.outcome["kind"]

    @property
    def limit(self):
        return self.outcome["limit"]

    def denied(self, syscall):
        """The recorded refusals of one system call."""
        return [denial for denial in self.receipt["denials"] if denial["syscall"] == syscall]


def read_report(text, status):
    report = json.loads(text)
    assert "error" not in report, report["error"]
    return Ended(
        status,
        report["outcome"],
        report.get("stdout", ""),
        report.get("stderr", ""),
        report["receipt"],
        report.get("changed"),
    )


@pytest.fixture(scope="session")
def inside(pctx):
    """inside("print(1)", "--pids", "8") runs Python code in a box; a list instead of code is a command."""

    def run(what, *options, **settings):
        command = [*what] if isinstance(what, list | tuple) else ["python3", "-c", what]
        timeout = () if "--timeout" in options else ("--timeout", "20s")
        done = pctx("run", "--json", *timeout, *options, "--", *command, **settings)
        try:
            return read_report(done.stdout, done.returncode)
        except (json.JSONDecodeError, AssertionError) as error:
            pytest.fail(f"no report ({error}); exit {done.returncode}: {done.stderr[:2000]}")

    return run


@pytest.fixture(scope="session")
def outside():
    """The same code or command without a box; text on stdout, returncode as subprocess gives it."""

    def run(what, **settings):
        command = [*map(str, what)] if isinstance(what, list | tuple) else [PYTHON, "-c", what]
        settings = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 30} | settings
        return subprocess.run(command, **settings)

    return run


@pytest.fixture(scope="session")
def allow_all(tmp_path_factory):
    """A profile for `--seccomp` that allows every call: the control of what the filter refuses."""
    profile = tmp_path_factory.mktemp("profile") / "all.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}))
    return profile


@pytest.fixture(scope="session")
def powers(outside):
    """Prefix that gives a command all rights over namespaces of its own: how the controls of refused calls work as any
    user."""
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--net", "--uts"]
    if not shutil.which("unshare") or outside([*prefix, "true"]).returncode != 0:
        pytest.skip("needs util-linux's unshare and user namespaces for the positive control")
    return prefix


@pytest.fixture(scope="session")
def attackers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attackers")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def attacker(attackers):
    """attacker("hog"): the compiled tests/payloads/hog.c, static where the host has a static libc."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")

    def build(name):
        program = attackers / name
        if program.exists():
            return program
        if compiler is None:
            pytest.skip("needs a C compiler for the attackers")
        command = [compiler, "-O1", "-w", "-pthread", "-o", str(program), str(PAYLOADS / f"{name}.c")]
        for extra in (["-static"], []):
            done = subprocess.run([*command, *extra], capture_output=True, text=True)
            if done.returncode == 0:
                program.chmod(0o755)
                return program
        pytest.fail(f"{name}.c does not compile: {done.stderr}")

    return build


@pytest.fixture(scope="session")
def attack(inside, attacker):
    """attack("hog", "rss", "100", options=[...]) runs a C attacker in a box."""

    def run(name, *arguments, options=(), **settings):
        program = attacker(name)
        return inside([f"/attack/{name}", *arguments], "--ro", f"{program}:/attack/{name}", *options, **settings)

    return run


def named(name):
    """Processes with this name. Not by their command lines: to read one, the kernel may make us wait for a guest."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path("/proc", entry, "comm").read_text().strip() == name:
                found.append(int(entry))
    return found


@pytest.fixture
def mapping_holder(attacker, attackers):
    """An attacker whose memory nobody can read while it runs. What is left of it is killed at the end: it has a name of
    its own, or that would be another suite's."""
    program = shutil.copy(attacker("holds_mappings"), attackers / f"maps-{os.getpid()}")
    yield program
    for pid in named(program.name):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def layers(inside):
    """The layers of a plain run on this host, for tests whose claim depends on one."""
    return inside(["true"]).receipt["layers"]


@pytest.fixture(scope="session")
def lists_sockets():
    """Whether this kernel has, or loads, tcp_diag."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:  # NETLINK_SOCK_DIAG
        by_family, request_dump, error = 20, 0x301, 2
        request = struct.pack("<BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        diag.send(struct.pack("<IHHII", 16 + len(request), by_family, request_dump, 1, 0) + request)
        return struct.unpack_from("<IH", diag.recv(65536))[1] != error


@pytest.fixture
def needs_cgroups(layers):
    if not layers["cgroups"]["on"]:
        pytest.skip(f"needs cgroups: {layers['cgroups']['detail']}")


@pytest.fixture
def without_cgroups(layers):
    if layers["cgroups"]["on"]:
        pytest.skip("needs a host that lends no cgroups: limits are bound by the watchdog there")


@pytest.fixture
def secret(tmp_path_factory):
    """A file that only the caller knows of, with its content."""
    folder = tmp_path_factory.mktemp("host")
    folder.chmod(0o755)
    file = folder / "secret.txt"
    file.write_text(f"planted-{os.urandom(8).hex()}\n")
    file.chmod(0o644)
    return file


@pytest.fixture
def open_place():
    """A folder of the host that every uid may reach and write, as /tmp is; removed afterwards."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pctx-open-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture(scope="session")
def broker(sandbox_bin, tmp_path_factory):
    """The Broker that sandboxed calls of this process use: one of its own, which is gone afterwards."""
    from pctx_sandbox import _broker
    from waiting import in_time

    from broker import Broker, alive, own_cgroups

    folder = tempfile.mkdtemp(prefix="pctx-b-", dir="/tmp")  # short: a socket's path has 107 bytes
    served = Broker(sandbox_bin, f"{folder}/s")
    names = ("PCTX_SANDBOX_SOCKET", "PCTX_SANDBOX_BINARY")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: served.env[name] for name in names})
    yield served
    _broker.close_all()
    left, pid = served.everything(), served.pid
    served.stop()
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    shutil.rmtree(folder)
    assert in_time(lambda: not any(map(alive, left))), "the Broker left processes behind"
    assert in_time(lambda: not own_cgroups(pid)), "the Broker left cgroups behind"


@pytest.fixture
def own(sandbox_bin, tmp_path, monkeypatch):
    """A Broker for one test, which may be killed."""
    from pctx_sandbox import _broker
    from waiting import in_time

    from broker import Broker, alive, own_cgroups

    _broker.close_all()
    served = Broker(sandbox_bin, f"/tmp/pctx-l-{os.getpid()}-{time.monotonic_ns()}")
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", served.socket)
    monkeypatch.setenv("PCTX_SANDBOX_BINARY", sandbox_bin)
    yield served
    _broker.close_all()
    left, pid = served.everything(), served.pid
    served.stop()
    assert in_time(lambda: not any(map(alive, left)))
    assert in_time(lambda: not own_cgroups(pid))
    for path in (served.socket, served.socket + ".lock"):
        if os.path.exists(path):
            os.unlink(path)
