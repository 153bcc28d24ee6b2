"""Workers that wait before anybody asks: one pool for each set of dependencies, and a new Worker for every call."""

import json
import os
import re
import shutil
import subprocess
import tempfile

import pytest
from pctx_sandbox import DependencyInstallError, sandbox
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("own_broker")


@sandbox
def square(n):
    return n * n


def status(program):
    return json.loads(subprocess.run([program, "status", "--json"], capture_output=True).stdout)


def pools(program):
    return status(program)["pools"]


def test_the_first_call_starts_the_broker_and_later_calls_find_it(sandbox_bin):
    assert square(3) == 9
    first = status(sandbox_bin)["pid"]
    assert square(4) == 16
    assert status(sandbox_bin)["pid"] == first


def test_workers_wait_before_anybody_asks(sandbox_bin):
    square(1)
    assert wait_until(lambda: pools(sandbox_bin)[0]["waiting"] >= 1)


def test_every_call_has_a_worker_of_its_own(sandbox_bin):
    @sandbox
    def who():
        return os.getpid(), os.readlink("/proc/self/ns/pid")

    seen = [who() for _ in range(10)]
    assert len(set(seen)) == 10
    (pool,) = pools(sandbox_bin)
    assert pool["forked"] >= pool["calls"] >= 10


def test_each_policy_has_a_pool_of_its_own(sandbox_bin):
    square(1)
    before = len(pools(sandbox_bin))
    assert sandbox(memory_mb=300)(abs)(-1) == 1
    assert len(pools(sandbox_bin)) == before + 1


def test_the_broker_gives_way_to_callers_and_workers_do_not(sandbox_bin):
    @sandbox
    def policy():
        return os.sched_getscheduler(0)

    assert policy() == os.SCHED_OTHER
    assert os.sched_getscheduler(status(sandbox_bin)["pid"]) == os.SCHED_BATCH


def test_stop_ends_it_and_the_next_call_starts_another(sandbox_bin):
    square(1)
    first = status(sandbox_bin)["pid"]
    assert subprocess.run([sandbox_bin, "stop"], capture_output=True).returncode == 0
    assert status(sandbox_bin) == {"running": False}
    assert square(5) == 25
    assert status(sandbox_bin)["pid"] != first


def test_the_example_of_the_readme_gives_what_it_says(tree):
    (code,) = re.findall(r"^```python\n(.*?)^```$", (tree / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    definition, _, call = code.rpartition("\n\n")
    expression, _, expected = call.partition("  # → ")
    space = {"__name__": "readme"}
    exec(compile(definition, "README.md", "exec"), space)
    try:
        assert repr(eval(expression, space)) == expected.strip()
    except DependencyInstallError as error:
        pytest.skip(f"needs an index that has pandas: {error}")
    (pool,) = [pool for pool in status(os.environ["PCTX_SANDBOX_BINARY"])["pools"] if pool["preloaded"]]
    assert pool["preloaded"] == ["pandas"]


@pytest.fixture
def small_broker(sandbox_bin, monkeypatch, tmp_path_factory):
    """serve(*options) starts a Broker of the test's own with these options."""
    from pctx_sandbox import _broker

    folder = tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp")
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", f"{folder}/s")
    _broker.close_all()

    def serve(*options):
        subprocess.run([sandbox_bin, "serve", *options], check=True, capture_output=True)

    yield serve
    _broker.close_all()
    subprocess.run([sandbox_bin, "stop"], capture_output=True)
    shutil.rmtree(folder)


def test_a_pool_that_nobody_uses_gives_way(sandbox_bin, small_broker):
    small_broker("--max-workers", "2")
    assert square(2) == 4
    # All that there may be: one waits for anybody, one for the next call of this program.
    assert wait_until(lambda: [pool["waiting"] + pool["busy"] for pool in pools(sandbox_bin)] == [2])

    @sandbox(memory_mb=300, queue_timeout_sec=30)
    def another():
        return "had room"

    assert another() == "had room"
    assert square(3) == 9  # and the first one comes back


def test_a_memory_budget_keeps_pools_small_and_calls_going(sandbox_bin, small_broker):
    small_broker("--memory-budget", "1M")
    assert status(sandbox_bin)["memory_budget"] == 1 << 20
    assert [square(n) for n in range(6)] == [n * n for n in range(6)]
    # One Worker is more than this budget; without it two would wait, and one more for the next call of this program.
    assert wait_until(lambda: [pool["making"] for pool in pools(sandbox_bin)] == [0])
    (pool,) = pools(sandbox_bin)
    assert pool["waiting"] + pool["making"] + pool["busy"] <= 2


@pytest.mark.parametrize("size", ["0", "much", "-1G"])
def test_a_budget_that_is_none_is_refused(sandbox_bin, small_broker, size):
    refused = subprocess.run([sandbox_bin, "serve", "--memory-budget", size], capture_output=True, text=True)
    assert refused.returncode == 125
    assert "--memory-budget" in refused.stderr
