"""A warm script is `python script.py`: the same program is run in a Worker and by an interpreter of its own."""

# ruff: noqa: E501 -- programs stand here as they run

import asyncio
import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pctx_sandbox
import pytest
from pctx_sandbox.errors import SandboxError
from pctx_sandbox.sandbubble import SandboxConfig, VirtualenvError, run_sandboxed, run_sandboxed_async
from pctx_sandbox.sandbubble import warm as warm_scripts
from pctx_sandbox.sandbubble.config import kernel_has_apparmor
from pctx_sandbox.sandbubble.virtualenv import inspect_virtualenv
from virtualenvs import interpreter_elsewhere, site_packages

pytestmark = pytest.mark.usefixtures("own_broker")


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    path = tmp_path_factory.mktemp("scripts") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def conf(venv):
    return SandboxConfig(venv_path=venv)


PROGRAMS = {
    "modules": "import sys; print(sorted(sys.modules))",
    "main": "print(sorted(globals())); print(__name__, __file__, __doc__, __spec__, __package__, __loader__.path)",
    "system": "import sys; print(sys.argv, sys.orig_argv, sys.flags, sys.path, sys.executable, sys.prefix, sys.base_prefix)",
    "streams": "import sys; print([(s.encoding, s.errors, s.line_buffering, s.name) for s in (sys.stdin, sys.stdout, sys.stderr)])",
    "environment": "import os; print(sorted(os.environ.items()), os.getcwd(), os.getuid(), os.listdir('/tmp'), os.umask(0))",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "signals": "import signal; print([signal.getsignal(s) for s in range(1, 32) if s not in (9, 19)], signal.pthread_sigmask(0, []))",
    "collector": "import gc, sys; print(gc.isenabled(), gc.get_threshold(), sys.dont_write_bytecode, sys.getrecursionlimit())",
    "limits": "import resource; print([resource.getrlimit(r) for r in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_STACK)])",
    "exit": "import sys; sys.exit(3)",
    "exit with words": "import sys; sys.exit('bad')",
    "exit with nothing": "raise SystemExit",
    "exit beyond a byte": "raise SystemExit(256 + 7)",
    "exit below zero": "raise SystemExit(-1)",
    "exit at once": "import os; print('x'); os._exit(9)",
    "exception": "def f():\n    1 / 0\n\nf()",
    "chain": "try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('x') from e",
    "syntax": "x = (1,\ny = 2",
    "indentation": "if 1:\npass",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\n1 / 0",
    "interrupt": "raise KeyboardInterrupt",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)",
    "segfault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "import os; os.abort()",
    "exit functions of a module that is gone": "import atexit, sys\natexit.register(print, 'bye')\ndel sys.modules['atexit']",
    "output of C": "import ctypes; ctypes.CDLL(None).printf(b'late')",
    "a class that is none": "class A:\n    @property\n    def __class__(self): raise ValueError\nkept = A()",
    "processes": "import os; print(sorted(name for name in os.listdir('/proc') if name.isdigit() and name != str(os.getpid())))",
    "exit functions": "import atexit\natexit.register(print, 'bye')\nprint('x')",
    "threads": "import threading, time\ndef f():\n    time.sleep(0.1); print('done')\nthreading.Thread(target=f).start(); print('main')",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start(); print('ok')",
    "finalizers": "class A:\n    def __del__(self): print('del')\na = A()\nprint('end')",
    "order": "import sys\nfor i in range(3): print('o', i); print('e', i, file=sys.stderr)",
    "bytes": "import sys; sys.stdout.buffer.write(b'\\xff\\xfe')",
    "text": "print('h\u00e9llo \u4f60')",
    "cookie": "# -*- coding: latin-1 -*-\nprint('x')",
    "annotations": "x: undefined = 1\nprint(1)",
    "closed": "import sys; sys.stdout.close()",
    "source": "import inspect\ndef f(): pass\nprint(inspect.getsource(f))",
    "warning": "import warnings; warnings.warn('w')",
    "asyncio": "import asyncio\nasync def m(): print('a')\nasyncio.run(m())",
    "callback": "import ctypes; print(ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)())",
    "fork": "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')",
    "pool": "import multiprocessing as m\ndef f(x): return x * 2\nif __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, [1, 2, 3]))",
    "spawn": "import multiprocessing as m\ndef f(x): return x * 2\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2, 3]))",
    "another": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.path, sys.prefix)'], capture_output=True, text=True))",
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_an_interpreter_of_its_own(name, conf):
    if name in ("closed",) and sys.version_info < (3, 11):
        pytest.skip("needs Python 3.11, whose words about a closed stream are compared")
    ends = []
    for warm in (True, False):
        res, _ = run_sandboxed(conf, code=PROGRAMS[name], args=["a"], timeout=300, warm=warm)
        ends.append((res.returncode, res.stdout, res.stderr))
    assert ends[0] == ends[1]


def test_the_outputs_can_be_opened_by_name(conf):
    code = "for name in ('stdout', 'stderr'): open(f'/dev/{name}', 'a').write(name)"
    for warm in (True, False):
        res, _ = run_sandboxed(conf, code=code, timeout=120, warm=warm)
        assert (res.returncode, res.stdout, res.stderr) == (0, "stdout", "stderr"), warm


def test_a_script_ends_where_no_other_process_may_be(conf):
    """Its memory is left to another process at the end, if there may be one."""
    for pids in (1, 2, 64):
        res, _ = run_sandboxed(conf, code="print('hi')", timeout=120, limits={"pids": pids})
        assert (res.returncode, res.stdout, res.outcome["kind"]) == (0, "hi\n", "exited"), pids


def test_what_is_compared_can_differ(conf):
    """The control: both ways do run, and a difference would show."""
    runs = [
        run_sandboxed(conf, code="import os; print(os.urandom(8))", timeout=120, warm=warm)[0]
        for warm in (1 > 0, 1 < 0)
    ]
    assert runs[0].stdout != runs[1].stdout and runs[0].returncode == runs[1].returncode == 0


def test_an_open_file_is_written_at_the_end(conf):
    """As at the end of any interpreter: what was not flushed is not lost, wherever the file is held."""
    code = """
import os, sys, threading
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(writing)
    while data := os.read(reading, 100): os.write(1, data)
    os._exit(0)
os.close(reading)
%s
"""
    for holder in (
        "kept = os.fdopen(writing, 'w'); kept.write('late')",
        "sys.kept = os.fdopen(writing, 'w'); sys.kept.write('late')",
        "class A: pass\na = A(); a.a = a; a.file = os.fdopen(writing, 'w'); a.file.write('late')",
    ):
        res, _ = run_sandboxed(conf, code=code % holder + "\nimport atexit\n", timeout=120)
        # The reader is killed with its box when the script ends, perhaps before it has read: then nothing is said.
        assert res.returncode == 0 and res.stdout in ("late", ""), res.stderr


def test_a_preloaded_module_is_there_and_nothing_else(conf, venv):
    (site_packages(venv) / "slowly.py").write_text("import os\nPID = os.getpid()\n")
    code = "import sys, os; print('slowly' in sys.modules, 'ctypes' in sys.modules); import slowly; print(slowly.PID == os.getpid())"
    res, _ = run_sandboxed(conf, code=code, timeout=120, preload=["slowly"])
    assert res.stdout == "True False\nFalse\n", res.stderr
    res, _ = run_sandboxed(conf, code=code, timeout=120)
    assert res.stdout == "False False\nTrue\n"
    # One that cannot be imported ahead is left to the script, which says why.
    res, _ = run_sandboxed(conf, code="import nowhere", timeout=120, preload=["nowhere"])
    assert "ModuleNotFoundError" in res.stderr and "run/pctx" not in res.stderr


def test_a_changed_virtualenv_is_seen_by_the_next_script(conf, venv):
    code = "import sys; print(getattr(sys, 'mark', None), __import__('importlib.util').util.find_spec('appeared') is not None)"
    site = site_packages(venv)
    seen = []
    for number in range(3):
        (site / "mark.pth").write_text(f"import sys; sys.mark = {number}{' ' * number}\n")
        if number == 2:
            (site / "appeared.py").write_text("")
        seen.append(run_sandboxed(conf, code=code, timeout=120)[0].stdout)
    (site / "mark.pth").unlink()
    (site / "appeared.py").unlink()
    seen.append(run_sandboxed(conf, code=code, timeout=120)[0].stdout)
    assert seen == ["0 False\n", "1 False\n", "2 True\n", "None False\n"]


def test_a_virtualenv_that_is_swapped_during_the_run(tmp_path):
    """The script goes on with what it was lent; the next one gets what is there then, or a clear sentence."""
    first, second = tmp_path / "v", tmp_path / "w"
    for path in (first, second):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
        (site_packages(path) / "whose.py").write_text(f"NAME = {path.name!r}\n")
    conf = SandboxConfig(venv_path=first)

    async def swapped(folder):
        call = asyncio.create_task(run_sandboxed_async(conf, code=WAITS, mnt_dir=folder, timeout=300))
        while not (folder / "begun").exists():
            assert not call.done(), call.result()
            await asyncio.sleep(0.01)
        first.rename(tmp_path / "old")
        second.rename(first)
        (folder / "go").write_text("")
        return (await call)[0]

    with tempfile.TemporaryDirectory() as folder:
        res = asyncio.run(swapped(Path(folder)))
    assert res.stdout == "v\n", res.stderr
    assert run_sandboxed(conf, code="import whose; print(whose.NAME)", timeout=300)[0].stdout == "w\n"
    shutil.rmtree(first)
    with pytest.raises(VirtualenvError, match="there is no virtualenv"):
        run_sandboxed(conf, code="1")


WAITS = """
import os, time
open('/mnt/begun', 'w').close()
while not os.path.exists('/mnt/go'): time.sleep(0.01)
import whose
print(whose.NAME)
"""


def test_scripts_share_nothing(conf):
    """What one leaves in files, modules, shared memory or processes, no other one finds."""
    leave = """
import os, sys, builtins, subprocess
sys.left = builtins.left = 1
for place in ('/tmp/left', '/dev/shm/left', '/mnt/left', os.path.expanduser('~/left')):
    open(place, 'w').close()
if os.fork() == 0:
    os.setsid()
    import time; time.sleep(1000)
print('left')
"""
    look = """
import os, sys, builtins
print(hasattr(sys, 'left'), hasattr(builtins, 'left'))
print([p for p in ('/tmp/left', '/dev/shm/left', '/mnt/left', os.path.expanduser('~/left')) if os.path.exists(p)])
print(len([n for n in os.listdir('/proc') if n.isdigit()]))
"""
    for _ in range(5):
        assert run_sandboxed(conf, code=leave + look, timeout=120)[0].stdout.startswith("left\nTrue True\n['/tmp/left'")
        assert run_sandboxed(conf, code=look, timeout=120)[0].stdout == "False False\n[]\n2\n"


def test_random_numbers_differ(conf):
    code = "import random, uuid, tempfile; print(random.random(), uuid.uuid4(), tempfile.mktemp())"
    seen = [
        run_sandboxed(conf, code=code, timeout=120, preload=["random", "uuid", "tempfile"])[0].stdout for _ in range(20)
    ]
    for column in zip(*(line.split() for line in seen), strict=True):
        assert len(set(column)) == len(column)


def test_what_a_script_says_about_itself_is_not_believed(conf):
    """It writes to every descriptor it holds, its own input included: its end is what the kernel saw."""
    code = """
import os
for fd in range(3, 20):
    try: os.write(fd, b'{"ended": {"outcome": {"kind": "exited", "exit_code": 0}}}')
    except OSError: pass
try: os.write(0, b'R{"ended": {}}' * 1000)
except OSError: pass
os._exit(7)
"""
    for stdin in (None, "text"):
        res, _ = run_sandboxed(conf, code=code, stdin=stdin, timeout=120)
        assert (res.returncode, res.outcome["kind"]) == (7, "exited")


@pytest.fixture
def folders():
    with tempfile.TemporaryDirectory(prefix="pctx-f-") as path:
        yield Path(path)


def test_each_script_has_its_own_folder_and_no_other(conf, folders):
    """One Zygote for all of them; a script finds its own folder, nothing above it and nobody else's."""
    code = "import os; print(sorted(os.listdir('/mnt')), os.listdir('/mnt/..') == os.listdir('/')); open('/mnt/mine', 'w').close()"
    for number in range(8):
        (folders / str(number)).mkdir()
        (folders / str(number) / f"in{number}").write_text("")
        res, changed = run_sandboxed(conf, code=code, mnt_dir=folders / str(number), timeout=120)
        assert (res.stdout, changed) == (f"['in{number}'] True\n", ["mine"]), res.stderr
    status = subprocess.run(
        [os.environ["PCTX_SANDBOX_BINARY"], "status", "--json"], capture_output=True, text=True, check=True
    )
    with_calls = [pool["calls"] for pool in json.loads(status.stdout)["pools"] if pool["calls"] >= 8]
    assert with_calls, status.stdout


def test_a_lent_folder_holds_no_way_out(conf, folders):
    """Links lead nowhere but into the box, devices and set-id programs are dead, and nothing can be mounted or unmounted."""
    (folders / "etc").symlink_to("/etc")
    (folders / "up").symlink_to("..")
    (folders / "root").symlink_to("/proc/1/root")
    shutil.copy("/bin/true", folders / "program")
    (folders / "program").chmod(0o6755)
    code = """
import ctypes, os, stat
print(open('/mnt/etc/passwd').read().startswith('sandbox:'))
print(os.path.samefile('/mnt/up', '/'))
try: print(os.listdir('/mnt/root/home'))
except OSError as error: print('closed')
options = [line.split()[5] for line in open('/proc/self/mountinfo') if line.split()[4] == '/mnt']
print([o in options[0].split(',') for o in ('rw', 'nosuid', 'nodev')], len(options))
libc = ctypes.CDLL(None, use_errno=True)
print(libc.umount2(b'/mnt', 2), libc.mount(b'none', b'/mnt', b'tmpfs', 0, None))
"""
    res, _ = run_sandboxed(conf, code=code, mnt_dir=folders, timeout=120)
    lines = res.stdout.splitlines()
    assert lines[0] == "True" and lines[1] == "True", res.stdout + res.stderr
    assert lines[2] in ("closed", "['sandbox']")
    assert lines[3:] == ["[True, True, True] 1", "-1 -1"]


LOOKS_AROUND = """
import os
SEEN, OPENED = [], []
for number in os.listdir('/proc'):
    if not number.isdigit() or int(number) == os.getpid(): continue
    try: SEEN.append(open(f'/proc/{number}/comm').read().strip())
    except OSError: continue
    for part, look in (('root/etc', os.listdir), ('cwd', os.listdir), ('fd', os.listdir), ('mem', open), ('ns/mnt', os.stat)):
        try: look(f'/proc/{number}/{part}'); OPENED.append((SEEN[-1], part))
        except OSError: pass
"""


def test_a_hostile_module_does_not_get_to_the_host_by_who_lends_folders(tmp_path, folders):
    """It is imported in the Zygote, where the process that sees the host's mounts has a pid."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    (site_packages(tmp_path / "v") / "looks.py").write_text(LOOKS_AROUND)
    code = "import sys, looks; print(looks.SEEN); print(looks.OPENED)"
    conf = SandboxConfig(venv_path=tmp_path / "v", preload=["looks"])
    res, _ = run_sandboxed(conf, code=code, mnt_dir=folders, timeout=120)
    seen, opened = res.stdout.splitlines()
    assert "pctx-binder" in seen, res.stdout + res.stderr  # the control: it was there to be found
    assert "pctx-binder" not in opened, opened


def test_a_folder_is_not_shown_to_the_next_script(conf, folders):
    run_sandboxed(conf, code="open('/mnt/left', 'w').close()", mnt_dir=folders, timeout=120)
    assert run_sandboxed(conf, code="import os; print(os.listdir('/mnt'))", timeout=120)[0].stdout == "[]\n"


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_virtualenv_below_a_home_shows_nothing_else_of_it(warm, home):
    project = home / f"project-{warm}"
    project.mkdir()
    (home / "secret").write_text("mine")
    python = interpreter_elsewhere(home / f"tools-{warm}")
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(project / "venv")], check=True)
    (project / "venv" / ".env").write_text("TOKEN=1")
    (project / "source.py").write_text("")
    (site_packages(project / "venv") / "own_package.py").write_text("NAME = 'own'\n")
    code = f"""
import os, sys, own_package
print(own_package.NAME, sys.prefix)
seen = set()
for top, folders, files in os.walk({str(home)!r}):
    seen.update(os.path.relpath(os.path.join(top, name), {str(home)!r}) for name in files)
print([name for name in seen if os.path.basename(name) in ('secret', '.env', 'source.py')])
print(any(name.endswith('own_package.py') for name in seen), any(name.endswith('/os.py') for name in seen))
try: open({str(project / "venv/bin/x")!r}, 'w')
except OSError as error: print(error.strerror)
"""
    res, _ = run_sandboxed(SandboxConfig(venv_path=project / "venv"), code=code, timeout=300, warm=warm)
    assert res.stdout == f"own {project / 'venv'}\n[]\nTrue True\nRead-only file system\n", res.stderr
    assert inspect_virtualenv(project / "venv").can_be_warm


def test_a_project_that_is_its_own_virtualenv_lends_its_parts_only(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "p")], check=True)
    (tmp_path / "p" / ".env").write_text("TOKEN=1")
    (tmp_path / "p" / "src").mkdir()
    code = "import os, sys; print(sorted(os.listdir(sys.prefix)))"
    res, _ = run_sandboxed(SandboxConfig(venv_path=tmp_path / "p"), code=code, timeout=120)
    assert set(eval(res.stdout)) <= {"bin", "lib", "lib64", "share", "etc", "pyvenv.cfg"}


def test_run_without_a_virtualenv(own_broker):
    res = pctx_sandbox.run(
        "import sys; print(sys.argv, sys.stdin.read()); sys.exit(4)", args=["x"], stdin="in", timeout=120
    )
    assert (res.stdout, res.stderr, res.returncode) == ("['/tmp/script.py', 'x'] in\n", "", 4)
    assert res.files.created == () and res.receipt["layers"]["network"]["on"]
    with tempfile.TemporaryDirectory() as folder:
        res = pctx_sandbox.run("open('/mnt/a', 'w').close()", mnt_dir=folder, timeout=120)
        assert res.files.created == ("a",) and res.changed == ["a"]
    # No package of the system's or the caller's is there.
    res = pctx_sandbox.run("import pytest", timeout=120)
    assert "ModuleNotFoundError" in res.stderr
    with pytest.raises(TypeError, match="takes a list"):
        pctx_sandbox.run("1", preload="os")


def test_a_named_profile_is_entered_or_told_about(venv, caplog):
    """One that is not loaded is an error where the kernel has AppArmor; elsewhere the script runs, and it is said."""
    conf = SandboxConfig(venv_path=venv, apparmor_profile_name="no_such_profile")
    if kernel_has_apparmor():
        with pytest.raises(SandboxError, match="no_such_profile"):
            run_sandboxed(conf, code="print(1)", timeout=60)
        return
    result, _ = run_sandboxed(conf, code="print(1)", timeout=60)
    assert result.stdout == "1\n"
    assert "without the profile 'no_such_profile'" in caplog.text
    assert not result.receipt["layers"]["apparmor"]["on"]


def test_variables_are_not_on_a_command_line(venv, pctx):
    """Others can read it. The control finds what is on it, the script."""
    conf = SandboxConfig(venv_path=venv, env={"SECRET": "pst-" + "x" * 8}, warm=False)
    lines = []

    def look():
        while not done.is_set():
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    lines.append(place.read_bytes())

    done = threading.Event()
    looking = threading.Thread(target=look)
    looking.start()
    res, _ = run_sandboxed(conf, code="import os, time; time.sleep(1); print(os.environ['SECRET'])", timeout=120)
    done.set()
    looking.join()
    assert res.stdout == "pst-xxxxxxxx\n"
    assert any(b"/tmp/script.py" in line for line in lines) and not any(b"pst-xxxxxxxx" in line for line in lines)


class HeldUp:
    """The caller's end of a Worker's socket, as of a caller that gets no processor after its first `send`."""

    def __init__(self, sock):
        self.sock, self.sent = sock, False

    def send(self, data, flags):
        if self.sent:
            ended = select.poll()
            ended.register(self.sock, 0)
            assert ended.poll(60_000), "the script ends by itself"
        self.sent = True
        return self.sock.send(data, flags)

    def __getattr__(self, name):
        return getattr(self.sock, name)


def test_a_script_that_ends_before_its_input_is_sent_runs_once(conf, tmp_path, monkeypatch):
    """It looked as if no Worker had read the script, and two more were asked to run it."""

    class Conversation(warm_scripts._Conversation):
        def __init__(self, connection, request):
            super().__init__(connection, request)
            self.lease.sock = HeldUp(self.lease.sock)
            held.append(self.lease.sock)

    held = []
    monkeypatch.setattr(warm_scripts, "_Conversation", Conversation)
    code = "open('/mnt/ran', 'a').write('x')"
    res, changed = run_sandboxed(conf, code=code, mnt_dir=str(tmp_path), stdin=b"y" * (4 << 20), timeout=300)
    assert (res.returncode, changed, len(held)) == (0, ["ran"], 1) and held[0].sent
    assert (tmp_path / "ran").read_text() == "x"


SENDERS = """
import os, socket, time
ready, told = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        for fd in (0, 1, 2): os.close(fd)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect(("127.0.0.1", {port}))
            os.write(told, b"x")
            while True:
                sender.send(repr(time.monotonic()).encode())
                time.sleep(0.0001)
for _ in range(8): os.read(ready, 1)
"""


def test_on_the_hosts_network_nothing_of_a_script_acts_after_its_end_is_told(conf):
    """What it left behind is killed with its box. On the host's network others would still hear of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        heard.bind(("127.0.0.1", 0))
        heard.setblocking(False)
        code = SENDERS.format(port=heard.getsockname()[1])
        for _ in range(12):
            assert run_sandboxed(conf, code=code, timeout=120)[0].returncode == 0
            told = time.monotonic()
            time.sleep(0.1)
            sent = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent.append(float(heard.recv(100)))
            assert sent and max(sent) < told, max(sent, default=None)
