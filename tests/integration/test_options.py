"""Every option of `run`: what it does, and that wrong input is one sentence and nothing runs."""

import json
import os
import platform
import re

import pytest

WRONG = [
    ("--memory", "lots"), ("--memory", "1K"), ("--memory", "-5M"), ("--memory", ""), ("--memory", "99999999999T"),
    ("--cpus", "0"), ("--cpus", "-1"), ("--cpus", "many"), ("--cpus", "nan"),
    ("--pids", "0"), ("--pids", "x"), ("--pids", "-1"), ("--pids", "1.5"),
    ("--timeout", "soon"), ("--timeout", "-1s"), ("--cpu-time", "0"), ("--cpu-time", "x"),
    ("--disk", "1"), ("--disk", "x"), ("--inodes", "1"), ("--inodes", "x"),
    ("--output", "x"), ("--output", "-1"), ("--files", "1"), ("--files", "x"),
    ("--io-read", "1"), ("--io-write", "x"),
    ("--mnt", "/no/such/folder"), ("--mnt", "/etc/passwd"),
    ("--ro", "/no/such/file"), ("--ro", ""), ("--ro", ":/x"), ("--ro", "/usr:relative"), ("--ro", "/usr:/proc/x"),
    ("--rw", "/tmp"), ("--rw", "/no/such:/x"),
    ("--tmpfs", "relative"), ("--tmpfs", "/x:lots"), ("--tmpfs", "/x:0"), ("--tmpfs", "/proc"),
    ("--workdir", "relative"), ("--workdir", "/no/such"), ("--env", "NAME"), ("--env", "=x"),
    ("--hostname", ""), ("--hostname", "a b"), ("--hostname", "x" * 64),
    ("--uid", "-1"), ("--uid", "70000"), ("--uid", "root"), ("--network", "bridge"), ("--network", ""),
    ("--policy", "/no/such/file"), ("--seccomp", "/no/such/file"), ("--seccomp", "/etc/passwd"),
    ("--require", "magic"), ("--allow-degraded", "magic"), ("--report", "/no/such/folder/report"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), WRONG, ids=[f"{o}={v[:20]}" for o, v in WRONG])
def test_wrong_value_is_one_sentence_and_nothing_runs(pctx, option, value):
    words = [f"{option}={value}"] if value.startswith("-") else [option, value]
    done = pctx("run", "-q", *words, "--", "echo", "ran")
    assert done.returncode == 125 and done.stdout == "", f"{done.returncode} {done.stdout} {done.stderr}"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("pctx-sandbox: ") and len(lines) <= 2, done.stderr
    assert len(lines) == 1 or lines[1].startswith("hint: ")


# A line of whole names is read without describing the options; with a short switch it is not.
LINES = [
    ["--memory", "64M"], ["--cpus", "0.5"], ["--pids", "8"], ["--timeout", "5s"], ["--cpu-time", "2s"],
    ["--disk", "8M"], ["--inodes", "100"], ["--output", "1M"], ["--files", "64"], ["--mnt", "."],
    ["--ro", "/usr", "--ro", "/bin"],
    ["--rw", ".:/x"], ["--tmpfs", "/y:1M"], ["--workdir", "/tmp"], ["--env", "A=b", "--env", "C=d=e"],
    ["--hostname", "h"], ["--uid", "7"], ["--network", "allow:example.org:80,*.example.com"],
    ["--allow-degraded", "landlock"],
    ["--require", "seccomp"], ["--memory", "64M", "--quiet", "--changed", "--env", "A=%b", "--tty"],
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=[" ".join(line) for line in LINES])
def test_a_line_means_the_same_however_it_is_read(pctx, line):
    joined = " ".join(line).replace(" --", "\0--").replace(" ", "=").split("\0")
    told = [pctx("run", *words, "--print-policy", "--", "true") for words in (line, joined, ["-q", *line])]
    assert [each.returncode for each in told] == [0, 0, 0], told[0].stderr
    assert told[1].stdout == told[0].stdout == told[2].stdout != pctx("run", "--print-policy", "--", "true").stdout


def test_option_given_twice_is_an_error(refused):
    refused("--memory", "64M", "--memory", "1G", "--", "echo", "ran", says="--memory")


def test_errors_with_json_are_json(pctx):
    done = pctx("run", "--json", "--memory", "lots", "--", "true")
    error = done.json()["error"]
    assert done.returncode == 125 and error["kind"] == "usage" and "lots" in error["message"]


def test_defaults_are_the_documented_ones(report):
    limits = {name: entry["value"] for name, entry in report("--", "true")["receipt"]["limits"].items()}
    assert limits == {
        "memory": "1 GiB", "cpus": "1", "pids": "64", "timeout": "30 s", "disk": "256 MiB", "inodes": "20000",
        "output": "16 MiB", "files": "512",
    }  # fmt: skip


def test_timeout_zero_is_no_limit(report):
    ended = report("--timeout", "0", "--", "true")
    assert ended["receipt"]["limits"]["timeout"]["value"] == "none"


def test_io_limits_are_bound_or_refused(report, pctx, layers):
    if layers["cgroups"]["detail"] == "cgroup v2":
        assert report("--io-read", "50M", "--", "true")["receipt"]["limits"]["io_read"]["by"] == "cgroup v2"
        return
    for option in ("--io-read", "--io-write"):
        done = pctx("run", option, "50M", "--", "echo", "ran")
        assert done.returncode == 125 and "cgroup v2" in done.stderr and "ran" not in done.stdout
        ended = report(option, "50M", "--allow-degraded", "cgroups", "--", "true")
        assert ended["receipt"]["limits"][option[2:].replace("-", "_")]["by"] == "not bound"


def test_fraction_of_a_cpu_is_bound_or_refused(report, pctx, layers):
    if layers["cgroups"]["on"]:
        assert report("--cpus", "0.5", "--", "true")["receipt"]["limits"]["cpus"]["value"] == "0.5"
        return
    done = pctx("run", "--cpus", "0.5", "--", "echo", "ran")
    assert done.returncode == 125 and "needs the cpu cgroup" in done.stderr and "ran" not in done.stdout
    ended = report("--cpus", "0.5", "--allow-degraded", "cgroups", "--", "true")
    assert ended["status"] == 0 and ended["receipt"]["limits"]["cpus"]["by"] == "not bound: pinned to 1"


def test_require_insists(pctx, layers):
    for name, layer in layers.items():
        done = pctx("run", "-q", "--require", name, "--", "echo", "ran")
        if layer["on"]:
            assert (done.returncode, done.stdout) == (0, "ran\n"), name
        else:
            assert done.returncode == 125 and f"--require {name}" in done.stderr and done.stdout == "", name


def test_require_takes_several(pctx):
    assert pctx("run", "-q", "--require", "seccomp,user,pid", "--", "echo", "ran").stdout == "ran\n"


def test_allow_degraded_takes_nothing_away(report, layers):
    ended = report("--allow-degraded", "user,network,seccomp,landlock,cgroups", "--", "true")
    assert {name: layer["on"] for name, layer in ended["receipt"]["layers"].items()} == {
        name: layer["on"] for name, layer in layers.items()
    }


def test_layer_cannot_be_required_and_degraded(refused):
    refused("--require", "seccomp", "--allow-degraded", "seccomp", "--", "echo", "ran", says="seccomp")


def test_required_layers_are_on(layers):
    for name in ("user", "pid", "mount", "network", "ipc", "proc", "capabilities", "no-new-privs", "seccomp"):
        assert layers[name]["on"], name


# Identity


def test_environment_is_what_is_given(report):
    code = "import os; print(os.environ['A'], os.environ['B'], os.environ.get('SECRET'))"
    ended = report("--env", "A=1", "--env", "B=x=y z", "--", "python3", "-c", code, env={**os.environ, "SECRET": "s"})
    assert ended["stdout"] == "1 x=y z None\n"


def test_path_given_by_env_is_used(pctx, tmp_path):
    (tmp_path / "tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "tool").chmod(0o755)
    done = pctx("run", "-q", "--ro", f"{tmp_path}:/tools", "--env", "PATH=/tools:/usr/bin:/bin", "--", "tool")
    assert done.stdout == "found\n"


def test_hostname(pctx):
    assert pctx("run", "-q", "--hostname", "box-7.example", "--", "uname", "-n").stdout == "box-7.example\n"
    assert pctx("run", "-q", "--", "uname", "-n").stdout == "sandbox\n"


@pytest.mark.parametrize(("uid", "name"), [("0", "root"), ("1000", "sandbox"), ("1234", "sandbox")])
def test_uid_inside(pctx, uid, name):
    code = (
        "import getpass, os, pwd; print(os.getuid(), os.getgid(), getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name)"
    )
    assert pctx("run", "-q", "--uid", uid, "--", "python3", "-c", code).stdout == f"{uid} {uid} {name} {name}\n"


def test_home_and_caches_are_writable(pctx):
    code = (
        "import os, pathlib; home = pathlib.Path.home(); print(home, os.getcwd())\n"
        "(home / '.config').mkdir(); pathlib.Path(os.environ['XDG_CACHE_HOME'], 'x').mkdir(parents=True)\n"
        "import tempfile; tempfile.NamedTemporaryFile().close(); print('ok')\n"
    )
    for uid in ("1000", "0"):
        assert (
            pctx("run", "-q", "--uid", uid, "--", "python3", "-c", code).stdout == "/home/sandbox /home/sandbox\nok\n"
        )


# Network


def test_network_host_says_so(pctx):
    done = pctx("run", "--network", "host", "--", "true")
    assert done.returncode == 0 and "WARNING: --network host" in done.stderr
    assert pctx("run", "-q", "--network", "host", "--", "true").stderr == ""


def test_network_host_is_in_the_report(report):
    layer = report("--network", "host", "--", "true")["receipt"]["layers"]["network"]
    assert layer["on"] is False and "host" in layer["detail"]


# System call profiles


@pytest.fixture
def profile(tmp_path):
    def write(**content):
        file = tmp_path / "profile.json"
        file.write_text(json.dumps(content))
        return file

    return write


def test_oci_profile_replaces_the_filter(report, profile):
    file = profile(
        defaultAction="SCMP_ACT_ALLOW",
        syscalls=[{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
    )
    ended = report("--seccomp", file, "--", "mkdir", "/tmp/new")
    assert ended["status"] == 1 and "Operation not permitted" in ended["stderr"]
    assert str(file) in ended["receipt"]["layers"]["seccomp"]["detail"]
    assert report("--", "mkdir", "/tmp/new")["status"] == 0


def test_oci_profile_may_kill(report, profile):
    file = profile(
        defaultAction="SCMP_ACT_ALLOW",
        syscalls=[{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_KILL_PROCESS"}],
    )
    ended = report("--seccomp", file, "--", "mkdir", "/tmp/new")
    assert (ended["outcome"]["kind"], ended["outcome"]["signal"]) == ("denied", 31)
    names = "mkdir, mkdirat" if platform.machine() == "x86_64" else "mkdirat"
    assert f"which sends it for {names} by the profile" in ended["outcome"]["message"]


def test_what_ended_a_guest_by_sigsys_is_not_claimed_to_be_known(report):
    ended = report("--", "sh", "-c", "kill -SYS $$")
    assert (ended["outcome"]["kind"], ended["outcome"]["signal"]) == ("denied", 31)
    assert ended["outcome"]["message"] == (
        "ended by SIGSYS: from the system call filter, which sends it for calls of another architecture or of 32 bits, "
        "or from the guest itself"
    )


@pytest.mark.parametrize(("number", "name"), [(1, "EPERM"), (13, "EACCES"), (38, "ENOSYS")])
def test_what_a_profile_refuses_is_recorded_whatever_its_error(pctx, report, profile, number, name):
    file = profile(
        defaultAction="SCMP_ACT_ALLOW",
        syscalls=[{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": number}],
    )
    ended = report("--seccomp", file, "--", "mkdir", "/tmp/new")
    assert ended["status"] == 1 and os.strerror(number) in ended["stderr"]
    (denial,) = ended["receipt"]["denials"]
    assert denial.pop("syscall") in ("mkdir", "mkdirat")
    assert denial == {"detail": "/tmp/new", "answer": name, "reason": f"the profile says so: {file}", "count": 1}
    assert report("--seccomp", file, "--", "true")["receipt"]["denials"] == []
    said = pctx("run", "--seccomp", file, "--", "mkdir", "/tmp/new").stderr
    assert "refused meanwhile: mkdir" in said and f" /tmp/new ({name})" in said


def test_what_libraries_only_try_is_no_denial(report, profile):
    """As in Docker's profile: glibc tries clone3 for every thread and takes clone where there is none."""
    file = profile(
        defaultAction="SCMP_ACT_ALLOW",
        syscalls=[{"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}],
    )
    code = "import threading; t = threading.Thread(target=print, args=('ran',)); t.start(); t.join()"
    ended = report("--seccomp", file, "--", "python3", "-c", code)
    assert (ended["stdout"], ended["receipt"]["denials"]) == ("ran\n", [])


def test_misspelt_name_that_leaves_a_call_open_is_told(pctx, report, profile):
    def told(*names, action="SCMP_ACT_ERRNO"):
        file = profile(defaultAction="SCMP_ACT_ALLOW", syscalls=[{"names": names, "action": action}])
        detail = report("--seccomp", file, "--", "true")["receipt"]["layers"]["seccomp"]["detail"]
        lines = pctx("run", "--seccomp", file, "--", "true").stderr.splitlines()
        counts = re.findall(r"names unknown here and so not refused: (\d+)", detail)
        return [each for each in lines if "no system call here" in each], counts

    says = f"pctx-sandbox: --seccomp {profile()}: no system call here, so not refused: "
    assert told("mkdir", "mkdirr") == ([says + '"mkdirr"'], ["1"])
    assert told(*(f"call{number}" for number in range(40))) == (
        [says + '"call0", "call1", "call2" and 37 more'],
        ["40"],
    )
    # Right names; and names that are wrong, but leave nothing open.
    assert told("mkdir", "mkdirat") == ([], [])
    assert told("mkdirr", action="SCMP_ACT_ALLOW") == ([], [])


@pytest.mark.parametrize(
    "content",
    [{}, {"defaultAction": "SCMP_ACT_MAGIC"}, {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []},
     {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": "mkdir", "action": "SCMP_ACT_ERRNO"}]}],
    ids=["empty", "unknown action", "nothing can start", "wrong type"],
)  # fmt: skip
def test_bad_profile_is_an_error(refused, profile, content):
    refused("-q", "--seccomp", profile(**content), "--", "echo", "ran")


@pytest.mark.parametrize("option", [("--env", "A=1"), ("--ro", "/usr/share/zoneinfo:/z"), ("--tmpfs", "/scratch")])
def test_a_repeatable_option_takes_one_value_and_leaves_the_script(pctx, tmp_path, option):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])\n")
    assert pctx("run", "-q", *option, script, "one", cwd=tmp_path).stdout == "['one']\n"
    assert pctx("run", "-q", *option, "-", input="print('stdin')\n").stdout == "stdin\n"
