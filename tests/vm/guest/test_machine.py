"""The machine itself: without these the other tests would prove nothing."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.vm


def test_cgroups_are_version_2_with_every_controller_that_limits_need(machine):
    kind = subprocess.run(["stat", "-fc", "%T", "/sys/fs/cgroup"], capture_output=True, text=True).stdout.strip()
    assert kind == "cgroup2fs"
    assert {"cpu", "io", "memory", "pids"} <= machine.controllers


def test_apparmor_is_on(machine):
    assert machine.apparmor
    assert "apparmor" in Path("/sys/kernel/security/lsm").read_text()


def test_landlock_is_there_exactly_when_the_kernel_has_it(machine):
    # 5.13 brought Landlock; Debian builds it in. 5.10 shows how a box fares without.
    assert (machine.landlock_abi >= 1) == (machine.kernel >= (5, 13))


@pytest.mark.unreserved
def test_an_ordinary_user_may_make_user_namespaces():
    done = subprocess.run(["unshare", "--user", "--map-root-user", "id", "-u"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.root_only
def test_a_memory_cgroup_made_by_hand_kills():
    """The control of every memory test: the kernel's own answer is 137."""
    directory = Path("/sys/fs/cgroup/control")
    Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+memory")
    directory.mkdir()
    try:
        (directory / "memory.max").write_text("50M")
        (directory / "memory.swap.max").write_text("0") if (directory / "memory.swap.max").exists() else None
        script = f"echo $$ > {directory}/cgroup.procs; exec python3 -c 'bytearray(200 << 20)'"
        assert subprocess.run(["sh", "-c", script]).returncode in (-9, 137)
    finally:
        directory.rmdir()


@pytest.mark.rootless_only
def test_a_user_has_a_delegated_cgroup_only_with_systemd(machine):
    path = Path(f"/sys/fs/cgroup/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service")
    assert (path.exists() and os.access(path, os.W_OK)) == machine.systemd
