"""What the virtual machine's tests share: what machine this is, how to run a box, and what boxes leave behind.

These tests run inside the machine that tests/vm/run.sh boots, as root and as an ordinary user.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from boxes import CGROUPS, RESTRICTION, SLOW, VENV, Ended, Machine, Running, wait_until
from containers import LIMIT, podman

# Which of the machines a test is for; another machine of the same run has the rest.
MARKERS = {
    "lent": "needs cgroups that the host lends: to root always, to a user with systemd",
    "unlent": "claims something about users to whom nothing is delegated",
    "systemd": "needs systemd as pid 1",
    "venv": "needs the virtualenv of Debian's image",
    "podman": "needs Podman, which Debian's image has, and systemd beside it",
    "unreserved": "claims something about kernels that leave user namespaces to everyone",
    "reserved": "needs a kernel that reserves user namespaces for named programs (Ubuntu's)",
}


def pytest_configure(config):
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("PCTX_VM") != "1":  # on a host without the machine these tests claim nothing
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="runs inside the virtual machine only (tests/vm/run.sh)"))
        return
    machine = Machine()
    unwanted = {"unlent" if machine.lends_cgroups else "lent"}
    if not machine.systemd:
        unwanted.add("systemd")
    if not machine.systemd or shutil.which("podman") is None:
        unwanted.add("podman")
    if not os.path.isdir(VENV):
        unwanted.add("venv")
    unwanted.add("unreserved" if RESTRICTION.exists() else "reserved")
    elsewhere = [item for item in items if unwanted & {mark.name for mark in item.iter_markers()}]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


@pytest.fixture(scope="session")
def machine():
    return Machine()


@pytest.fixture(scope="session")
def binary():
    return os.environ["PCTX_SANDBOX_BIN"]


@pytest.fixture
def box(binary, tmp_path):
    """box("--memory", "64M", "--", "true") runs a box to its end."""

    def run(*arguments, prefix=(), env=None, limit=60):
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        # The default of 30 s is short for an emulated machine on a busy host; who has a deadline to show names it.
        options = [] if "--timeout" in arguments else ["--timeout", "250s"]
        command = [*prefix, binary, "run", "--report", str(report), *options, *map(str, arguments)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=limit * max(1, SLOW / 4)
        )
        text = report.read_text() if report.exists() else ""
        return Ended(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
            json.loads(text) if text else None,
        )

    return run


@pytest.fixture
def running(binary):
    """running("--pids", "9") starts a box whose guest sleeps; whatever is left of it is killed after the test."""
    started = []

    def start(*arguments, prefix=()):
        marker = f"{86000 + len(started)}.{os.getpid()}"
        command = [*prefix, binary, "run", "--timeout", "600s", *map(str, arguments), "--", "/usr/bin/sleep", marker]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(Running(process, marker))
        if not wait_until(lambda: started[-1].guest or process.poll() is not None) or process.poll() is not None:
            process.kill()
            pytest.fail(f"no guest appeared: {process.communicate()[0].decode(errors='replace')}")
        return started[-1]

    yield start
    for item in started:
        item.process.kill()
        item.process.communicate()


@pytest.fixture
def cgroups_left():
    """cgroups_left() names the directories of /sys/fs/cgroup that were not there when the test began, once they stay.

    Only names that are ours count: systemd makes and removes units of its own meanwhile.
    """

    def below():
        found = set()
        for directory, folders, _ in os.walk(CGROUPS):
            found.update(os.path.join(directory, folder) for folder in folders)
        return found

    before = below()

    def left(seconds=2.0):
        def news():
            return sorted(path for path in below() - before if "pctx" in path)

        wait_until(lambda: not news(), seconds)
        return news()

    return left


@pytest.fixture(scope="session")
def environment(binary):
    """Variables with which the Podman backend has a container of these tests' own."""
    folder = tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp")
    name = f"pctx-vm-{os.getpid()}"
    own = {"PCTX_SANDBOX_SOCKET": f"{folder}/s", "PCTX_SANDBOX_CONTAINER": name, "PCTX_SANDBOX_BINARY": binary}
    yield {**os.environ, **own}
    podman("rm", "--force", "--ignore", name)
    shutil.rmtree(folder)


@pytest.fixture
def container(binary, environment):
    """The name of a container that serves; one that does already costs no command of Podman's."""
    command = [binary, "serve", "--backend", "podman"]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    return environment["PCTX_SANDBOX_CONTAINER"]
