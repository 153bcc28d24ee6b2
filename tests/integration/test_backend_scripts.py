"""`run_sandboxed` and `pctx_sandbox.run` over all backends: a script ends the same way whatever makes its box."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pctx_sandbox
import pytest
from pctx_sandbox.sandbubble import ConfigurationError, SandboxConfig, run_sandboxed, run_sandboxed_async

pytestmark = pytest.mark.usefixtures("each_backend")
# For what must end by itself: as long as the slowest machine takes to make a box.
LONG = 120


def make_virtualenv(path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    return make_virtualenv(tmp_path_factory.mktemp("scripts") / "venv")


@pytest.fixture(scope="module")
def conf(venv):
    return SandboxConfig(venv_path=venv, enable_network=False)


@pytest.fixture(params=["warm", "cold"])
def warm(request):
    return request.param == "warm"


@pytest.fixture
def work():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def site_packages(venv):
    return next(Path(venv).glob("lib/python*/site-packages"))


# --- what goes in and comes out ---------------------------------------------------------------------------------------


def test_streams_arguments_and_status(conf, warm):
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); print('err', file=sys.stderr); sys.exit(7)"
    result, changed = run_sandboxed(conf, code, args=["a", "b c"], stdin="words é", timeout=LONG, warm=warm)
    assert (result.stdout, result.stderr, result.returncode) == ("['a', 'b c'] words é\n", "err\n", 7)
    assert changed == [] and result.outcome["kind"] == "exited"


def test_an_exception_is_a_traceback_and_a_signal_is_negative(conf, warm):
    result, _ = run_sandboxed(conf, "def f():\n    1 / 0\n\nf()", timeout=LONG, warm=warm)
    assert result.returncode == 1 and result.stderr.endswith("ZeroDivisionError: division by zero\n")
    result, _ = run_sandboxed(conf, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", timeout=LONG, warm=warm)
    assert result.returncode == -15


def test_files_go_in_and_changes_come_back(conf, work, warm):
    (work / "in.txt").write_text("from the host")
    (work / "old").write_text("old")
    (work / "gone").write_text("gone")
    (work / "code.py").write_text(
        "import os\n"
        "os.makedirs('made/deep')\n"
        "open('made/deep/out', 'w').write(open('/mnt/in.txt').read().upper())\n"
        "open('old', 'w').write('newer')\n"
        "os.unlink('gone')\n"
        "os.symlink('/etc/passwd', 'link')\n"
    )
    result, changed = run_sandboxed(conf, script_path="/mnt/code.py", mnt_dir=work, timeout=LONG, warm=warm)
    assert (result.returncode, result.stderr) == (0, "")
    assert changed == ["made/deep/out", "old"]
    assert (result.files.created, result.files.modified) == (("made/deep/out",), ("old",))
    assert result.files.deleted == ("gone",) and [skipped.path for skipped in result.files.skipped] == ["link"]
    assert (work / "made/deep/out").read_text() == "FROM THE HOST" and (work / "old").read_text() == "newer"
    assert not (work / "gone").exists()
    assert (work / "made/deep/out").stat().st_uid == os.geteuid()


def test_one_script_sees_what_the_one_before_left(conf, work, warm):
    code = "n = int(open('n').read()) + 1; open('n', 'w').write(str(n)); print(n)"
    (work / "n").write_text("0")
    seen = [run_sandboxed(conf, code, mnt_dir=work, timeout=LONG, warm=warm)[0].stdout for _ in range(3)]
    assert seen == ["1\n", "2\n", "3\n"] and (work / "n").read_text() == "3"


def test_scripts_run_beside_each_other(conf):
    """Folders of their own at the same time, and one folder for several: each write comes back."""
    with tempfile.TemporaryDirectory() as shared, tempfile.TemporaryDirectory() as top:
        failed = []

        def run(number):
            folder = shared if number % 2 else os.path.join(top, str(number))
            os.makedirs(folder, exist_ok=True)
            code = f"open('file-{number}', 'w').write('{number}')"
            result, changed = run_sandboxed(conf, code, mnt_dir=folder, timeout=LONG)
            if result.returncode != 0 or Path(folder, f"file-{number}").read_text() != str(number):
                failed.append((number, result, changed))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert sorted(os.listdir(shared)) == [f"file-{number}" for number in (1, 3, 5, 7)]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_time_is_bounded_and_what_was_printed_is_kept(conf, work, warm):
    """A busy machine may need more than a second until the script begins; then it gets more."""
    code = "print('before', flush=True); open('/mnt/left', 'w').close(); import time; time.sleep(600)"
    for seconds in (1, 4, 16, 64):
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            run_sandboxed(conf, code, mnt_dir=work, timeout=seconds, warm=warm)
        if (work / "left").exists():
            break
    assert caught.value.stdout == "before\n" and (work / "left").exists()


@pytest.mark.parametrize(
    "limits, code",
    [
        ({"memory_mb": 128}, "bytearray(1 << 30)"),
        ({"disk_mb": 4}, "open('/tmp/large', 'wb').write(bytes(64 << 20))"),
        ({"pids": 8}, "import os, time\nfor _ in range(64):\n    os.fork() or time.sleep(60)"),
        ({"output_mb": 1}, "while True: print('x' * 1000)"),
        ({"cpu_time_sec": 1}, "while True: pass"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_limit_binds(conf, warm, limits, code):
    assert run_sandboxed(conf, "print(1)", limits=limits, timeout=LONG, warm=warm)[0].stdout == "1\n"
    result, _ = run_sandboxed(conf, code, limits=limits, timeout=LONG, warm=warm)
    assert result.returncode != 0
    assert result.truncated == ("output_mb" in limits) and len(result.stdout_bytes) <= 1 << 20


def test_a_cancelled_script_ends(conf, work):
    async def main():
        code = "import os, time; open('/mnt/started', 'w').close()\ntime.sleep(600)"
        task = asyncio.ensure_future(run_sandboxed_async(conf, code, mnt_dir=work))
        await asyncio.sleep(1)  # whether it runs by then or waits for its box: it ends
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), LONG))
    assert run_sandboxed(conf, "print(1)", mnt_dir=work, timeout=LONG)[0].stdout == "1\n"


# --- the network ------------------------------------------------------------------------------------------------------


def test_without_a_list_there_is_no_network(conf, warm):
    code = "import socket; print(socket.create_connection(('192.0.2.1', 80), timeout=5))"
    result, _ = run_sandboxed(conf, code, timeout=LONG, warm=warm)
    assert result.returncode == 1 and result.receipt["layers"]["network"]["on"]


def test_the_hosts_own_network_is_there_or_refused_before_the_run(venv, each_backend, warm):
    conf = SandboxConfig(venv_path=venv)
    if each_backend == "namespaces":
        assert run_sandboxed(conf, "print(1)", timeout=LONG, warm=warm)[0].stdout == "1\n"
        return
    with pytest.raises(ConfigurationError, match=r"enable_network=True.*\nhint: .*allow_network"):
        run_sandboxed(conf, "print(1)", timeout=LONG, warm=warm)


# --- virtualenvs ------------------------------------------------------------------------------------------------------


def test_packages_come_from_the_virtualenv(venv, conf, warm):
    module = site_packages(venv) / "of_the_virtualenv.py"
    for words in ("first", "second"):
        module.write_text(f"words = {words!r}\n")
        result, _ = run_sandboxed(conf, "import of_the_virtualenv as m; print(m.words)", timeout=LONG, warm=warm)
        assert result.stdout == f"{words}\n", result.stderr
    code = "import of_the_virtualenv as m; open(m.__file__, 'a').write('changed')"
    result, _ = run_sandboxed(conf, code, timeout=LONG, warm=warm)
    assert result.returncode == 1 and "of_the_virtualenv.py'" in result.stderr.splitlines()[-1]
    assert module.read_text() == "words = 'second'\n"
    module.unlink()


def test_a_virtualenv_is_found_wherever_it_lives_and_shows_nothing_beside_it(warm):
    """Below a home that holds other things too; what is made anew at the same path is another one."""
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix="pctx-t-") as home:
        os.chmod(home, 0o755)
        Path(home, "secret").write_text("of the host")
        conf = SandboxConfig(venv_path=f"{home}/venv", enable_network=False)
        code = f"import os, sys, own; print(own.words, os.listdir({home!r}) if os.path.exists({home!r}) else [])"
        for words in ("first", "second"):
            shutil.rmtree(f"{home}/venv", ignore_errors=True)
            make_virtualenv(f"{home}/venv")
            (site_packages(f"{home}/venv") / "own.py").write_text(f"words = {words!r}\n")
            result, _ = run_sandboxed(conf, code, timeout=LONG, warm=warm)
            assert result.stdout.split(" ", 1)[0] == words, result.stderr
            assert "secret" not in result.stdout


def test_modules_are_there_before_the_script(conf):
    result, _ = run_sandboxed(conf, "import sys; print('decimal' in sys.modules)", preload=["decimal"], timeout=LONG)
    assert result.stdout == "True\n"
    assert run_sandboxed(conf, "import sys; print('decimal' in sys.modules)", timeout=LONG)[0].stdout == "False\n"


def test_a_snippet_without_a_virtualenv(each_backend, work, warm):
    result = pctx_sandbox.run("import sys; print(sys.argv[1:], sys.stdin.read())", args=["x"], stdin="in", warm=warm)
    assert (result.stdout, result.stderr) == ("['x'] in\n", "")
    result = pctx_sandbox.run("open('/mnt/a', 'w').close()", mnt_dir=work, timeout=LONG, warm=warm)
    assert result.changed == ["a"] and (work / "a").exists()
    assert result.receipt["backend"]["name"] == each_backend
    assert "ModuleNotFoundError" in pctx_sandbox.run("import pytest", timeout=LONG, warm=warm).stderr


def test_a_snippet_with_dependencies(warm):
    result = pctx_sandbox.run("import six; print(six.text_type.__name__)", ["six"], timeout=LONG, warm=warm)
    assert result.stdout == "str\n", result.stderr


def test_nothing_is_left_in_the_place_of_copies(conf, work):
    run_sandboxed(conf, "open('/mnt/a', 'w').close()", mnt_dir=work, timeout=LONG)
    place = Path(os.environ["PCTX_SANDBOX_SOCKET"] + ".podman/lent")
    assert [path.name for path in place.glob("script-*")] == []
