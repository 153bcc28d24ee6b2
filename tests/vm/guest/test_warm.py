"""Warm calls on cgroup v2: Workers join their cgroup from outside, and limits bind on exactly one call."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vm

TREE = Path(__file__).resolve().parents[3]

CALLS = """
import json
from pctx_sandbox import sandbox

@sandbox(timeout_sec=300)
def add(a, b):
    return a + b

@sandbox(timeout_sec=300)
def label():
    return open("/proc/self/attr/current").read()

@sandbox(memory_mb=96, timeout_sec=300)
def take(size):
    memory = bytearray(size)
    memory[::4096] = b"x" * len(memory[::4096])
    return len(memory)

@sandbox(timeout_sec=3)
def spin():
    while True:
        pass

def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__

if __name__ == "__main__":
    first = add.run(1, 2)
    print(json.dumps({
        "sum": first.value,
        "layers": {name: layer["on"] for name, layer in first.receipt["layers"].items()},
        "memory": first.receipt["limits"]["memory"]["by"],
        "label": label(),
        "control": outcome(lambda: take(32 << 20)),
        "too much": outcome(lambda: take(300 << 20)),
        "for ever": outcome(spin),
        "after": outcome(lambda: add(3, 4)),
    }))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    script = tmp_path_factory.mktemp("warm") / "calls.py"
    script.write_text(CALLS)
    binary = str(TREE / ".venv/bin/pctx-sandbox")
    environment = {
        "PYTHONPATH": str(TREE / "python"),
        "PCTX_SANDBOX_BINARY": binary,
        "PATH": "/usr/bin:/bin",
        "PCTX_SANDBOX_SOCKET": str(script.parent / "broker.sock"),
        # Where the user's systemd listens, which delegates a cgroup to the Broker.
        **{name: os.environ[name] for name in ("XDG_RUNTIME_DIR",) if name in os.environ},
    }
    try:
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    finally:
        subprocess.run([binary, "stop"], env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_call_gives_its_value_with_every_required_layer(said):
    assert said["sum"] == 3
    required = {"user", "pid", "mount", "network", "ipc", "seccomp", "no-new-privs", "capabilities"}
    assert all(said["layers"][layer] for layer in required), said["layers"]


def test_limits_bind_on_exactly_that_call(said, machine):
    assert said["memory"] == ("cgroup v2" if machine.lends_cgroups else "watchdog")
    assert said["control"] == 32 << 20
    assert said["too much"] == "SandboxMemoryError"
    assert said["for ever"] == "SandboxTimeoutError"
    assert said["after"] == 7


def test_a_worker_runs_under_the_profile_of_its_zygote(said, machine):
    if not machine.apparmor:
        pytest.skip("needs a kernel with AppArmor")
    assert Path("/proc/self/attr/current").read_text().strip("\0\n") == "unconfined"  # the control
    assert said["layers"]["apparmor"]
    assert said["label"].startswith("pctx-sandbox-zygote (enforce)")
