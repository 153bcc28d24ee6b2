"""Sandboxed functions as Celery tasks: in a real worker with processes of its own, over a queue in a folder."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("celery", reason="needs celery")

pytestmark = pytest.mark.usefixtures("own_broker")

APP = """
import os
from celery import Celery
from pctx_sandbox import sandbox

folder = {folder!r}
app = Celery("tasks", broker="filesystem://", backend="file://" + folder + "/results")
app.conf.broker_transport_options = {{
    "data_folder_in": folder + "/queue", "data_folder_out": folder + "/queue", "control_folder": folder + "/control",
}}

@app.task
@sandbox
def inside(number):
    import os
    return [number * number, os.getuid(), os.getcwd()]

@sandbox
def helper(number):
    return number + 1

@app.task
def around(number):
    return [helper(number), os.getpid()]
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """The module of the tasks, with a worker of two processes that serves them."""
    for name in ("queue", "results", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "sandboxed_tasks.py").write_text(textwrap.dedent(APP.format(folder=str(tmp_path))))
    monkeypatch.syspath_prepend(tmp_path)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "sandboxed_tasks", "worker", "--pool", "prefork", "--concurrency", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "C_FORCE_ROOT": "1"},
        stdout=(tmp_path / "log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    import sandboxed_tasks

    yield sandboxed_tasks
    worker.terminate()
    worker.wait(60)
    sys.modules.pop("sandboxed_tasks", None)


def test_tasks_run_in_boxes(tasks):
    results = [tasks.inside.delay(n) for n in range(4)]
    values = [result.get(timeout=120) for result in results]
    assert [value[0] for value in values] == [0, 1, 4, 9]
    assert {value[2] for value in values} != {os.getcwd()}  # not where the worker is


def test_tasks_call_sandboxed_functions_in_forked_processes(tasks):
    values = [result.get(timeout=120) for result in [tasks.around.delay(n) for n in range(8)]]
    assert [value[0] for value in values] == list(range(1, 9))
    assert os.getpid() not in {value[1] for value in values}
