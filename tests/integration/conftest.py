"""Shared by the tests of the command line: reports, a home folder, and the everyday packages that a box must run."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def home():
    """A folder that no box has of its own, unlike /tmp."""
    base = Path.home()
    if not os.access(base, os.W_OK) or str(base).startswith(("/tmp", "/var/tmp")):
        pytest.skip("needs a home folder that can be written, outside the temporary folders")
    path = Path(tempfile.mkdtemp(prefix="pctx-home-", dir=base))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def report(pctx):
    """report("--pids", "8", "--", "true"): the JSON object of one run, with `status` as the exit status."""

    def run(*words, **settings):
        done = pctx("run", "--json", *words, **settings)
        return done.json() | {"status": done.returncode}

    return run


@pytest.fixture(scope="session")
def layers(report):
    return report("--", "true")["receipt"]["layers"]


@pytest.fixture(scope="session")
def refused(pctx):
    """refused("--memory", "lots"): asserts that nothing ran, with one sentence and a hint on stderr; returns it."""

    def run(*words, says="", **settings):
        done = pctx("run", *words, **settings)
        assert done.returncode == 125, f"exit {done.returncode}: {done.stdout}{done.stderr}"
        assert "ran" not in done.stdout
        lines = done.stderr.splitlines()
        assert len(lines) == 2 and lines[0].startswith("pctx-sandbox: "), done.stderr
        assert lines[1].startswith("hint: ") and lines[1] != "hint: ", done.stderr
        assert says in done.stderr
        return done.stderr

    return run


@pytest.fixture(scope="session")
def packages():
    """The folder that holds numpy and the other everyday packages, if it fits the box's interpreter."""
    found = importlib.util.find_spec("numpy")
    if found is None:
        pytest.skip("needs the packages of requirements-dev.txt (numpy and others) beside the tests' pytest")
    probe = "import sys; print(*sys.version_info[:2])"
    boxed = subprocess.run(["/usr/bin/python3", "-c", probe], capture_output=True, text=True).stdout.split()
    if boxed != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"needs packages for Python {'.'.join(boxed)}, which is the box's; the tests' own are for another")
    return Path(found.origin).resolve().parent.parent


@pytest.fixture
def policy(tmp_path):
    """Writes a policy file: policy({...}), policy("text") or policy(b"bytes")."""

    def write(content):
        file = tmp_path / "policy.json"
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


@pytest.fixture
def called(world, networked, sandbox_bin, tmp_path):
    """Runs a script that decorates functions, in the world, with a Broker of its own."""
    tmp_path.chmod(0o755)

    def run(script, timeout=90):
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(script))
        env = {"PCTX_SANDBOX_SOCKET": str(world.folder / "s"), "PCTX_SANDBOX_BINARY": sandbox_bin}
        try:
            done = world.run(sys.executable, file, env=env, timeout=timeout)
        finally:
            world.run(sandbox_bin, "stop", env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def virtualenv(tmp_path_factory):
    """A virtualenv of the box's own Python, without packages."""
    folder = tmp_path_factory.mktemp("virtualenv") / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    return str(folder)
