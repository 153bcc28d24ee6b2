"""How the client asks for Environments; the program is played by a script, so nothing is installed here."""

import json
import sys
import threading
import time

import pytest
from pctx_sandbox import DependencyInstallError, SandboxStartupError, _environment, sandbox

pytestmark = pytest.mark.usefixtures("broker")


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """Plays `pctx-sandbox env build`: builder(body of a shell script) makes the program."""
    program = tmp_path / "pctx-sandbox"
    (tmp_path / "env").mkdir()
    record = {
        "key": "k",
        "path": str(tmp_path / "env"),
        "python": sys.executable,
        "site_packages": str(tmp_path / "env"),
        "modules": {"pandas": ["pandas"], "scikit-learn": ["sklearn"]},
        "packages": [],
        "built": True,
    }
    monkeypatch.setenv("PCTX_SANDBOX_BINARY", str(program))
    monkeypatch.setattr(_environment, "_known", {})

    def make(body='echo "$ANSWER"'):
        program.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/calls\nANSWER='{json.dumps(record)}'\n{body}\n")
        program.chmod(0o755)
        return lambda: (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []

    return make


def test_an_environment_is_asked_for_once(builder):
    calls = builder()
    one = sandbox(dependencies=["pandas", "Scikit_learn"])(lambda x: x + 1)
    other = sandbox(dependencies=["scikit-learn", "pandas "])(lambda x: x + 2)
    assert (one(1), one(2), other(1)) == (2, 3, 3)
    assert len(calls()) == 1
    assert calls()[0].startswith("env build --json --python /")
    assert calls()[0].endswith("-- pandas scikit-learn")
    lease = json.loads(one._prepared._spec[1].lease)["lease"]
    assert lease["preload"] == ["pandas", "sklearn"]
    assert lease["environment"].endswith("/env")


def test_without_dependencies_nothing_is_built(builder):
    calls = builder("exit 1")
    function = sandbox(lambda: 1)
    assert function() == 1
    assert calls() == []
    assert json.loads(function._prepared._spec[1].lease)["lease"]["environment"] is None


def test_many_threads_build_once(builder):
    calls = builder('sleep 0.3; echo "$ANSWER"')
    function = sandbox(dependencies=["pandas"])(lambda x: x)
    results = []
    threads = [threading.Thread(target=lambda: results.append(function(1))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1] * 5
    assert len(calls()) == 1


def test_disable_cache_builds_afresh_for_each_function(builder):
    calls = builder()
    for _ in range(2):
        function = sandbox(dependencies=["pandas"], disable_cache=True)(lambda: 1)
        assert (function(), function()) == (1, 1)
    assert len(calls()) == 2
    assert "--no-cache" in calls()[0]


def test_a_failed_build_speaks_the_resolvers_words_and_is_not_kept(builder):
    builder("echo 'no version of nosuchthing' >&2; exit 1")
    function = sandbox(dependencies=["nosuchthing"])(lambda: 1)
    with pytest.raises(DependencyInstallError, match="no version of nosuchthing"):
        function()
    builder()
    assert function() == 1


def test_our_own_failure_is_another_error(builder):
    builder("echo 'disk is full' >&2; exit 125")
    with pytest.raises(SandboxStartupError, match="disk is full"):
        sandbox(dependencies=["pandas"])(lambda: 1)()
    builder("echo '[]'")
    with pytest.raises(SandboxStartupError, match="something unknown"):
        sandbox(dependencies=["pandas"])(lambda: 1)()


def test_a_build_has_its_own_time_limit(builder):
    builder("exec sleep 20")
    began = time.monotonic()
    with pytest.raises(DependencyInstallError, match=r"build_timeout_sec=0.5"):
        sandbox(dependencies=["pandas"], build_timeout_sec=0.5)(lambda: 1)()
    assert time.monotonic() - began < 15


def test_cancelling_stops_a_build(builder):
    builder("exec sleep 20")
    future = sandbox(dependencies=["pandas"])(lambda: 1).submit()
    time.sleep(0.5)
    began = time.monotonic()
    assert future.cancel()
    assert time.monotonic() - began < 15
    deadline = time.monotonic() + 5
    while any(thread.name == "pctx-sandbox build" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_environment_that_vanished_is_built_again(builder, tmp_path):
    calls = builder(f'mkdir -p {tmp_path}/env; echo "$ANSWER"')
    function = sandbox(dependencies=["pandas"])(lambda: 1)
    assert function() == 1
    (tmp_path / "env").rmdir()
    assert function() == 1
    assert len(calls()) == 2
