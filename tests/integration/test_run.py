"""`pctx-sandbox run` as people meet it: the first day, ways to name a command, exit statuses."""

import os
import re

import pytest


def test_first_day_shadow(pctx):
    done = pctx("run", "-q", "--", "cat", "/etc/shadow")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cat: /etc/shadow: No such file or directory\n"


def test_first_day_memory(pctx):
    done = pctx("run", "-q", "--memory", "64M", "--", "python3", "-c", "bytearray(10**9)")
    assert (done.returncode, done.stdout) == (137, "")
    assert done.stderr == "pctx-sandbox: out of memory: limit 64 MiB (--memory)\n"


def test_quiet_is_the_only_reason_for_silence(pctx, layers):
    done = pctx("run", "--", "true")
    assert done.returncode == 0 and done.stdout == ""
    # Without cgroups one line says by what the limits bind; with them there is nothing to say.
    assert len(done.stderr.splitlines()) == (0 if layers["cgroups"]["on"] else 1)
    assert pctx("run", "-q", "--", "true").stderr == ""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "script.py"
    file.write_text("import sys; print(sys.argv, __name__); print(sys.stdin.read(), end='')\nsys.exit(4)\n")
    return file


def test_script_with_arguments(pctx, script):
    done = pctx("run", "-q", script, "one", "--json", "-x", input="from stdin")
    assert done.returncode == 4
    assert done.stdout == "['/script/script.py', 'one', '--json', '-x'] __main__\nfrom stdin"


def test_script_gets_dashes_of_its_own(pctx, script):
    assert pctx("run", "-q", script, "one", "--", "-x").stdout.startswith("['/script/script.py', 'one', '--', '-x']")


def test_script_by_a_relative_path(pctx, script):
    assert pctx("run", "-q", "script.py", "a", cwd=script.parent).stdout.startswith("['/script/script.py', 'a']")


def test_script_sees_no_neighbour(pctx, script):
    (script.parent / "secret.txt").write_text("secret")
    script.write_text("import os; print(os.listdir(os.path.dirname(__file__)))")
    assert pctx("run", "-q", script).stdout == "['script.py']\n"


def test_script_is_read_only(pctx, script):
    script.write_text("try: open(__file__, 'a')\nexcept OSError as error: print(error.errno)")
    assert pctx("run", "-q", script).stdout.strip() in ("30", "13")


def test_script_that_is_not_there(refused, tmp_path):
    refused("missing.py", says="missing.py", cwd=tmp_path)


def test_script_from_stdin(pctx):
    done = pctx("run", "-q", "-", "a", "b", input="import sys; print(sys.argv[1:], 6 * 7)")
    assert (done.returncode, done.stdout) == (0, "['a', 'b'] 42\n")


def test_command_after_dashes_is_taken_as_it_is(pctx, tmp_path):
    (tmp_path / "tool.py").write_text("#!/usr/bin/python3\nprint('own interpreter')\n")
    (tmp_path / "tool.py").chmod(0o755)
    done = pctx("run", "-q", "--ro", f"{tmp_path}:/lent", "--", "/lent/tool.py")
    assert done.stdout == "own interpreter\n"
    assert pctx("run", "-q", "--", "echo", "--memory", "1").stdout == "--memory 1\n"


def test_command_without_dashes(pctx):
    assert pctx("run", "-q", "echo", "plain", "-n").stdout == "plain -n\n"


def test_no_command_is_an_error(refused):
    refused(says="no command")
    refused("--", says="no command")
    refused("--", "", says="empty")


STATUSES = {
    "its own": (["sh", "-c", "exit 7"], 7, "exited"),
    "its own 124": (["sh", "-c", "exit 124"], 124, "exited"),
    "its own 137": (["sh", "-c", "exit 137"], 137, "exited"),
    "255": (["sh", "-c", "exit 255"], 255, "exited"),
    "SIGTERM": (["sh", "-c", "kill -TERM $$"], 143, "signaled"),
    "SIGKILL": (["sh", "-c", "kill -KILL $$"], 137, "signaled"),
    "SIGSEGV": (["sh", "-c", "kill -SEGV $$"], 139, "signaled"),
    "a real-time signal": (["python3", "-c", "import os; os.kill(os.getpid(), 40)"], 168, "signaled"),
    "the time limit": (["sleep", "20"], 124, "timed_out"),
}


@pytest.mark.parametrize("which", STATUSES)
def test_exit_status_of(report, which):
    command, status, kind = STATUSES[which]
    ended = report("--timeout", "800ms" if kind == "timed_out" else "20s", "--", *command)
    assert (ended["status"], ended["exit_status"], ended["outcome"]["kind"]) == (status, status, kind)
    assert ended["outcome"]["exit_code"] == (status if kind == "exited" else None)
    assert ended["outcome"]["signal"] == {"signaled": status - 128, "timed_out": 9}.get(kind)


def test_command_that_is_not_there(pctx):
    for command in ("no-such-command", "/no/such/command"):
        done = pctx("run", "-q", "--", command)
        assert done.returncode == 127 and done.stdout == ""
        assert done.stderr.startswith(f"pctx-sandbox: {command}: no such command in the box")


OWN_FILES = {  # a line, with the hint that it gets; the file of each lies in the caller's folder
    ("--", "s.py"): "s.py is a file of yours, which the box does not have: write pctx-sandbox run s.py",
    ("s.sh",): "s.sh is a file of yours, which the box does not have; lend its folder: "
    "pctx-sandbox run --mnt . -- ./s.sh",
    ("--", "./s.sh"): "./s.sh is a file of yours, which the box does not have; lend its folder: "
    "pctx-sandbox run --mnt . -- ./s.sh",
    ("--mnt", ".", "s.sh"): "a command without a slash is looked for in the box's PATH: write ./s.sh",
    ("--", "s p.py"): "s p.py is a file of yours, which the box does not have: write pctx-sandbox run 's p.py'",
    ("s.pyw",): "s.pyw is a file of yours, which the box does not have; lend its folder: "
    "pctx-sandbox run --mnt . -- python3 ./s.pyw",
    ("--", "./s.PY"): "./s.PY is a file of yours, which the box does not have; lend its folder: "
    "pctx-sandbox run --mnt . -- python3 ./s.PY",
    ("--", "other.sh"): "the box has the host's /usr; lend other places with --ro DIR",
}


@pytest.fixture
def own(tmp_path):
    """A folder of somebody who starts with this."""
    for name in ("s.py", "s p.py", "s.pyw", "s.PY"):
        (tmp_path / name).write_text("print('ran')\n")
    (tmp_path / "s.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "s.sh").chmod(0o755)
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("line", OWN_FILES)
def test_command_that_lies_here_and_not_in_the_box(pctx, own, line):
    done = pctx("run", "-q", *line, cwd=own)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.endswith(f"\nhint: {OWN_FILES[line]}\n")


def test_what_the_hints_for_own_files_say_works(pctx, own):
    assert pctx("run", "-q", "s.py", cwd=own).stdout == "ran\n"
    assert pctx("run", "-q", "--mnt", ".", "--", "./s.sh", cwd=own).stdout == "ran\n"
    assert pctx("run", "-q", "s p.py", cwd=own).stdout == "ran\n"
    for word in ("./s.pyw", "./s.PY"):
        assert pctx("run", "-q", "--mnt", ".", "--", "python3", word, cwd=own).stdout == "ran\n"
    assert pctx("run", "-q", "--mnt", ".", "--", "cat", "s.py", cwd=own).stdout == "print('ran')\n"


def test_word_that_lies_here_is_named_when_its_command_fails(pctx, own):
    def words(*line):
        return [each for each in pctx("run", *line, cwd=own).stderr.splitlines() if "yours" in each or "hint:" in each]

    told = "pctx-sandbox: s.py is yours, and the box does not have it"
    assert words("--", "python3", "s.py") == [told, "hint: write pctx-sandbox run s.py"]
    lend = "hint: if it failed for that, lend this folder: pctx-sandbox run --mnt . …"
    assert words("--", "cat", "s.py") == [told, lend]
    # Nothing to say where it did not fail, where nothing of the line lies here, and where the folder was lent.
    for line in (["echo", "s.py"], ["cat", "nothing"], ["cat", "../s.py"], ["grep", "-r", "x", "."]):
        assert words("--", *line) == [], line
    assert words("--mnt", ".", "--", "sh", "s.py") == []
    assert words("-q", "--", "cat", "s.py") == []


def test_command_whose_interpreter_is_not_in_the_box(pctx, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    heads = {
        "tool": "#!/nope/python -u\n",
        "crlf": "#!/bin/sh\r\n",
        "title": "#!/nope/\x1b]0;x\x07\n",
        "good": "#!/bin/sh\n",
    }
    for name, head in [*heads.items(), ("chain", "#!/mnt/tool\n")]:
        (work / name).write_text(f"{head}echo ran\n", newline="")
        (work / name).chmod(0o755)
    for word, says in (
        ("./tool", "./tool: its interpreter /nope/python is not in the box"),
        ("/mnt/chain", "/mnt/chain: its interpreter /nope/python is not in the box"),
        ("./title", "./title: its interpreter /nope/\\x1b]0;x\\x07 is not in the box"),
        ("./crlf", "./crlf: its #! line ends with a carriage return"),
        ("./none", "./none: no such command in the box"),
    ):
        done = pctx("run", "-q", "--mnt", work, "--", word)
        assert (done.returncode, done.stderr.splitlines()[0]) == (127, f"pctx-sandbox: {says}"), word
        assert done.stderr.splitlines()[1].startswith("hint: ")
    assert pctx("run", "-q", "--mnt", work, "--", "./good").stdout == "ran\n"
    found = pctx("run", "-q", "--mnt", work, "--env", "PATH=/mnt", "--", "tool")
    assert found.returncode == 127 and "its interpreter /nope/python" in found.stderr


def test_no_link_of_a_guests_is_followed_to_an_interpreter(pctx, tmp_path):
    work, secret = tmp_path / "work", tmp_path / "secret"
    work.mkdir()
    secret.write_text("#!/hidden/words\n")
    secret.chmod(0o755)
    (work / "link").symlink_to(secret)
    os.mkfifo(work / "fifo", 0o777)
    for word in ("./link", "./fifo"):
        done = pctx("run", "-q", "--mnt", work, "--", word, timeout=20)
        assert done.returncode in (126, 127) and "hidden" not in done.stderr
    shown = pctx("run", "-q", "--ro", f"{secret}:/data", "--", "/data")
    assert "its interpreter /hidden/words" in shown.stderr  # the control


def test_command_that_cannot_be_run(pctx, tmp_path):
    assert pctx("run", "-q", "--", "/etc/passwd").returncode == 126
    assert pctx("run", "-q", "--", "/tmp").returncode == 126
    (tmp_path / "data").write_bytes(b"\x00\x01\x02")
    (tmp_path / "data").chmod(0o755)
    done = pctx("run", "-q", "--ro", f"{tmp_path}/data:/data", "--", "/data")
    assert done.returncode == 126 and "cannot be run" in done.stderr


def test_time_limit_message(pctx):
    done = pctx("run", "-q", "--timeout", "300ms", "--", "sleep", "9")
    assert (done.returncode, done.stderr) == (124, "pctx-sandbox: timed out: limit 300 ms (--timeout)\n")


def test_output_before_the_end_is_not_lost(pctx):
    done = pctx("run", "-q", "--timeout", "700ms", "--", "sh", "-c", "echo first; echo second >&2; sleep 9")
    assert done.stdout == "first\n" and done.stderr.startswith("second\n")


def test_explain_prints_the_plan_and_runs_nothing(pctx, tmp_path):
    done = pctx("explain", "--memory", "64M", "--mnt", tmp_path, "--", "touch", "/mnt/ran")
    assert done.returncode == 0 and list(tmp_path.iterdir()) == []
    assert "64 MiB" in done.stdout and "/mnt" in done.stdout and "seccomp" in done.stdout


def test_explain_shows_the_command(pctx, tmp_path):
    assert pctx("explain", "--", "touch", "/mnt/ran").stdout.startswith("command\n  touch /mnt/ran\n")
    assert pctx("explain", "--", "echo", "it's", "two words").stdout.startswith("command\n  echo 'it'")
    (tmp_path / "script.py").touch()
    done = pctx("explain", "script.py", "one", cwd=tmp_path)
    assert re.match(r"command\n  /\S*python3\S* /script/script.py one\n", done.stdout), done.stdout
    assert pctx("explain", "--memory", "64M").stdout.startswith("command (none is given")


def test_explain_refuses_what_run_refuses(pctx):
    done = pctx("explain", "--memory", "lots", "--", "true")
    assert done.returncode == 125 and done.stderr.startswith("pctx-sandbox: --memory")


def test_help_and_version(pctx):
    assert pctx("--version").returncode == 0
    for words in (("--help",), ("run", "--help"), ("explain", "--help"), ("help",)):
        done = pctx(*words)
        assert done.returncode == 0 and "Usage" in done.stdout
    for words in ((), ("unknown-verb",)):
        done = pctx(*words)
        assert done.returncode == 125 and done.stdout == "" and done.stderr.startswith("pctx-sandbox: ")


def test_unknown_option_is_an_error_that_names_it(refused):
    refused("--memry", "64M", "--", "echo", "ran", says="--memry")


def test_a_script_that_is_a_fifo_keeps_nobody_waiting(pctx, tmp_path):
    """A guest that may write to the folder can make one of it."""
    tmp_path.chmod(0o755)
    os.mkfifo(tmp_path / "s.py")
    done = pctx("run", "--timeout", "1s", tmp_path / "s.py", timeout=30)
    assert done.returncode in (124, 125, 127), done.stderr
