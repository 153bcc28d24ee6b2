"""Whoever calls first starts the Broker of all callers: what binds this one, or is odd about it, stays its own."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest
from pctx_sandbox import sandbox
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed

EVERYWHERE = sorted(os.sched_getaffinity(0))

# A caller of its own: what it is bound by, and what one of its calls sees.
CALLER = """
import json, os, resource, sys
from pctx_sandbox import SandboxError, sandbox

def traits():
    import ctypes, os, resource
    persona = ctypes.CDLL(None).personality(0xFFFFFFFF)
    space = resource.getrlimit(resource.RLIMIT_AS)
    return [sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0), space[0], persona]

try:
    called = sandbox(cpus=int(sys.argv[1]), queue_timeout_sec=60)(traits)()
except SandboxError as error:
    called = str(error)
print(json.dumps([traits(), called]))
"""


@pytest.fixture
def call(sandbox_bin, tree):
    """call(*prefix) makes one call in a new process behind this prefix: its own traits, and those of the call."""
    folder = tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp")
    paths = [str(tree / "python"), *(path for path in sys.path if path)]
    own = {"PCTX_SANDBOX_SOCKET": f"{folder}/s", "PCTX_SANDBOX_BINARY": sandbox_bin, "PYTHONPATH": ":".join(paths)}
    env = os.environ | own

    def run(*prefix, **options):
        command = [*prefix, sys.executable, "-c", CALLER, str(len(EVERYWHERE))]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    yield run
    subprocess.run([sandbox_bin, "stop"], env=env, capture_output=True)
    shutil.rmtree(folder)


def test_its_processors_bind_no_call(call, skip_unless):
    skip_unless(len(EVERYWHERE) > 1, "two processors")
    own, called = call("taskset", "-c", str(EVERYWHERE[0]))
    assert own[0] == EVERYWHERE[:1]  # the control: it is bound
    assert called[0] == call()[1][0] == EVERYWHERE


@pytest.mark.root_only
def test_its_niceness_binds_no_call(call):
    own, called = call("nice", "-n", "15")
    assert own[1] >= 15
    assert called[1] == call()[1][1] == 0


def test_its_soft_limits_bind_no_call(call):
    soft = 8 << 30
    own, called = call(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY)))
    assert own[2] == soft
    assert called[2] == call()[1][2] == resource.RLIM_INFINITY


def test_its_persona_is_no_calls(call, skip_unless):
    """Without random addresses an attack on one Worker works on all."""
    skip_unless(
        subprocess.run(["setarch", "-R", "true"]).returncode == 0, "a host that lets a process choose a persona"
    )
    no_randomization = 0x0040000
    own, called = call("setarch", "-R")
    assert own[3] & no_randomization
    assert called[3] == call()[1][3] == 0


def test_one_with_too_few_descriptors_is_told_so_and_starts_none(call):
    _, called = call(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
    assert "needs 256 open files, and the hard limit here is 40" in called and "hint: raise it" in called
    assert isinstance(call()[1], list)  # the next one has a Broker that serves


def test_one_that_blocks_signals_starts_a_broker_that_serves(call):
    every = signal.valid_signals()
    _, called = call(preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, every))
    assert isinstance(called, list), called


def ignore_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def test_one_that_ignores_its_children_is_served_and_so_are_others(call):
    _, called = call(preexec_fn=ignore_children)
    assert isinstance(called, list), called
    assert isinstance(call()[1], list)


@pytest.mark.parametrize("words", [["run", "-q", "--timeout", "60s", "--", "sh", "-c", "exit 7"], ["doctor"]])
def test_a_command_of_one_that_ignores_its_children_ends_as_any_other(pctx, words):
    ignored = pctx(*words, preexec_fn=ignore_children)
    assert ignored.returncode == pctx(*words).returncode == {"run": 7}.get(words[0], 0)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_script_of_one_that_ignores_its_children_is_reported_as_any_other(own_broker, virtualenv, warm):
    conf = SandboxConfig(venv_path=virtualenv)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(ChildProcessError):  # the control: nobody learns how a child has ended
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        ended, _ = run_sandboxed(conf, code="print(7); raise SystemExit(3)", timeout=120, warm=warm)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (ended.returncode, ended.stdout) == (3, "7\n")


@pytest.fixture(scope="module")
def virtualenv(tmp_path_factory):
    path = tmp_path_factory.mktemp("first-caller") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path


def test_workers_may_use_every_processor(own_broker, virtualenv, skip_unless):
    """What makes them begins where the Broker is not. Nothing of that is left for a call, as nothing is for a `run`."""
    skip_unless(len(EVERYWHERE) > 1, "two processors")

    @sandbox(cpus=len(EVERYWHERE))
    def where():
        return sorted(os.sched_getaffinity(0))

    assert [where() for _ in range(4)] == [EVERYWHERE] * 4
    conf = SandboxConfig(venv_path=virtualenv, limits={"cpus": len(EVERYWHERE)})
    code = "import os; print(sorted(os.sched_getaffinity(0)), sorted(os.sched_getaffinity(1)))"
    for _ in range(4):
        assert run_sandboxed(conf, code=code, timeout=120)[0].stdout == f"{EVERYWHERE} {EVERYWHERE}\n"


def test_where_calls_are_pinned_they_are_spread(own_broker, sandbox_bin, skip_unless):
    """Without cgroups a CPU limit binds by pinning: each call to as many as it may have, not all to the same."""
    skip_unless(len(EVERYWHERE) > 1, "two processors")
    seen = subprocess.run([sandbox_bin, "run", "-q", "--json", "--", "true"], capture_output=True, text=True)
    bound_by = json.loads(seen.stdout)["receipt"]["limits"]["cpus"]["by"]
    skip_unless(bound_by == "pinning", f"a host where CPUs are bound by pinning; here it is {bound_by}")

    @sandbox(cpus=1)
    def where():
        return sorted(os.sched_getaffinity(0))

    look = [sandbox_bin, "run", "-q", "--cpus", "1", "--", "python3", "-c"]
    look.append("import os; print(*os.sched_getaffinity(0))")
    called = [where() for _ in range(24)]
    run = [list(map(int, subprocess.run(look, capture_output=True, text=True).stdout.split())) for _ in range(24)]
    for cpus in (called, run):
        assert all(len(each) == 1 for each in cpus), cpus
        assert len({each[0] for each in cpus}) > 1, cpus
