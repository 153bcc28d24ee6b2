"""The self-check: what it tries, that it can fail, and what deploy scripts get from it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# One sentence for each property that a box promises; whatever is added later is welcome.
BASE = {
    *("host-file", "host-folder", "lent-file", "environment", "descriptors", "loopback", "abstract-socket"),
    *("signal", "processes", "trace", "user-namespace", "mount", "rights", "system-calls", "shared-memory"),
    *("set-uid", "memory", "processes-limit", "disk", "output", "time", "daemon", "next-run"),
}
EXTRA = {"clone3", "other-memory", "sockets", "posix-memory", "file-handle", "chroot", "session-keys", "cpu-time"}
LIMIT = 300


def verdicts(found):
    return {finding["name"]: finding["verdict"] for finding in found["findings"]}


@pytest.fixture(scope="module")
def closed(pctx):
    return pctx("selfcheck", "--json", timeout=LIMIT)


@pytest.fixture(scope="module")
def opened(pctx):
    return pctx("selfcheck", "--open", "--extra", "--json", timeout=LIMIT)


def test_everything_holds_here(closed):
    found = closed.json()
    assert closed.returncode == 0 and found["ok"], found
    assert set(verdicts(found).values()) == {"held"}
    assert verdicts(found).keys() >= BASE
    assert found["held"] == len(found["findings"]) and found["failed"] == found["blind"] == 0


def test_an_open_box_fails_every_probe(opened):
    """The control: a probe that cannot fail shows nothing."""
    found = opened.json()
    assert opened.returncode == 1 and not found["ok"]
    assert set(verdicts(found).values()) == {"failed"}, found
    assert verdicts(found).keys() >= BASE | EXTRA


def test_the_extended_suite_adds_to_the_base(pctx):
    done = pctx("selfcheck", "--extra", "--json", timeout=LIMIT)
    found = done.json()
    assert done.returncode == 0, found
    assert verdicts(found).keys() >= BASE | EXTRA


def test_what_was_tried_and_what_stopped_it_stand_on_one_line(pctx):
    done = pctx("selfcheck", timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("held")}
    assert lines.keys() >= BASE
    assert "No such file or directory" in lines["host-file"] and "the box's own root" in lines["host-file"]
    assert done.stdout.splitlines()[-1].startswith(f"all {len(lines)} properties hold here")


def test_a_failure_is_loud(pctx):
    done = pctx("selfcheck", "--open", timeout=LIMIT)
    assert done.returncode == 1
    assert "FAILED  host-file" in done.stdout and "SELF-CHECK FAILED" in done.stderr


def test_what_is_not_promised_is_named_and_does_not_count(pctx, closed):
    """On the host's own network nothing keeps a guest from the host's services."""
    done = pctx("selfcheck", "--json", "--network", "host", timeout=LIMIT)
    found = done.json()
    absent = {each["name"] for each in found["absent"]}
    assert done.returncode == 0, found
    assert {"loopback", "abstract-socket"} <= absent and "loopback" not in verdicts(found)
    assert "loopback" in verdicts(closed.json())  # the control


def test_a_layer_that_is_asked_for_and_missing_fails(pctx, skip_unless):
    found = pctx("selfcheck", "--json", timeout=LIMIT).json()
    missing = [name for name, layer in found["layers"].items() if not layer["on"]]
    skip_unless(missing, "a host that lacks an optional layer")
    done = pctx("selfcheck", "--json", "--require", missing[0], timeout=LIMIT)
    assert done.returncode == 1 and missing[0] in done.json()["error"]["message"]


def test_a_named_profile_that_is_not_loaded_fails(pctx):
    done = pctx("selfcheck", "--apparmor-profile", "pctx_nobody_loaded_this", timeout=LIMIT)
    assert done.returncode == 1
    assert "SELF-CHECK FAILED" in done.stderr and "pctx_nobody_loaded_this" in done.stderr


def test_a_virtualenv_is_checked_too(pctx, virtualenv):
    done = pctx("selfcheck", "--json", "--venv", virtualenv, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(done.json())["virtualenv"] == "held"


def test_no_such_virtualenv_is_one_sentence(pctx, tmp_path):
    done = pctx("selfcheck", "--venv", tmp_path / "none")
    assert done.returncode == 125
    assert "there is no virtualenv" in done.stderr and "hint: " in done.stderr


def test_nothing_is_left_behind(pctx, tmp_path, closed):
    os.chmod(tmp_path, 0o755)
    assert closed.returncode == 0
    done = pctx("selfcheck", timeout=LIMIT, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


# --- `python -m pctx_sandbox.sandbubble`, and the files that stand for it ---


@pytest.fixture
def command(sandbox_bin, tree):
    """command(program, *words, **variables) runs a Python program that finds the package and the engine."""

    def run(*words, limit=LIMIT, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CODEEXEC_")}
        paths = [str(tree / "python"), *(path for path in sys.path if path)]
        kept |= {"PCTX_SANDBOX_BINARY": sandbox_bin, "PYTHONPATH": ":".join(paths)}
        return subprocess.run(
            [sys.executable, *map(str, words)],
            env=kept | variables,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=limit,
        )

    return run


MODULE = ("-m", "pctx_sandbox.sandbubble")


def no_apparmor():
    try:
        return not Path("/sys/module/apparmor/parameters/enabled").read_text().startswith("Y")
    except OSError:
        return True


@pytest.fixture
def without_apparmor(skip_unless):
    skip_unless(no_apparmor, "a kernel without AppArmor; with it tests/vm/guest/test_profiles.py has the claims")


def test_the_command_checks_the_virtualenv_of_the_environment(command, virtualenv, without_apparmor):
    done = command(*MODULE, CODEEXEC_SANDBOX_VENV=virtualenv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "properties hold here" in done.stdout and "held " not in done.stdout
    shown = command(*MODULE, "--verbose", "--disable-network", CODEEXEC_SANDBOX_VENV=virtualenv)
    assert shown.returncode == 0 and "held virtualenv: " in shown.stdout and "held loopback: " in shown.stdout


@pytest.mark.parametrize("lone", ["--venv", "--apparmor-profile-name"])
def test_a_lone_option_is_ignored_with_one_line(command, virtualenv, lone, without_apparmor):
    done = command(*MODULE, lone, "/nowhere", CODEEXEC_SANDBOX_VENV=virtualenv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith(f"{lone} is ignored without ")]
    assert len(done.stderr.splitlines()) == 1


def test_nothing_set_is_one_clear_error(command):
    done = command(*MODULE)
    assert done.returncode == 1 and "CODEEXEC_SANDBOX_VENV is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_both_options_together_name_the_profile(command, virtualenv, without_apparmor):
    done = command(*MODULE, "--venv", virtualenv, "--apparmor-profile-name", "my_sandbox_profile")
    assert done.returncode == 1 and "this kernel has no AppArmor" in done.stderr


def test_a_broken_virtualenv_is_one_clear_error(command, tmp_path):
    (tmp_path / "pyvenv.cfg").write_text("home = /nowhere\n")
    done = command(*MODULE, "--venv", tmp_path, "--apparmor-profile-name", "x")
    assert done.returncode == 1 and "is broken" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def exported(pctx, tmp_path):
    done = pctx("sandbubble", "export", tmp_path / "project")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "project").iterdir()} == {"sandbox.py", "sandbox_extra_tests.py"}
    return tmp_path / "project"


def test_the_exported_file_is_the_command(command, exported, virtualenv, without_apparmor):
    done = command(exported / "sandbox.py", "--extra-tests", "--verbose", CODEEXEC_SANDBOX_VENV=virtualenv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held clone3: " in done.stdout and done.stderr == ""


def test_without_its_companion_the_base_suite_runs_and_says_so(command, exported, virtualenv, without_apparmor):
    (exported / "sandbox_extra_tests.py").unlink()
    done = command(exported / "sandbox.py", "--extra-tests", "--verbose", CODEEXEC_SANDBOX_VENV=virtualenv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held host-file: " in done.stdout and "clone3" not in done.stdout
    assert "sandbox_extra_tests.py is not beside sandbox.py" in done.stderr


def test_the_exported_file_can_be_imported(command, exported, virtualenv, without_apparmor):
    code = (
        "from sandbox import get_default_sandbox_config, run_sandboxed, SandboxConfig\n"
        "res, _files = run_sandboxed(get_default_sandbox_config(), code=\"print('hello from sandbox')\", warm=False)\n"
        "print(res.returncode, res.stdout)\n"
    )
    (exported / "user.py").write_text(code)
    done = command(exported / "user.py", CODEEXEC_SANDBOX_VENV=virtualenv)
    assert done.stdout == "0 hello from sandbox\n\n", done.stderr


def test_an_export_overwrites_nothing(pctx, exported):
    assert pctx("sandbubble", "export", exported).returncode == 0  # the same again
    (exported / "sandbox.py").write_text("mine")
    done = pctx("sandbubble", "export", exported)
    assert done.returncode == 125 and "already there" in done.stderr
    assert (exported / "sandbox.py").read_text() == "mine"


# --- `run --venv`, and the profile that belongs to it ---


def test_a_run_has_the_virtualenv_and_cannot_change_it(pctx, virtualenv, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import sys; print(sys.prefix); open(sys.prefix + '/new', 'w')")
    tmp_path.chmod(0o755)
    done = pctx("run", "-q", "--venv", virtualenv, script)
    assert done.returncode == 1 and "Read-only file system" in done.stderr, done.stderr
    assert done.stdout.strip() in (str(virtualenv), "/run/virtualenv")
    assert not (Path(virtualenv) / "new").exists()


def test_a_virtualenv_and_packages_exclude_each_other(pctx, virtualenv):
    done = pctx("run", "--venv", virtualenv, "--with", "x", "-")
    assert done.returncode == 125 and "--venv has its own packages" in done.stderr


def test_the_profile_names_the_virtualenv_and_no_more(pctx, virtualenv):
    done = pctx("apparmor", "profile", "--name", "mine", "--venv", virtualenv)
    assert done.returncode == 0, done.stderr
    assert "profile mine flags=" in done.stdout and "profile mine-zygote flags=" in done.stdout
    payload, launch = done.stdout.split("profile mine-launch flags=")
    assert "  mount,\n" in launch and "  change_profile -> mine,\n" in launch
    rules = [line.strip() for line in payload.splitlines()]
    assert "/usr/** mrix," in rules and "file," not in rules and "deny mount," in rules
    assert [rule for rule in rules if rule.endswith("/lib/** mrix,")]
    assert not [rule for rule in rules if rule.startswith("/home/** ") or rule.startswith("/** ")]


def test_the_status_of_a_profile_that_is_not_there(pctx, virtualenv):
    done = pctx("apparmor", "status", "--json", "--name", "pctx_nobody_loaded_this", "--venv", virtualenv)
    status = json.loads(done.stdout)
    assert done.returncode == 1 and not status["ready"] and status["installed"] == "not there"
    lines = status["install_commands"].splitlines()
    assert lines[-2].endswith("cp pctx_nobody_loaded_this.apparmor /etc/apparmor.d/pctx_nobody_loaded_this")
    assert lines[-1].endswith("apparmor_parser -r /etc/apparmor.d/pctx_nobody_loaded_this")


@pytest.mark.parametrize("name", ["../passwd", "a b", "x-zygote", "pctx-sandbox-guest"])
def test_a_name_that_cannot_be_one_is_refused(pctx, virtualenv, name):
    done = pctx("apparmor", "profile", "--name", name, "--venv", virtualenv)
    assert done.returncode == 125 and "--name: " in done.stderr


def test_a_run_under_a_profile_that_is_not_loaded_is_refused(pctx):
    assert pctx("run", "-q", "--", "true").returncode == 0  # the control
    done = pctx("run", "--apparmor", "pctx_nobody_loaded_this", "--", "true")
    assert done.returncode == 125 and "pctx_nobody_loaded_this" in done.stderr
