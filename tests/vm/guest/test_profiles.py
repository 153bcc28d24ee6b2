"""The AppArmor profile of one virtualenv: written, installed by the printed lines, entered, and what it refuses."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from boxes import SLOW, VENV, with_own_broker

pytestmark = [pytest.mark.vm, pytest.mark.root_only, pytest.mark.venv]

NAME = "vm_profile"
FILE = Path("/etc/apparmor.d") / NAME
LIMIT = 60 * max(1, SLOW / 4)
MOUNT = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), ctypes.get_errno())
"""


def remove_profile():
    if FILE.exists():
        subprocess.run(["apparmor_parser", "--remove", str(FILE)], capture_output=True)
        FILE.unlink()


@pytest.fixture
def program(binary):
    def run(*words, **options):
        done = subprocess.run([binary, *words], capture_output=True, text=True, timeout=LIMIT, **options)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def installed(program, tmp_path):
    """Installed by the very lines that the program prints."""
    status, lines, _ = program("apparmor", "install-commands", "--name", NAME, "--venv", VENV)
    assert status == 0
    assert f"cp {NAME}.apparmor {FILE}" in lines and f"apparmor_parser -r {FILE}" in lines
    subprocess.run(["sh", "-ec", lines], cwd=tmp_path, check=True)
    yield
    remove_profile()


def test_a_profile_that_is_not_there_is_shown_with_its_lines_and_nothing_runs(program, box):
    remove_profile()
    status, shown, said = program("apparmor", "status", "--name", NAME, "--venv", VENV)
    assert status == 1 and f"{NAME} is not installed" in said
    assert f"profile {NAME} " in shown and f"apparmor_parser -r {FILE}" in shown
    refused = box("--apparmor", NAME, "--", "true")
    assert refused.status == 125 and f"{NAME} is not loaded" in refused.stderr, refused
    status, _, said = program("selfcheck", "--apparmor-profile", NAME)
    assert status == 1 and f"{NAME} is not loaded" in said


def test_the_installed_profile_is_entered_and_named(program, box, installed):
    assert program("apparmor", "status", "--name", NAME, "--venv", VENV)[0] == 0
    ended = box("--venv", VENV, "--apparmor", NAME, "--", "cat", "/proc/self/attr/current")
    assert ended.stdout.strip("\0\n") == f"{NAME} (enforce)", ended
    assert ended.layer("apparmor") == {"on": True, "detail": f"{NAME} (enforce)"}


def test_a_path_that_is_not_named_is_refused(box, installed, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("seen")
    lend = ("--ro", f"{tmp_path / 'data'}:/data")
    assert box(*lend, "--", "cat", "/data").stdout == "seen"  # the control
    ended = box(*lend, "--apparmor", NAME, "--", "cat", "/data")
    assert ended.status == 1 and "Permission denied" in ended.stderr, ended


def test_mounting_is_refused_by_the_profile_itself(box, installed):
    """In a box other layers refuse it before AppArmor is asked, so root tries under the profile alone: EACCES is 13."""
    mount = ["unshare", "--mount", "--", "python3", "-c", MOUNT]
    outside = subprocess.run(mount, capture_output=True, text=True)
    assert outside.stdout.split() == ["0", "0"], outside  # the control: nothing else stops root
    mount[3:3] = ["aa-exec", "-p", NAME, "--"]
    confined = subprocess.run(mount, capture_output=True, text=True)
    assert confined.stdout.split() == ["-1", "13"], confined
    assert box("--apparmor", NAME, "--", "python3", "-c", MOUNT).stdout.split() == ["-1", "1"]


def test_every_day_work_is_allowed(box, installed, tmp_path):
    tmp_path.chmod(0o755)
    folder = tmp_path / "lent"  # the report lies beside it
    folder.mkdir()
    folder.chmod(0o777)  # before 5.12 the guest's uid writes it as everybody does
    code = (
        "import multiprocessing, sqlite3, ssl, subprocess, tempfile, threading\n"
        "subprocess.run(['id', '-u'], check=True)\n"
        "open('/mnt/out', 'w').write('x'); tempfile.TemporaryFile().write(b'x')\n"
        "sqlite3.connect('/mnt/db').execute('create table t (a)')\n"
        "thread = threading.Thread(target=print, args=['thread']); thread.start(); thread.join()\n"
    )
    ended = box("--mnt", folder, "--venv", VENV, "--apparmor", NAME, "--", f"{VENV}/bin/python", "-c", code)
    assert ended.status == 0 and (folder / "out").read_text() == "x", ended


@pytest.mark.parametrize("user", ["root", "tester"])
def test_pandas_of_a_virtualenv_runs_confined(user, binary, installed, tmp_path):
    if not list(Path(VENV).glob("lib/python3*/site-packages/pandas")):
        pytest.skip("needs a package index while the machine's image is made (pandas in its virtualenv)")
    script = Path(tempfile.mkdtemp(dir="/var/tmp")) / "sum.py"  # where tester may read it
    script.parent.chmod(0o755)
    script.write_text(
        "import pandas, sys\n"
        "label = open('/proc/self/attr/current').read().strip(chr(0) + chr(10))\n"
        "print(pandas.DataFrame({'a': [1, 2]}).a.sum(), sys.prefix, label)\n"
    )
    try:
        line = f"{binary} run -q --venv {VENV} --apparmor {NAME} --timeout 600s {script}"
        done = subprocess.run(["su", "-l", user, "-c", line], capture_output=True, text=True, timeout=4 * LIMIT)
    finally:
        shutil.rmtree(script.parent)
    assert done.stdout.split() == ["3", VENV, NAME, "(enforce)"], done.stderr


def test_a_profile_that_only_complains_counts_for_nothing(box, installed, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("seen")
    command = ("--ro", f"{tmp_path / 'data'}:/data", "--apparmor", NAME, "--", "cat", "/data")
    assert box(*command).status == 1  # the control: enforced, it refuses
    subprocess.run(["apparmor_parser", "--replace", "--Complain", str(FILE)], check=True)
    ended = box(*command)
    assert ended.stdout == "seen" and "in complain mode" in ended.stderr, ended
    assert ended.layer("apparmor") == {"on": False, "detail": f"{NAME} (complain)"}
    refused = box("--require", "apparmor", "--apparmor", NAME, "--", "true")
    assert refused.status == 125 and "complain" in refused.stderr, refused


@pytest.mark.parametrize("user", ["root", "tester"])
def test_the_self_check_holds_confined_and_fails_without_the_profile(user, binary, installed):
    def check():
        line = f"{binary} selfcheck --json --extra --venv {VENV} --apparmor-profile {NAME}"
        done = subprocess.run(["su", "-l", user, "-c", line], capture_output=True, text=True, timeout=4 * LIMIT)
        return done.returncode, json.loads(done.stdout)

    status, found = check()
    verdicts = {finding["name"]: finding["verdict"] for finding in found["findings"]}
    assert status == 0 and found["ok"], found
    assert verdicts["apparmor"] == "held" and verdicts["virtualenv"] == "held"
    assert found["layers"]["apparmor"]["detail"] == f"{NAME} (enforce)"
    remove_profile()
    status, found = check()
    assert status == 1 and not found["ok"] and f"{NAME} is not loaded" in found["error"]["message"]


def test_a_changed_file_is_shown_as_a_difference(program, installed):
    FILE.write_text(FILE.read_text().replace("  deny mount,\n", "", 1))
    question = ("apparmor", "status", "--name", NAME, "--venv", VENV)
    status, shown, said = program(*question)
    assert status == 1 and "+   deny mount," in shown and f"{FILE} is not what this engine" in said
    assert program(*question, "--ignore-profile-diffs")[0] == 0


CALLER = """
abi <abi/3.0>,
profile vm_caller flags=(attach_disconnected, mediate_deleted) {{
  file, network, unix, signal, ptrace, capability, mount, remount, umount, pivot_root,
  {rule}
}}
"""


@pytest.fixture
def caller(tmp_path):
    """caller(rule) loads a profile for whoever starts us."""
    file = tmp_path / "vm_caller"

    def load(rule):
        file.write_text(CALLER.format(rule=rule))
        subprocess.run(["apparmor_parser", "--replace", str(file)], check=True)
        return ["aa-exec", "-p", "vm_caller", "--"]

    yield load
    subprocess.run(["apparmor_parser", "--remove", str(file)], capture_output=True)


def test_what_confines_the_caller_goes_on_confining(box, installed, caller):
    prefix = caller(f"change_profile -> &{NAME},")
    ended = box("--apparmor", NAME, "--", "cat", "/proc/self/attr/current", prefix=prefix)
    assert ended.status == 0, ended
    assert set(ended.stdout.strip("\0\n").removesuffix(" (enforce)").split("//&")) == {"vm_caller", NAME}
    assert "vm_caller" in ended.layer("apparmor")["detail"]


def test_a_caller_that_may_not_enter_the_profile_runs_nothing(box, installed, caller):
    ended = box("--apparmor", NAME, "--", "true", prefix=caller(""))
    assert ended.status == 125 and f"{NAME} cannot be entered" in ended.stderr, ended
    assert "change_profile" in ended.stderr


def test_named_hosts_are_reached_confined(networked, installed):
    """cgroup v2, the profile and the relay of an allow-list together."""
    report = networked(
        'tell([get("http://a.test/x"), open("/proc/self/attr/current").read()])',
        "allow:a.test",
        *("--apparmor", NAME, "--timeout", "300s"),
        timeout=LIMIT,
    )
    assert report["value"][0]["host"] == "a.test"
    assert report["value"][1].startswith(f"{NAME} (enforce)")
    assert report["receipt"]["network"]["attempts_recorded"]  # by sockets that whoever makes the box must be allowed
    assert report["receipt"]["limits"]["memory"]["by"] == "cgroup v2"


SCRIPT = """
import json, sys
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed
conf = SandboxConfig(sys.argv[1], sys.argv[2], enable_network=False)
code = "import sys; print(open('/proc/self/attr/current').read().strip(chr(0) + chr(10)), sys.prefix)"
warm = run_sandboxed(conf, code=code)[0]
cold = run_sandboxed(conf, code=code, warm=False)[0]
print(json.dumps([warm.stdout.split(), cold.stdout.split(), warm.stderr + cold.stderr]))
"""


def test_scripts_run_confined_warm_and_cold(installed, binary, tmp_path):
    script = tmp_path / "calls.py"
    script.write_text(SCRIPT)
    environment = with_own_broker(binary, tmp_path)
    try:
        done = subprocess.run(
            [sys.executable, str(script), VENV, NAME], env=environment, capture_output=True, text=True, timeout=600
        )
    finally:
        subprocess.run([binary, "stop"], env=environment, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    warm, cold, errors = json.loads(done.stdout)
    assert warm == [f"{NAME}-zygote", "(enforce)", VENV], errors
    assert cold == [NAME, "(enforce)", VENV], errors
