"""Rootless boxes and the cgroups that systemd lends, or does not."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vm, pytest.mark.rootless_only]

WAYS = {
    "login session": [],
    "scope with delegation": ["systemd-run", "--user", "--scope", "--quiet", "-p", "Delegate=yes", "--"],
    "service of the user's manager": ["systemd-run", "--user", "--pipe", "--wait", "--quiet", "--"],
}


@pytest.mark.systemd
@pytest.mark.parametrize("way", WAYS)
def test_with_systemd_a_users_limits_bind_by_cgroups(box, way):
    assert os.environ.get("XDG_RUNTIME_DIR") == f"/run/user/{os.getuid()}"
    # The control: this process itself is where no user may make cgroups.
    own = Path("/sys/fs/cgroup" + Path("/proc/self/cgroup").read_text().split("::")[1].strip())
    assert not os.access(own / "cgroup.procs", os.W_OK)

    ended = box("--memory", "300M", "--", "true", prefix=WAYS[way])
    assert ended.status == 0, ended
    assert ended.layer("cgroups")["on"], ended
    assert ended.bound_by("memory") == ended.bound_by("pids") == "cgroup v2", ended


@pytest.mark.systemd
@pytest.mark.parametrize("way", WAYS)
def test_with_systemd_a_users_memory_limit_kills(box, way):
    code = "b = bytearray(150 << 20); print('held')"
    control = box("--memory", "300M", "--", "/usr/bin/python3", "-c", code, prefix=WAYS[way])
    assert (control.status, control.stdout.strip()) == (0, "held"), control
    ended = box("--memory", "64M", "--", "/usr/bin/python3", "-c", code, prefix=WAYS[way])
    assert (ended.status, ended.outcome) == (137, "out_of_memory"), ended


def test_require_cgroups_is_met_with_systemd_and_refused_without(box, machine):
    ended = box("--require", "cgroups", "--", "true")
    assert ended.status == (0 if machine.systemd else 125), ended
    if not machine.systemd:
        assert "delegated" in ended.stderr and "doctor" in ended.stderr, ended


def test_without_a_user_manager_the_receipt_names_the_next_best(box):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DBUS_"))}
    ended = box("--", "true", env=env)
    assert ended.status == 0, ended
    assert not ended.layer("cgroups")["on"] and ended.layer("cgroups")["detail"], ended
    assert ended.bound_by("memory") == "watchdog", ended
    assert ended.bound_by("pids") in ("rlimit", "watchdog"), ended
    said = [line for line in ended.stderr.splitlines() if "cgroup" in line]
    assert len(said) == 1 and "watchdog" in said[0], ended


def test_without_a_user_manager_memory_files_nobody_can_count_are_refused(box):
    """A memfd parked in a socket is in no process: no watchdog sees it."""
    code = "import os; os.memfd_create('x'); print('made')"
    assert subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True).stdout == "made\n"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DBUS_"))}
    ended = box("--", "/usr/bin/python3", "-c", code, env=env)
    assert ended.status == 1 and "made" not in ended.stdout, ended
