"""A host that refuses namespaces and has Podman: `auto` comes to the container, for real, and says so.

`refusing_host` makes such a host for the processes of these tests; what they call is the program and the package as
they are.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import podman_host
import pytest
import refusing_host

if podman_host.trouble():
    pytest.skip(f"needs {podman_host.trouble()}", allow_module_level=True)
LONG = 300


class Host:
    """Runs commands on it."""

    def __init__(self, folder, program):
        self.program, self.folder = program, Path(folder)
        self.outside = refusing_host.Outside(folder)
        self.env = self.outside.environment() | {
            "PCTX_SANDBOX_SOCKET": f"{folder}/s",
            "PCTX_SANDBOX_BINARY": program,
            "PCTX_SANDBOX_CONTAINER": f"pctx-refused-{os.getpid()}",
            "PCTX_SANDBOX_CACHE_DIR": f"{folder}/cache",
        }
        self.env.pop("PCTX_SANDBOX_BACKEND", None)

    def run(self, *command, **settings):
        env = self.env | settings.pop("env", {})
        command = refusing_host.refused(*command)
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG, **settings)

    def pctx(self, *words, **settings):
        return self.run(self.program, *words, **settings)

    def python(self, code, **settings):
        script = self.folder / "program.py"
        script.write_text(textwrap.dedent(code))
        done = self.run(sys.executable, script, **settings)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def host(sandbox_bin):
    with tempfile.TemporaryDirectory(prefix="pctx-t-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        made = Host(folder, sandbox_bin)
        yield made
        command = ["podman", "rm", "--force", "--ignore", made.env["PCTX_SANDBOX_CONTAINER"]]
        subprocess.run(command, capture_output=True, timeout=120)
        made.outside.close()


def test_it_is_such_a_host(host, sandbox_bin):
    """The control: without the filter a box is made, with it the same line fails, with the cause and the next step."""
    line = [sandbox_bin, "run", "-q", "--backend", "namespaces", "--", "true"]
    assert subprocess.run(line, capture_output=True, timeout=LONG).returncode == 0
    done = host.run(*line)
    assert done.returncode == 125 and "refuses" in done.stderr and "hint: " in done.stderr
    assert host.run("unshare", "--user", "true").returncode != 0


def test_doctor_says_which_backend_and_why(host):
    report = json.loads(host.pctx("doctor", "--json").stdout)
    assert not report["ready"] and report["auto"]["backend"] == "podman"
    assert report["auto"]["reason"].startswith("this host refuses: user") and "Podman" in report["auto"]["reason"]
    assert report["verdict"].endswith("meanwhile 'auto' is the backend podman")


def test_a_command_runs_in_the_container(host, tmp_path):
    (tmp_path / "in").write_text("words")
    words = ["--mnt", tmp_path, "--json", "--", "sh", "-c", "cat in > out; id -u"]
    done = host.pctx("run", "-q", *words)
    report = json.loads(done.stdout)
    assert (done.returncode, report["stdout"]) == (0, "1000\n")
    assert report["receipt"]["backend"]["name"] == "podman"
    assert report["receipt"]["backend"]["reason"].startswith("this host refuses: user")
    assert (tmp_path / "out").read_text() == "words"
    assert ["exec"] in [command[:1] for command in host.outside.commands]


def test_functions_and_scripts_run_in_the_container(host):
    found = host.python("""
        import json
        import pctx_sandbox
        from pctx_sandbox import sandbox

        @sandbox
        def add(a, b):
            return a + b

        if __name__ == "__main__":
            result = add.run(2, 3)
            warm, cold = (pctx_sandbox.run("print(6 * 7)", warm=warm) for warm in (True, False))
            print(json.dumps([result.value, result.receipt["backend"], warm.stdout, warm.receipt["backend"]["name"],
                              cold.stdout, cold.receipt["backend"]["name"]]))
    """)
    value, backend, *scripts = found
    assert value == 5 and backend["name"] == "podman" and backend["reason"].startswith("this host refuses: user")
    assert scripts == ["42\n", "podman", "42\n", "podman"]


PACKAGES = """
    import json
    import pctx_sandbox
    from pctx_sandbox import sandbox

    @sandbox(dependencies=["six"])
    def name():
        import six
        return six.__name__

    if __name__ == "__main__":
        code = "import six; print(six.__name__)"
        scripts = [pctx_sandbox.run(code, ["six"], warm=warm).stdout for warm in (True, False)]
        print(json.dumps([name(), *scripts]))
"""


def test_environments_are_built_in_the_container(host):
    """Only its relay reaches the index. They are found again without it, and are listed and removed by name."""
    assert host.python(PACKAGES) == ["six", "six\n", "six\n"]
    listed = json.loads(host.pctx("env", "list", "--backend", "podman", "--json").stdout)
    assert [entry["requested"] for entry in listed] == [["six"]] and not listed[0]["damaged"]
    assert listed[0]["path"].startswith(f"{host.folder}/cache/podman/env/")
    nowhere = {name: "http://127.0.0.1:9/simple" for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")}
    assert host.python(PACKAGES, env=nowhere) == ["six", "six\n", "six\n"]
    done = host.pctx("run", "-q", "--with", "six", "--", "python", "-c", "import six; print(six.__name__)")
    assert (done.returncode, done.stdout) == (0, "six\n"), done.stderr
    failed = host.pctx("env", "build", "--backend", "auto", "--", "pctx-no-such-package-of-the-tests")
    assert failed.returncode == 1 and "pctx-no-such-package-of-the-tests" in failed.stderr
    assert host.pctx("stop", "--backend", "podman").returncode == 0
    removed = json.loads(host.pctx("env", "prune", "--all", "--backend", "podman", "--json").stdout)
    assert len(removed["removed"]) == 1
    assert json.loads(host.pctx("env", "list", "--backend", "podman", "--json").stdout) == []


def test_without_podman_the_hosts_own_refusal_is_told(host):
    env = {"PATH": "/nonexistent", "PCTX_SANDBOX_SOCKET": f"{host.folder}/other"}
    done = host.pctx("run", "--", "/usr/bin/true", env=env)
    assert done.returncode == 125 and "refuses" in done.stderr and "Podman" not in done.stderr
    report = json.loads(host.pctx("doctor", "--json", env=env).stdout)
    assert report["auto"]["backend"] == "namespaces"
    assert [each["fix"] != "" for each in report["backends"] if each["name"] == "podman"] == [True]
