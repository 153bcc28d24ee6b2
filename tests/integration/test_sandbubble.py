"""run_sandboxed, as the third seed writes it: its examples, its arguments, what it refuses and in which words."""

# ruff: noqa: E501 -- programs stand here as they run

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from pctx_sandbox.errors import SandboxStartupError
from pctx_sandbox.sandbubble import (
    ConfigurationError,
    SandboxConfig,
    VirtualenvError,
    get_default_sandbox_config,
    run_sandboxed,
    run_sandboxed_async,
)
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("own_broker")

BOTH = pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    path = tmp_path_factory.mktemp("sandbubble") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def conf(venv):
    return SandboxConfig(venv_path=venv)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="agent_io_") as path:
        yield Path(path)


# --- the seed's examples, as they stand there -------------------------------------------------------------------------

SNIPPET = """
from sandbox import get_default_sandbox_config, run_sandboxed

conf = get_default_sandbox_config()

res, _files = run_sandboxed(conf, code="print('hello from sandbox')", timeout=5)

print(res.returncode)
print(res.stdout)
print(res.stderr)
"""

WRITABLE = """
import tempfile
from pathlib import Path
from sandbox import get_default_sandbox_config, run_sandboxed

conf = get_default_sandbox_config()

with tempfile.TemporaryDirectory(prefix="agent_io_") as host_dir:
    res, changed = run_sandboxed(
        conf,
        code="open('/mnt/out.txt','w').write('result\\\\n')",
        mnt_dir=host_dir,
        timeout=5,
    )

    print("rc:", res.returncode)
    print("changed files:", changed)
    print("host out:", (Path(host_dir) / "out.txt").read_text())
"""

SCRIPT = """
import tempfile
from pathlib import Path
from sandbox import get_default_sandbox_config, run_sandboxed

conf = get_default_sandbox_config()

with tempfile.TemporaryDirectory(prefix="agent_io_") as host_dir:
    p = Path(host_dir) / "code.py"
    p.write_text("print('script ran')\\n")

    res, changed = run_sandboxed(conf, script_path="/mnt/code.py", mnt_dir=host_dir, timeout=5)

    print(res.stdout)              # "script ran\\n"
    print("changed files:", changed)   # the script file itself is excluded by design
"""

NO_NETWORK = """
from sandbox import SandboxConfig, run_sandboxed

conf = SandboxConfig(
    venv_path="/path/to/venv",
    apparmor_profile_name="my_sandbox_profile",
    enable_network=False,
)

res, _ = run_sandboxed(conf, code="import socket; socket.getaddrinfo('example.com', 80)")
print("rc:", res.returncode)   # non-zero: networking is off
"""

# The seed's five seconds are for an idle machine.
EXAMPLES = {
    "snippet": (SNIPPET, "0\nhello from sandbox\n\n\n"),
    "writable": (WRITABLE, "rc: 0\nchanged files: ['out.txt']\nhost out: result\n\n"),
    "script": (SCRIPT, "script ran\n\nchanged files: []\n"),
    "no network": (NO_NETWORK, "rc: 1\n"),
}


def python_path(tree):
    return f"{tree / 'python'}:{os.environ.get('PYTHONPATH', '')}"


def as_a_program(example, venv, tree):
    text = example.replace("from sandbox import", "from pctx_sandbox.sandbubble import").replace(
        "/path/to/venv", str(venv)
    )
    env = {**os.environ, "CODEEXEC_SANDBOX_VENV": str(venv), "PYTHONPATH": python_path(tree)}
    return text.replace("timeout=5", "timeout=60"), env


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_seed(name, venv, tree, skip_unless):
    example, expected = EXAMPLES[name]
    skip_unless(
        not ("AA_PROFILE" in example or os.path.exists("/sys/kernel/security/apparmor/profiles")),
        "a kernel without AppArmor: with it the profile must be installed first, see tests/vm",
    )
    text, env = as_a_program(example, venv, tree)
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=300)
    warned = (
        "this kernel has no AppArmor, or it is switched off: "
        "scripts run without the profile 'my_sandbox_profile' (the other layers hold)\n"
    )
    assert (done.stdout, done.stderr) == (expected, warned if "my_sandbox_profile" in example else "")


REACHES = """
import socket
for name in ("a.test", "b.test"):
    try: socket.create_connection((name, 80), timeout=60).close(); print(name, end=" ")
    except OSError: pass
"""
RESOLVES = "import socket; print(socket.getaddrinfo('a.test', 80)[0][4][0])"


@BOTH
def test_network_is_the_hosts_own_by_default_and_its_names_too(warm, venv, tree, world):
    """The positive control of the seed's network example: the same call with the network on, a name of our own DNS."""
    program = f"""
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed
for options in ({{}}, {{"enable_network": False}}, {{"allow_network": ["a.test"]}}):
    conf = SandboxConfig(venv_path={str(venv)!r}, warm={warm}, **options)
    for code in ({RESOLVES!r}, {REACHES!r}):
        res, _ = run_sandboxed(conf, code=code, timeout=120)
        print(res.returncode, res.stdout.strip(), flush=True)
"""
    world.names({"a.test": {"A": ["5.5.5.5"]}, "b.test": {"A": ["5.5.5.5"]}})
    # The world has a network of its own, so it needs a Broker of its own.
    with tempfile.TemporaryDirectory(prefix="pctx-n-", dir="/tmp") as place:
        env = {**os.environ, "PYTHONPATH": python_path(tree), "PCTX_SANDBOX_SOCKET": f"{place}/s"}
        done = world.run(sys.executable, "-c", program, env=env, timeout=300)
        world.run(os.environ["PCTX_SANDBOX_BINARY"], "stop", env=env)
    assert done.returncode == 0, done.stderr
    # The host's network reaches both, none reaches neither, the list reaches what it names, at an address of its own.
    host, none, listed = (done.stdout.splitlines()[at : at + 2] for at in (0, 2, 4))
    assert host == ["0 5.5.5.5", "0 a.test b.test"] and none == ["1 ", "0 "]
    assert listed[0].startswith("0 ") and listed[1] == "0 a.test", done.stdout


# --- what comes back --------------------------------------------------------------------------------------------------


@BOTH
def test_result_and_its_files(warm, conf, folder):
    (folder / "old").write_text("1")
    (folder / "gone").write_text("1")
    (folder / "code.py").write_text("import helper\nopen('/mnt/code.py', 'a').write('# me')")
    (folder / "helper.py").write_text(
        "import os\nopen('/mnt/new', 'w').write('x')\nopen('/mnt/old', 'w').write('22')\n"
        "os.remove('/mnt/gone')\nos.symlink('/etc/passwd', '/mnt/link')\nos.makedirs('/mnt/a/b')\n"
        "open('/mnt/a/b/c', 'w').close()\n"
    )
    res, changed = run_sandboxed(conf, script_path="/mnt/code.py", mnt_dir=folder, timeout=120, warm=warm)
    assert res.returncode == 0, res.stderr
    assert changed == ["a/b/c", "new", "old"]
    assert res.files.created == ("a/b/c", "new") and res.files.modified == ("old",)
    assert res.files.deleted == ("gone",)
    assert [entry.path for entry in res.files.skipped] == ["link"]
    assert res.receipt["layers"]["seccomp"]["on"] and not res.truncated


@BOTH
def test_passwd_is_synthetic(warm, conf):
    res, _ = run_sandboxed(conf, code="print(open('/etc/passwd').read())", timeout=120, warm=warm)
    assert res.stdout.startswith("sandbox:x:1000:1000:") and "root:" not in res.stdout
    assert "root:" in Path("/etc/passwd").read_text()


@BOTH
def test_without_a_folder_mnt_is_ephemeral(warm, conf):
    code = "import os; print(os.listdir('/mnt')); open('/mnt/x', 'w').write('1'); print(os.listdir('/mnt'))"
    for _ in range(2):
        res, changed = run_sandboxed(conf, code=code, timeout=120, warm=warm)
        assert (res.stdout, changed) == ("[]\n['x']\n", [])


@BOTH
def test_undecodable_output_is_replaced_and_kept_raw(warm, conf):
    code = "import sys; sys.stdout.buffer.write(b'a\\xff\\n'); sys.stderr.buffer.write(b'\\xfe')"
    res, _ = run_sandboxed(conf, code=code, timeout=120, warm=warm)
    assert (res.stdout, res.stderr) == ("a\ufffd\n", "\ufffd")
    assert (res.stdout_bytes, res.stderr_bytes) == (b"a\xff\n", b"\xfe")


@BOTH
def test_output_without_end_is_cut(warm, conf):
    code = "import os\nwhile True: os.write(1, b'x' * (1 << 20))"
    res, _ = run_sandboxed(conf, code=code, timeout=300, warm=warm, limits={"output_mb": 2})
    assert res.truncated and len(res.stdout) == 2 << 20
    assert res.outcome["kind"] == "output_limit" and res.returncode == -9


@BOTH
def test_timeout_raises_with_what_was_printed(warm, conf):
    code = "import time\nprint('begun')\ntime.sleep(1000)"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_sandboxed(conf, code=code, timeout=8, warm=warm)
    assert caught.value.timeout == 8 and caught.value.output == "begun\n" and caught.value.stderr == ""


@BOTH
def test_limits_bind(warm, conf):
    code = "x = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"
    res, _ = run_sandboxed(conf, code=code, timeout=300, warm=warm, limits={"memory_mb": 64})
    assert res.returncode != 0
    fine, _ = run_sandboxed(conf, code=code, timeout=300, warm=warm)
    assert fine.returncode == 0, fine.stderr


@BOTH
def test_standard_input_and_arguments(warm, conf):
    data = "".join(f"{number}\n" for number in range(200_000))
    code = "import sys; print(sys.argv[1:], sum(map(int, sys.stdin)))"
    res, _ = run_sandboxed(conf, code=code, args=["a b", "", "ü"], stdin=data, timeout=300, warm=warm)
    assert res.stdout == f"['a b', '', 'ü'] {sum(range(200_000))}\n"
    res, _ = run_sandboxed(conf, code="import sys; print(repr(sys.stdin.read()))", timeout=120, warm=warm)
    assert res.stdout == "''\n"
    # One that reads nothing of it is not held up.
    res, _ = run_sandboxed(conf, code="print(1)", stdin=b"x" * (4 << 20), timeout=300, warm=warm)
    assert res.stdout == "1\n"


@BOTH
def test_cancelling_kills_the_box(warm, conf, folder):
    code = "import time\nopen('/mnt/begun', 'w').close()\nwhile True:\n    open('/mnt/beat', 'w').close(); time.sleep(0.01)"

    async def main():
        call = run_sandboxed_async(conf, code=code, mnt_dir=folder, warm=warm)
        task = asyncio.create_task(call)
        await wait_for(lambda: (folder / "begun").exists())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def wait_for(condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    async def silent():
        """Whether nothing beats any more: a file that is removed does not come back."""
        for _ in range(1000):
            (folder / "beat").unlink(missing_ok=True)
            await asyncio.sleep(0.1)
            if not (folder / "beat").exists():
                return True
        return False

    asyncio.run(main())
    assert asyncio.run(silent())


def test_many_at_once(conf):
    async def main():
        calls = [run_sandboxed_async(conf, code=f"print({number})", timeout=300) for number in range(12)]
        return [res.stdout for res, _ in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [f"{number}\n" for number in range(12)]


def test_killed_caller_takes_its_box_along(venv, tree, folder):
    code = "import os, time\nopen('/mnt/begun', 'w').close()\nwhile True:\n    open('/mnt/beat', 'w').close(); time.sleep(0.01)"
    program = f"""
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed
run_sandboxed(SandboxConfig(venv_path={str(venv)!r}, warm=False), code={code!r}, mnt_dir={str(folder)!r})
"""
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": python_path(tree)})
    wait_until((folder / "begun").exists)
    process.kill()
    process.wait()
    wait_until(lambda: silent(folder / "beat"))


def silent(path):
    path.unlink(missing_ok=True)
    time.sleep(0.1)
    return not path.exists()


# --- what is refused, and in which words ------------------------------------------------------------------------------


def test_default_configuration(venv, monkeypatch):
    monkeypatch.delenv("CODEEXEC_SANDBOX_VENV", raising=False)
    with pytest.raises(ConfigurationError, match="CODEEXEC_SANDBOX_VENV is not set"):
        get_default_sandbox_config()
    monkeypatch.setenv("CODEEXEC_SANDBOX_VENV", str(venv))
    monkeypatch.setenv("CODEEXEC_SANDBOX_AA_PROFILE_NAME", "mine")
    found = get_default_sandbox_config()
    assert (str(found.venv_path), found.apparmor_profile_name, found.enable_network) == (str(venv), "mine", True)


def test_exactly_one_of_code_and_script(conf, folder):
    (folder / "code.py").write_text("")
    with pytest.raises(ValueError, match="both are given"):
        run_sandboxed(conf, code="", script_path="/mnt/code.py", mnt_dir=folder)
    with pytest.raises(ValueError, match="neither is given"):
        run_sandboxed(conf, mnt_dir=folder)


def test_folder_outside_the_temporary_one(conf, folder, monkeypatch):
    link = folder / "link"
    link.symlink_to("/usr/share")
    for place in ("/usr/share", link, folder / ".." / ".." / "usr", "/"):
        with pytest.raises(ValueError, match="outside the temporary folder"):
            run_sandboxed(conf, code="1", mnt_dir=place)
    with pytest.raises(ValueError, match="is not a folder"):
        run_sandboxed(conf, code="1", mnt_dir=folder / "missing")
    # $TMPDIR counts, also when it changes.
    (folder / "tmp" / "work").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    res, changed = run_sandboxed(
        conf, code="open('/mnt/x', 'w').close()", mnt_dir=folder / "tmp" / "work", timeout=120, warm=False
    )
    assert (res.returncode, changed) == (0, ["x"])


def test_script_paths(conf, folder):
    (folder / "code.py").write_text("print(1)")
    (folder / "link.py").symlink_to("code.py")
    (folder / "out.py").symlink_to("/etc/passwd")
    (folder / "sub").mkdir()
    (folder / "way").symlink_to("sub")
    (folder / "sub" / "code.py").write_text("import sys; print(sys.path[0], __file__)")
    for path in ("/mnt/link.py", "/mnt/out.py", "/mnt/way/code.py"):
        with pytest.raises(ValueError, match="is a link"):
            run_sandboxed(conf, script_path=path, mnt_dir=folder)
    for path in ("/etc/passwd", "code.py", "/mnt", "/mnt/../etc/passwd", "/mnt//code.py", str(folder / "code.py")):
        with pytest.raises(ValueError, match="does not lie under /mnt"):
            run_sandboxed(conf, script_path=path, mnt_dir=folder)
    with pytest.raises(ValueError, match="is not a file"):
        run_sandboxed(conf, script_path="/mnt/sub", mnt_dir=folder)
    with pytest.raises(FileNotFoundError, match="there is no script /mnt/none.py"):
        run_sandboxed(conf, script_path="/mnt/none.py", mnt_dir=folder)
    with pytest.raises(ValueError, match="needs mnt_dir"):
        run_sandboxed(conf, script_path="/mnt/code.py")
    res, _ = run_sandboxed(conf, script_path="/mnt/sub/code.py", mnt_dir=folder, timeout=120)
    assert res.stdout == "/mnt/sub /mnt/sub/code.py\n"


def test_null_bytes(conf, folder):
    for bad in (
        {"code": "print(1)\0"},
        {"code": "1", "args": ["a\0b"]},
        {"code": "1", "mnt_dir": "/tmp/\0"},
        {"script_path": "/mnt/a\0.py", "mnt_dir": folder},
    ):
        with pytest.raises(ValueError, match="null byte"):
            run_sandboxed(conf, **bad)


def test_wrong_kinds_and_values(conf):
    for bad, kind, words in (
        ({"code": b"1"}, TypeError, "code takes the text"),
        ({"code": "\ud800"}, ValueError, "UTF-8"),
        ({"code": "1", "timeout": 0}, ValueError, "more than 0"),
        ({"code": "1", "timeout": "5"}, TypeError, "number of seconds"),
        ({"code": "1", "args": "abc"}, TypeError, "list of strings"),
        ({"code": "1", "args": [1]}, TypeError, "args takes strings"),
        ({"code": "1", "stdin": 5}, TypeError, "text or bytes"),
        ({"code": "1", "limits": {"memory": 5}}, ValueError, "is not known"),
        ({"code": "1", "limits": {"memory_mb": 1}}, ValueError, "too small"),
        ({"code": "1", "preload": "pandas"}, TypeError, "takes a list"),
        ({"code": "1", "preload": ["os;x"]}, ValueError, "names of modules"),
    ):
        with pytest.raises(kind, match=words):
            run_sandboxed(conf, **bad)
    with pytest.raises(ValueError, match="leave one of them out"):
        SandboxConfig(venv_path="/x", enable_network=False, allow_network=["a.test"])
    with pytest.raises(TypeError, match="SandboxConfig"):
        run_sandboxed("/path", code="1")


def test_virtualenvs_that_are_none(tmp_path, venv):
    def refused(path, words):
        with pytest.raises(VirtualenvError, match=words) as caught:
            run_sandboxed(SandboxConfig(venv_path=path), code="1")
        assert isinstance(caught.value, ValueError) and "hint: " in str(caught.value)

    refused(tmp_path / "missing", "there is no virtualenv")
    (tmp_path / "plain").mkdir()
    refused(tmp_path / "plain", "has no pyvenv.cfg")
    broken = tmp_path / "broken"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(broken)], check=True)
    (broken / "bin" / "python").unlink()
    refused(broken, "has no bin/python")
    (broken / "bin" / "python").symlink_to("/nowhere/python3.99")
    refused(broken, "is not there any more")
    (broken / "bin" / "python").unlink()
    (broken / "bin" / "python").write_text("#!/bin/sh\n")
    refused(broken, "is no program")
    config = (venv / "pyvenv.cfg").read_text()
    (broken / "pyvenv.cfg").write_text("home = /usr/bin\n")
    refused(broken, "names no Python version")
    (broken / "pyvenv.cfg").write_text(config.replace("version = 3.", "version = 3.9"))
    refused(broken, "was made for Python 3.9")
    (broken / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 2.7.1\n")
    refused(broken, "is of Python 2.7")


def test_interpreter_that_does_not_start_is_said(tmp_path, venv):
    """A virtualenv that looks whole and whose interpreter is a program, but no Python."""
    odd = tmp_path / "odd"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(odd)], check=True)
    (odd / "bin" / "python").unlink()
    shutil.copy("/bin/true", odd / "bin" / "python")
    with pytest.raises(SandboxStartupError, match="the Zygote ended"):
        run_sandboxed(SandboxConfig(venv_path=odd), code="print(1)", timeout=120)


# --- folders that are hard to list ------------------------------------------------------------------------------------


def test_more_files_than_can_be_listed(conf, folder):
    """As a million would be: past the limit the list is partial and says so, and costs neither memory nor for ever."""
    code = "import os\nfor i in range(105_000): os.close(os.open(f'/mnt/{i}', os.O_CREAT))"
    res, changed = run_sandboxed(conf, code=code, mnt_dir=folder, timeout=600)
    assert res.returncode == 0, res.stderr
    assert res.files.incomplete and 0 < len(changed) <= 100_000


def test_a_file_that_changes_while_it_is_collected(conf, folder):
    stop = threading.Event()
    (folder / "busy").write_text("")

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            (folder / "busy").write_text("x" * (number % 1000))
            (folder / "fresh").write_text(str(number))
            os.replace(folder / "fresh", folder / f"moved{number % 50}")

    # The script lasts until the writer has had a turn: on a busy machine that may take longer than the call would.
    code = """
import os, time
before = os.stat("/mnt/busy").st_mtime_ns
open("/mnt/out", "w").write("1")
while os.stat("/mnt/busy").st_mtime_ns == before:
    time.sleep(0.001)
"""
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            res, changed = run_sandboxed(conf, code=code, mnt_dir=folder, timeout=120)
            assert res.returncode == 0 and "busy" in changed
        assert (folder / "out").read_text() == "1"
    finally:
        stop.set()
        writer.join()
