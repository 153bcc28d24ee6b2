"""What all tests share: the program under test, a way to run it, and markers that say which identity a test needs.

The program is the one that PCTX_SANDBOX_BIN names, by default the release build in the tree's .venv.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent

MARKERS = {
    "chaos": "kills and races on purpose; slow, runs in `make test-all`",
    "vm": "needs the virtual machine with cgroup v2; runs in `make test-all`",
    "root_only": "claims something about runs started by root",
    "rootless_only": "claims something about runs started by an ordinary user",
}
# In the background of a script these are ignored, and would be by all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Never part of a plain run; named with `-m` by those who want them.
ON_REQUEST = ("chaos", "vm")


class Completed(subprocess.CompletedProcess):
    """A finished run. `json()` reads its stdout, and shows what was there instead when that is no JSON."""

    def json(self):
        try:
            return json.loads(self.stdout)
        except json.JSONDecodeError as error:
            shown = f"{self.stdout[:2000]}\n{(self.stderr or '')[:2000]}"
            pytest.fail(f"no JSON on stdout ({error}); exit {self.returncode}\n{shown}")


def skip_unless(feature, reason):
    """Skips the test unless `feature` (a value or a function) is true. `reason` names what is missing on this host."""
    if not (feature() if callable(feature) else feature):
        pytest.skip(f"needs {reason}")


@pytest.fixture(name="skip_unless", scope="session")
def skip_unless_fixture():
    return skip_unless


@pytest.fixture(scope="session")
def tree():
    return TREE


@pytest.fixture(scope="session")
def sandbox_bin():
    path = Path(os.environ.get("PCTX_SANDBOX_BIN", TREE / ".venv/bin/pctx-sandbox"))
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not an executable; run scripts/setup.sh test, or name a build with PCTX_SANDBOX_BIN")
    return str(path)


@pytest.fixture(scope="session")
def pctx(sandbox_bin):
    """pctx("run", "--", "true") runs the program and returns a Completed; text by default, at most 60 s."""

    def run(*args, timeout=60, **options):
        if not {"stdin", "input"} & options.keys():
            options["stdin"] = subprocess.DEVNULL
        if not {"stdout", "stderr", "capture_output"} & options.keys():
            options["capture_output"] = True
        if "text" not in options and "encoding" not in options:
            options.update(encoding="utf-8", errors="replace")
        done = subprocess.run([sandbox_bin, *map(str, args)], timeout=timeout, **options)
        return Completed(done.args, done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="module")
def own_broker(sandbox_bin):
    """Calls of this file go to a Broker that is gone afterwards."""
    from pctx_sandbox import _broker

    folder = tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp")  # short: a socket's path has 107 bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCTX_SANDBOX_SOCKET", f"{folder}/s")
        patch.setenv("PCTX_SANDBOX_BINARY", sandbox_bin)
        _broker.close_all()  # connections that are kept lead to the Broker of others
        yield
        _broker.close_all()
        subprocess.run([sandbox_bin, "stop"], capture_output=True)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def each_backend(request, sandbox_bin):
    """Calls and commands of this file go to this backend: a Broker or a container of their own."""
    import podman_host
    from pctx_sandbox import _backend, _broker

    folder = tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp")
    name = f"pctx-test-{os.getpid()}"
    image = podman_host.own_image() if request.param == "podman" else contextlib.nullcontext()
    with image, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCTX_SANDBOX_SOCKET", f"{folder}/s")
        patch.setenv("PCTX_SANDBOX_BINARY", sandbox_bin)
        patch.setenv("PCTX_SANDBOX_BACKEND", request.param)
        patch.setenv("PCTX_SANDBOX_CONTAINER", name)
        _broker.close_all()
        _backend._resolved.clear()
        _backend.resolve("auto").start()  # before a test changes HOME, where Podman has its storage
        yield request.param
        _broker.close_all()
        _backend._resolved.clear()
        if request.param == "podman":
            command = ["podman", "rm", "--force", "--ignore", name]
            subprocess.run(command, capture_output=True, timeout=120)  # its image is for everybody
        else:
            subprocess.run([sandbox_bin, "stop"], capture_output=True)
    shutil.rmtree(folder)


def pytest_generate_tests(metafunc):
    """Whoever uses `each_backend` runs over those that work here; test_podman.py says it where Podman does not."""
    if "each_backend" not in metafunc.fixturenames:
        return
    import podman_host

    names = getattr(metafunc.module, "BACKENDS", ("namespaces", "podman"))
    usable = [name for name in names if name != "podman" or podman_host.trouble() is None]
    metafunc.parametrize("each_backend", usable, indirect=True, scope="module")


def pytest_configure(config):
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup. What we start would inherit it; a handler keeps us alive as well, and ends at their exec.
        signal.signal(signal.SIGHUP, lambda *_: None)
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(config, items):
    """Leaves out what does not apply to this identity: such a test runs in the other half of `make test`."""
    asked = config.getoption("-m") or ""
    unwanted = {"rootless_only" if os.geteuid() == 0 else "root_only"}
    unwanted.update(name for name in ON_REQUEST if name not in asked)
    kept = [item for item in items if not unwanted & {mark.name for mark in item.iter_markers()}]
    if len(kept) != len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture(scope="module")
def world():
    """An internet of the tests' own: see network_world."""
    import network_world

    made = network_world.World()
    yield made
    made.close()


@pytest.fixture
def networked(world, sandbox_bin):
    """networked(code, "allow:a.test") runs Python code in a box in that world: its report, and `network`, its record.

    What the box prints as JSON on its last line is `value`; `took` is how long each of its attempts lasted.
    """
    import network_world

    world.names(network_world.RECORDS)
    world.seen()

    def run(code, allow, *options, timeout=60):
        box = [sandbox_bin, "run", "-q", "--json", "--network", allow, "--ro", f"{world.ca}:/run/ca.pem"]
        box += ["--env", "SSL_CERT_FILE=/run/ca.pem", *options, "--", "python3", "-c", network_world.PRELUDE + code]
        done = world.run(*box, timeout=timeout)
        try:
            report = json.loads(done.stdout)
        except json.JSONDecodeError:
            pytest.fail(f"no report: {done.returncode} {done.stdout[:1000]} {done.stderr[:1000]}")
        assert "receipt" in report, report
        lines = report["stdout"].splitlines()
        report["value"] = json.loads(lines[-1]) if lines else None
        assert report["outcome"]["exit_code"] == 0, report["stderr"]
        report["network"] = report["receipt"]["network"]
        return report

    return run
