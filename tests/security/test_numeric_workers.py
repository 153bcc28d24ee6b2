"""Packages with threads and random states of their own: imported once, before the fork, and still each call's own."""

import collections
import json
import os
import subprocess

import pytest
from pctx_sandbox import DependencyInstallError, sandbox

pytestmark = pytest.mark.usefixtures("own_broker")

NUMERIC = ["numpy", "pandas", "scikit-learn"]
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def look_around():
    import sys

    loaded = sorted({"numpy", "pandas", "sklearn"} & sys.modules.keys())  # before anything here imports them
    import numpy
    from sklearn.linear_model import LinearRegression
    from threadpoolctl import threadpool_info

    x = numpy.arange(20.0).reshape(-1, 1)
    return {
        "loaded": loaded,
        "slope": float(LinearRegression().fit(x, 3 * x.ravel()).coef_[0]),
        "threads": sorted({pool["num_threads"] for pool in threadpool_info()}),
    }


@sandbox(dependencies=NUMERIC)
def numpy_state():
    import numpy

    return {
        "legacy": numpy.random.random(),
        "integers": numpy.random.randint(2**62),
        "generator": float(numpy.random.default_rng().random()),
    }


@pytest.fixture(scope="module")
def seen():
    try:
        return sandbox(dependencies=NUMERIC)(look_around)()
    except DependencyInstallError as error:
        pytest.skip(f"needs an index that has {', '.join(NUMERIC)}: {error}")


def test_they_are_imported_before_the_call(seen):
    assert seen["loaded"] == ["numpy", "pandas", "sklearn"]
    assert abs(seen["slope"] - 3) < 1e-9
    assert seen["threads"] == [1]
    status = json.loads(
        subprocess.run([os.environ["PCTX_SANDBOX_BINARY"], "status", "--json"], capture_output=True).stdout
    )
    (pool,) = [pool for pool in status["pools"] if pool["preloaded"]]
    assert sorted(pool["preloaded"]) == ["numpy", "pandas", "sklearn"]


def test_a_call_with_more_cpus_has_more_threads_and_the_same_imports(seen, skip_unless):
    """On a host with many CPUs as on one: a Zygote imports with one thread, and the call raises it."""
    skip_unless(len(os.sched_getaffinity(0)) > 1, "two CPUs")
    wide = sandbox(dependencies=NUMERIC, cpus=2)(look_around)()
    assert wide["loaded"] == seen["loaded"]
    assert wide["threads"] == [2]


def test_a_variable_of_the_callers_is_kept(seen):
    held = sandbox(dependencies=NUMERIC, cpus=2, env=dict.fromkeys(VARIABLES, "1"))(look_around)()
    assert held["threads"] == [1]


def test_numpy_never_repeats_itself_over_100_workers(seen):
    states = [numpy_state() for _ in range(100)]
    for source in ("legacy", "integers", "generator"):
        repeated = [value for value, times in collections.Counter(s[source] for s in states).items() if times > 1]
        assert not repeated, f"{source} repeated: {repeated}"


def test_control_a_plain_fork_repeats_numpys_numbers(seen):
    @sandbox(dependencies=NUMERIC)
    def two_forks():
        import os

        import numpy

        numpy.random.random()
        read, write = os.pipe()
        for _ in range(2):
            if os.fork() == 0:
                os.write(write, repr(numpy.random.random()).encode() + b" ")
                os._exit(0)
            os.wait()
        return os.read(read, 200).split()

    first, second = two_forks()
    assert first == second


def test_two_versions_of_pandas_in_one_program(seen):
    def version():
        import pandas

        return pandas.__version__, int(pandas.DataFrame({"a": [1, 2]}).a.sum())

    older = sandbox(dependencies=["pandas==2.2.2"])(version)
    newer = sandbox(dependencies=["pandas==2.2.3"])(version)
    assert [older(), newer(), older()] == [("2.2.2", 3), ("2.2.3", 3), ("2.2.2", 3)]
