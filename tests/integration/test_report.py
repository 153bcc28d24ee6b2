"""--json and --report: one object that tells how the guest ended and what was enforced."""

import json
import os
import subprocess

import pytest

KEYS = {"layers", "limits", "usage", "truncated", "denials", "denials_left_out", "denials_recorded"}
KEYS |= {"denials_left_out_of", "limits_reached"}


def test_json_holds_output_outcome_and_receipt(report):
    ended = report("--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (ended["stdout"], ended["stderr"], ended["exit_status"]) == ("out\n", "err\n", 3)
    assert ended["outcome"] == {"kind": "exited", "exit_code": 3, "signal": None, "limit": None, "message": None}
    assert ended["receipt"].keys() >= KEYS
    assert ended["receipt"]["denials"] == [] and ended["receipt"]["truncated"] is False


def test_every_layer_says_whether_it_is_on(layers):
    assert layers.keys() == {
        "user", "pid", "mount", "network", "ipc", "uts", "cgroup-namespace", "proc", "capabilities", "no-new-privs",
        "seccomp", "landlock", "subordinate-ids", "cgroups", "apparmor",
    }  # fmt: skip
    assert all(isinstance(layer["on"], bool) and layer["detail"] for layer in layers.values())


def test_json_does_nothing_to_the_terminal_that_shows_it(pctx):
    said = "A\u009b31mB\u009d0;title\u009c\u202eevil\u2066\x7f\U000e0041gr\u00fc\u00dfe \U0001f600\n"
    done = pctx("run", "-q", "--json", "--", "printf", "%s", said)
    assert done.json()["stdout"] == said
    shown = {chr(c) for c in (*range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xE0041)}
    assert shown & set(said) and not shown & set(done.stdout)
    assert "\\u009b31mB" in done.stdout and "\\udb40\\udc41gr\u00fc\u00dfe \U0001f600" in done.stdout


def test_report_file(pctx, tmp_path):
    file = tmp_path / "report.json"
    done = pctx("run", "-q", "--report", file, "--", "sh", "-c", "echo passed through; exit 2")
    assert (done.returncode, done.stdout) == (2, "passed through\n")
    written = json.loads(file.read_text())
    assert written["outcome"]["exit_code"] == 2 and "stdout" not in written


def test_report_file_replaces_an_older_one(pctx, tmp_path):
    file = tmp_path / "report.json"
    file.write_text("x" * 100_000)
    pctx("run", "-q", "--report", file, "--", "true")
    assert json.loads(file.read_text())["exit_status"] == 0


@pytest.mark.parametrize(
    ("status", "kind", "line"),
    [
        (127, "not_found", ["--", "/nonexistent"]),
        (126, "not_runnable", ["--", "/etc/passwd"]),
        (125, "usage", ["--mnt", "/nonexistent", "--", "true"]),
        (125, "usage", ["--memory", "abc", "--", "true"]),
    ],
)
def test_a_run_that_failed_is_no_earlier_success(pctx, tmp_path, status, kind, line):
    file = tmp_path / "report.json"
    assert pctx("run", "-q", "--report", file, "--", "true").returncode == 0
    assert json.loads(file.read_text())["exit_status"] == 0
    assert pctx("run", "-q", "--report", file, *line).returncode == status
    assert json.loads(file.read_text())["error"]["kind"] == kind


def test_output_that_nobody_takes_is_an_error(pctx, tmp_path):
    file = tmp_path / "report.json"
    lines = (["--report", file, "--", "echo", "lost"], ["--json", "--", "true"], ["--print-policy", "--", "true"])
    with open("/dev/full", "w") as full:
        for line in lines:
            done = pctx("run", "-q", *line, stdout=full, stderr=subprocess.PIPE)
            assert done.returncode == 125 and "No space left on device" in done.stderr, line
        assert pctx("--version", stdout=full, stderr=subprocess.PIPE).returncode == 125
    assert json.loads(file.read_text())["outcome"]["exit_code"] == 0
    assert pctx("run", "-q", "--", "echo", "kept").stdout == "kept\n"


def test_words_that_nobody_takes_cost_no_report(pctx, tmp_path):
    file = tmp_path / "report.json"
    with open("/dev/full", "w") as full:
        done = pctx("run", "--report", file, "--timeout", "300ms", "--", "sleep", "60", stderr=full, stdout=full)
        assert done.returncode == 124
        assert pctx("run", "--no-such-option", stderr=full, stdout=full).returncode == 125
    assert json.loads(file.read_text())["outcome"]["limit"] == "timeout"


def test_report_to_a_descriptor_of_the_caller(pctx, tmp_path):
    with open(tmp_path / "report.json", "w+b") as file:
        fd = file.fileno()
        done = pctx("run", "-q", "--report", f"/dev/fd/{fd}", "--", "ls", "/proc/self/fd", pass_fds=[fd])
        file.seek(0)
        assert done.returncode == 0 and json.load(file)["outcome"]["exit_code"] == 0
        assert done.stdout.split() == ["0", "1", "2", "3"]  # 3 is the folder that is listed
    reading, writing = os.pipe()
    for number, passed in ((reading, [reading]), (writing, []), ("x", []), (10**10, [])):
        done = pctx("run", "-q", "--report", f"/dev/fd/{number}", "--", "echo", "ran", pass_fds=passed)
        assert done.returncode == 125 and done.stdout == "" and "open for writing" in done.stderr
    os.close(reading), os.close(writing)


def test_report_and_json_together(pctx, tmp_path):
    file = tmp_path / "report.json"
    done = pctx("run", "-q", "--json", "--report", file, "--", "echo", "x")
    assert json.loads(done.stdout)["stdout"] == "x\n" and json.loads(file.read_text())["exit_status"] == 0


def test_command_that_is_not_there_is_an_error_in_json(pctx):
    done = pctx("run", "--json", "--", "/nonexistent")
    assert done.returncode == 127 and "error" in done.json()


@pytest.mark.parametrize("memory", ["64M"])
def test_endings_with_137_are_told_apart(report, memory):
    kinds = {
        name: report("--memory", memory, "--", *command)["outcome"]
        for name, command in {
            "own": ["sh", "-c", "exit 137"],
            "signal": ["sh", "-c", "kill -9 $$"],
            "memory": ["python3", "-c", "bytearray(10**9)"],
        }.items()
    }
    assert {name: (o["kind"], o["limit"]) for name, o in kinds.items()} == {
        "own": ("exited", None), "signal": ("signaled", None), "memory": ("out_of_memory", "memory"),
    }  # fmt: skip


def test_output_limit_is_marked(report):
    ended = report("--output", "10", "--", "sh", "-c", "printf 0123456789abc")
    assert ended["stdout"] == "0123456789" and ended["receipt"]["truncated"] is True
    assert (ended["outcome"]["kind"], ended["outcome"]["limit"], ended["status"]) == ("output_limit", "output", 153)


def test_output_limit_on_the_command_line(pctx):
    done = pctx("run", "-q", "--output", "1K", "--", "yes")
    assert done.returncode == 153 and len(done.stdout) == 1024
    assert done.stderr == "pctx-sandbox: too much output: limit 1 KiB (--output)\n"


def test_file_that_grows_too_large_is_told_from_too_much_output(pctx):
    done = pctx("run", "-q", "--disk", "8M", "--", "dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=9")
    assert (done.returncode, done.stdout) == (153, "")
    assert done.stderr == (
        "pctx-sandbox: ended by SIGXFSZ: from the kernel, which lets no file grow beyond 8 MiB (--disk), "
        "or from the guest itself\n"
    )


LOCKS = """
import fcntl, tempfile, time
kept = [tempfile.TemporaryFile() for _ in range(50)]
for file in kept:
    for at in range(300, 0, -1): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
time.sleep(20)
"""


def test_too_many_file_locks_on_the_command_line(pctx):
    done = pctx("run", "-q", "--", "python3", "-c", LOCKS)
    assert (done.returncode, done.stdout) == (137, "")
    assert done.stderr == (
        "pctx-sandbox: out of memory: more than 10000 file locks, which --memory cannot count; "
        "release some before taking more\n"
    )
    own = pctx("run", "-q", "--", "sh", "-c", "kill -9 $$")
    assert (own.returncode, own.stderr) == (137, "")


def test_denials_are_explained(report):
    ended = report("--", "python3", "-c", "import os\ntry: os.chroot('/tmp')\nexcept OSError as error: print(error)")
    assert "Operation not permitted" in ended["stdout"]
    (denial,) = ended["receipt"]["denials"]
    assert (denial["syscall"], denial["answer"], denial["count"]) == ("chroot", "EPERM", 1)
    assert "not on the list" in denial["reason"] and "--seccomp FILE" in denial["reason"]
    assert ended["receipt"]["denials_recorded"] is True


def test_a_full_list_of_denials_says_how_many_are_left_out(report):
    code = (
        "import os, ctypes\nfor n in range({}):\n try: os.chroot(f'/{{n % 10}}')\n except OSError: pass\n"
        "ctypes.CDLL(None).swapoff(b'/after')"
    )
    receipt = report("--", "python3", "-c", code.format(20))["receipt"]
    assert [denial["count"] for denial in receipt["denials"]] == [2] * 8 + [1]
    assert receipt["denials"][-1]["syscall"] == "swapoff", "what comes after is named"
    assert (receipt["denials_left_out"], receipt["denials_left_out_of"]) == (4, {"chroot": 4})
    receipt = report("--", "python3", "-c", code.format(8))["receipt"]
    assert len(receipt["denials"]) == 9 and (receipt["denials_left_out"], receipt["denials_left_out_of"]) == (0, {})


@pytest.mark.rootless_only
def test_a_denial_for_want_of_cgroups_says_so(report, layers, skip_unless):
    skip_unless(not layers["cgroups"]["on"], "a host that lends no cgroups")
    code = "import os\ntry: os.memfd_create('planted')\nexcept OSError as error: print(error.errno)"
    ended = report("--", "python3", "-c", code)
    (denial,) = ended["receipt"]["denials"]
    assert (ended["stdout"], denial["syscall"], denial["detail"]) == ("1\n", "memfd_create", "planted")
    for words in ("only where memory is accounted", layers["cgroups"]["detail"], "pctx-sandbox doctor"):
        assert words in denial["reason"]


def test_a_denial_that_cgroups_would_not_change_does_not_blame_them(report):
    code = "import fcntl\ntry: fcntl.fcntl(0, 1026, 1)  # F_NOTIFY\nexcept OSError as error: print(error.errno)"
    ended = report("--", "python3", "-c", code)
    (denial,) = ended["receipt"]["denials"]
    assert (ended["stdout"], denial["syscall"]) == ("1\n", "fcntl")
    assert "no signals when others read a folder" in denial["reason"]
    assert "doctor" not in denial["reason"] and "cgroup" not in denial["reason"]
