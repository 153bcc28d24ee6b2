"""The container of the Podman backend with crun on cgroup v2: its limits, and AppArmor around root's.

That boxes hold in there is what tests/integration/test_backends.py and the security groups show, which run in this
machine too (guest-suites.py).
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from boxes import wait_until
from containers import LIMIT, cgroup, lends_io, podman, run, write_limit

pytestmark = [pytest.mark.vm, pytest.mark.podman]

TREE = Path(__file__).resolve().parents[3]
PROFILES = TREE / "packaging/apparmor/pctx-sandbox-guest"
PROFILE = "pctx-sandbox-container"


def test_the_runtime_is_crun_on_cgroup_v2():
    """Without it the tests below would say nothing about crun."""
    asked = "{{.Host.OCIRuntime.Name}} {{.Host.CgroupsVersion}} {{.Host.CgroupManager}}"
    assert podman("info", "--format", asked).stdout.split() == ["crun", "v2", "systemd"]


def test_it_has_limits_that_podman_has_really_set(container):
    folder = cgroup(container)
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    memory = int((folder / "memory.max").read_text())
    assert total // 2 < memory < total
    assert (folder / "memory.swap.max").read_text().strip() == "0"
    assert int((folder / "pids.max").read_text()) > 0
    quota, period = map(int, (folder / "cpu.max").read_text().split())
    assert quota == period * os.cpu_count()


def test_its_memory_limit_binds_on_whatever_left_its_box(container):
    """`podman exec` starts a process in the container, outside all boxes."""
    folder = cgroup(container)
    limit = int((folder / "memory.max").read_text())

    def killed():
        return int(dict(line.split() for line in (folder / "memory.events").read_text().splitlines())["oom_kill"])

    def take(size):
        return podman("exec", container, "/usr/bin/python3", "-c", f"print(len(bytearray({size})))", check=False)

    before = killed()
    assert take(limit // 4).stdout.strip() == str(limit // 4)  # the control
    assert killed() == before
    assert take(limit + (1 << 20)).returncode == 137
    assert killed() > before


FORK = """
import os, time
made = 0
try:
    for _ in range(40):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
os.killpg(0, 9)
"""


def test_its_processes_are_counted_by_its_own_cgroup(container):
    folder = cgroup(container)
    command = ["exec", container, "/usr/bin/python3", "-u", "-c", "import os; os.setpgid(0, 0)\n" + FORK]
    assert podman(*command, check=False).stdout.strip() == "40"  # the control: what the backend sets lets it
    limit = (folder / "pids.max").read_text()
    assert wait_until(lambda: int((folder / "pids.current").read_text()) < 40)
    try:
        write_limit(folder / "pids.max", int((folder / "pids.current").read_text()) + 20)
        assert 0 < int(podman(*command, check=False).stdout.strip()) < 20
    finally:
        write_limit(folder / "pids.max", limit.strip())


def test_limits_of_the_container_and_of_each_run_hold_together(binary, environment, container):
    code = "print(len(bytearray(150 << 20)))"
    control = run(binary, environment, "--memory", "400M", "--", "/usr/bin/python3", "-c", code)
    assert control.stdout.strip() == str(150 << 20), control.stderr
    ended = run(binary, environment, "--memory", "64M", "--", "/usr/bin/python3", "-c", code)
    assert ended.returncode == 137 and "64 MiB" in ended.stderr, ended.stderr


def test_disk_rates_that_the_user_names_are_set_or_refused(binary, environment):
    named = {**environment, "PCTX_SANDBOX_CONTAINER_LIMITS": "io-write=20M"}
    done = run(binary, named, "-q", "--", "true")
    if lends_io():
        assert done.returncode == 0, done.stderr
        assert "wbps=20971520" in (cgroup(environment["PCTX_SANDBOX_CONTAINER"]) / "io.max").read_text()
    else:
        assert done.returncode == 125 and "may not set the container's limits" in done.stderr, done.stderr


CONNECT = """
import socket
try:
    socket.create_connection(("203.0.113.9", 81), timeout=60)
except OSError as error:
    print(type(error).__name__)
"""


def test_what_a_box_tries_beside_its_allow_list_is_noted(binary, environment, container):
    """It takes raw sockets in the box's own network, which a profile around the container must allow."""
    options = ("-q", "--json", "--network", "allow:198.51.100.7:80")
    done = run(binary, environment, *options, "--", "/usr/bin/python3", "-c", CONNECT)
    report = json.loads(done.stdout)
    assert report["stdout"] == "ConnectionRefusedError\n", done.stderr
    network = report["receipt"]["network"]
    assert network["attempts_recorded"]
    assert [(entry["address"], entry["allowed"]) for entry in network["connections"]] == [("203.0.113.9", False)]


@pytest.mark.root_only
def test_roots_container_runs_under_our_profile(binary, environment, container):
    pid = podman("inspect", "--format", "{{.State.Pid}}", container).stdout.strip()
    assert Path(f"/proc/{pid}/attr/current").read_text().strip("\0\n") == f"{PROFILE} (enforce)"
    assert Path("/proc/self/attr/current").read_text().strip("\0\n") == "unconfined"  # the control
    label = run(binary, environment, "-q", "--", "cat", "/proc/self/attr/current").stdout
    assert label.strip("\0\n").startswith(PROFILE)  # and so does each box in it


WRITE = "import sys; open(sys.argv[1], 'r+')"


@pytest.mark.root_only
def test_the_profile_refuses_what_the_container_could_harm_the_host_with():
    """Under the profile alone, as root: nothing else is in the way."""
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/module/printk/parameters/time"):
        command = ["/usr/bin/python3", "-c", WRITE, path]
        assert subprocess.run(command, capture_output=True).returncode == 0, path  # the control
        confined = subprocess.run(["aa-exec", "-p", PROFILE, "--", *command], capture_output=True, text=True)
        assert "Permission denied" in confined.stderr, path


@pytest.mark.root_only
def test_without_the_profile_nothing_runs_and_the_way_out_is_named(binary, environment, container):
    podman("rm", "--force", container)
    subprocess.run(["apparmor_parser", "--remove", str(PROFILES)], check=True)
    try:
        refused = run(binary, environment, "--", "true")
        assert refused.returncode == 125 and "AppArmor" in refused.stderr, refused.stderr
        assert f"'pctx-sandbox setup' installs {PROFILE}" in refused.stderr
        doctor = subprocess.run([binary, "doctor", "--json"], capture_output=True, text=True, timeout=LIMIT)
        found = {each["name"]: each for each in json.loads(doctor.stdout)["backends"]}["podman"]
        assert not found["usable"] and "setup" in found["fix"]
        subprocess.run([binary, "setup", "--yes"], check=True, capture_output=True, timeout=LIMIT)
        assert run(binary, environment, "--", "true").returncode == 0
    finally:
        subprocess.run(["apparmor_parser", "--replace", str(PROFILES)], check=True)
        with contextlib.suppress(OSError):
            Path("/etc/apparmor.d/pctx-sandbox-guest").unlink()
