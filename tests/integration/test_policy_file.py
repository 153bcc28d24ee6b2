"""`--policy FILE` is strict, options win over it, and --print-policy can be read back."""

import json
import os
import subprocess

import pytest

FULL = {
    "limits": {
        "memory": "128M", "cpus": 1, "pids": 20, "timeout": "9s", "cpu_time": 5, "disk": 1 << 24, "inodes": 500,
        "output": "1M", "files": 64,
    },
    "files": {"ro": ["/usr/share:/share"], "tmpfs": ["/scratch:1M"], "workdir": "/scratch"},
    "identity": {"env": {"A": "1"}, "hostname": "named", "uid": 5},
    "network": "none",
    "require": ["seccomp"],
    "allow_degraded": ["landlock"],
}  # fmt: skip


def printed(pctx, *words):
    done = pctx("run", *words, "--print-policy", "--", "echo", "ran")
    assert done.returncode == 0 and "ran" not in done.stdout, done.stderr
    return json.loads(done.stdout)


def test_policy_is_obeyed(pctx, policy):
    code = "import os; print(os.getcwd(), os.uname().nodename, os.getuid(), os.environ['A'], os.path.isdir('/share'))"
    done = pctx("run", "-q", "--policy", policy(FULL), "--", "python3", "-c", code)
    assert done.stdout == "/scratch named 5 1 True\n", done.stderr


def test_round_trip(pctx, policy):
    first = printed(pctx, "--policy", policy(FULL))
    assert first["limits"]["memory"] == 128 << 20 and first["limits"]["timeout"] == 9.0
    assert printed(pctx, "--policy", policy(first)) == first
    assert printed(pctx, "--policy", policy(printed(pctx))) == printed(pctx)


@pytest.mark.parametrize("key", ["timeout", "cpu_time"])
def test_the_smallest_time_is_not_no_limit(pctx, policy, key):
    limits = {"timeout": "20s", key: 0.0004}
    assert printed(pctx, "--policy", policy({"limits": limits}))["limits"][key] == 0.001
    done = pctx("run", "-q", "--policy", policy({"limits": limits}), "--", "sh", "-c", "while :; do :; done")
    assert done.returncode == 124 and "limit 1 ms" in done.stderr


def test_options_win(pctx, policy):
    mixed = printed(pctx, "--policy", policy(FULL), "--memory", "64M", "--env", "A=2", "--env", "B=3", "--uid", "7")
    assert mixed["limits"]["memory"] == 64 << 20 and mixed["limits"]["pids"] == 20
    assert mixed["identity"] == {"env": {"A": "2", "B": "3"}, "hostname": "named", "uid": 7}


def test_lists_add_to_the_files_and_a_place_of_both_is_told_with_the_file(pctx, policy):
    path = policy({"files": {"ro": ["/usr/share:/share"]}, "require": ["seccomp"]})
    both = printed(pctx, "--policy", path, "--ro", "/usr/lib:/lib2", "--require", "user")
    assert both["files"]["ro"] == ["/usr/share:/share", "/usr/lib:/lib2"] and both["require"] == ["user", "seccomp"]
    done = pctx("run", "--policy", path, "--ro", "/usr/lib:/share", "--", "true")
    assert done.stderr.startswith(f"pctx-sandbox: --ro: /share is given twice, with what --policy {path} lists\n")
    twice = policy({"files": {"ro": ["/usr/share:/share", "/usr/lib:/share"]}})
    done = pctx("run", "--policy", twice, "--", "true")
    assert done.stderr.startswith(f"pctx-sandbox: --policy {twice}: 'files.ro': /share is given twice\n")


def test_options_become_a_policy(pctx, tmp_path):
    made = printed(pctx, "--mnt", tmp_path, "--rw", f"{tmp_path}:/other", "--cpu-time", "2s", "--network", "host")
    assert made["files"] == {"mnt": str(tmp_path), "rw": [f"{tmp_path}:/other"]}
    assert made["limits"]["cpu_time"] == 2.0 and made["network"] == "host"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--mnt", b"bad\xff"), ("--ro", b"/usr:/bad\xff"), ("--rw", b"bad\xff:/x"), ("--tmpfs", b"/bad\xff"),
        ("--workdir", b"/bad\xff"), ("--env", b"X=\xff"), ("--env", b"\xff=X"), ("--seccomp", b"bad\xff"),
    ],
)  # fmt: skip
def test_what_no_policy_file_can_hold_is_an_error(pctx, option, value):
    line = ["run", "-q", option, os.fsdecode(value), "--print-policy", "--", "true"]
    done = pctx(*line)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith(f"pctx-sandbox: {option}: a value is not UTF-8") and "\nhint: " in done.stderr
    line[3] = os.fsdecode(value.replace(b"\xff", "ÿ".encode()))
    assert pctx(*line).returncode == 0


WRONG = {
    "unknown key": ({"limit": {}}, "limit"),
    "unknown key below": ({"limits": {"ram": 1}}, "limits.ram"),
    "wrong type": ({"limits": {"pids": "x"}}, "limits.pids"),
    "negative": ({"limits": {"pids": -1}}, "limits.pids"),
    "fraction": ({"limits": {"files": 1.5}}, "limits.files"),
    "out of range": ({"limits": {"memory": 1}}, "'limits.memory': 1 B is not between 4 MiB and 1024 TiB"),
    "no time": ({"limits": {"cpu_time": 0}}, "'limits.cpu_time'"),
    "list for an object": ([], "it must be an object"),
    "not JSON": ("{", "not valid JSON at line 1, column 2"),
    "a comma too many": ('{\n  "limits": {"memory": "1G",}\n}', "not valid JSON at line 2, column 29"),
    "empty": ("", "nothing is in it"),
    "blank": (" \n\t\n", "nothing is in it"),
    "something behind": ('{"network": "none"}\n{}', "something stands behind the JSON, at line 2, column 1"),
    "Latin-1": (b'{"files": {"mnt": "caf\xe9"}}', "not UTF-8 at line 1, column "),
    "UTF-16": ("{}".encode("utf-16"), "not UTF-8 at line 1, column 1"),
    "no profile": ({"seccomp": ""}, "'seccomp': the path is empty"),
    "key twice": ('{"network": "none", "network": "host"}', "'network' stands twice"),
    "key twice below": ('{"limits": {"pids": 2, "pids": 3}}', "'limits.pids' stands twice"),
    "too deep": ("[" * 100 + "]" * 100, "nested"),
    "unknown layer": ({"require": ["magic"]}, "magic"),
    "unknown network": ({"network": "bridge"}, "bridge"),
    "uid": ({"identity": {"uid": 65534}}, "uid"),
    "variable": ({"identity": {"env": {"A": 1}}}, "env"),
    "NUL in a folder": ({"files": {"mnt": "..\0/nope"}}, "'files.mnt': the path holds a NUL byte"),
    "NUL in a source": ({"files": {"ro": ["/usr\0/nope:/x"]}}, "'files.ro': the path holds a NUL byte"),
    "NUL in a profile": ({"seccomp": "p.json\0/nope"}, "'seccomp': the path holds a NUL byte"),
    "NUL": ({"identity": {"env": {"A": "x\0y"}}}, "'identity.env'"),
    "null": ({"files": {"mnt": None}}, "files.mnt"),
    "reserved target": ({"files": {"ro": ["/usr:/proc/x"]}}, "'files.ro': /proc/x"),
    "path that is not there": ({"files": {"ro": ["/nosuch:/x"]}}, "'files.ro': /nosuch: No such file"),
    "folder that is not there": ({"files": {"mnt": "/nosuch"}}, "'files.mnt': /nosuch: No such file"),
    "file over a folder": ({"files": {"ro": ["/etc/hostname:/tmp/.."]}}, "'files.ro': '/tmp/..'"),
    "working folder": ({"files": {"workdir": "/nosuch"}}, "'files.workdir' /nosuch: No such file"),
    "profile that is not there": ({"seccomp": "/nosuch"}, "'seccomp': cannot open /nosuch: No such file"),
    "profile that is none": ({"seccomp": "/etc/passwd"}, "'seccomp' /etc/passwd: not valid JSON at line 1, column 1"),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_policy_is_an_error_that_names_the_key(refused, policy, which):
    content, named = WRONG[which]
    path = policy(content)
    said = refused("-q", "--policy", path, "--", "echo", "ran", says=named)
    assert said.startswith(f"pctx-sandbox: --policy {path}: "), said


def test_what_an_option_replaced_is_called_by_the_option(refused, policy):
    path = policy({"limits": {"memory": 5, "pids": 0}, "files": {"ro": ["/nosuch:/x"]}})
    line = ("--policy", path, "--", "echo", "ran")
    assert "--memory: 6 B is not" in refused("--memory", "6", *line)
    assert f"--policy {path}: 'limits.pids': 0 is not" in refused("--memory", "64M", *line)
    assert f"--policy {path}: 'files.ro': /nosuch: " in refused("--memory", "64M", "--pids", "9", *line)


def test_relative_paths_start_where_the_line_is_typed(pctx, policy, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "data").write_text("lent\n")
    path = policy({"files": {"ro": ["data:/data"]}})
    assert pctx("run", "-q", "--policy", path, "--", "cat", "/data", cwd=tmp_path / "here").stdout == "lent\n"


def test_policy_of_any_size_is_refused_in_time(refused, policy):
    refused("--policy", policy(" " * (2 << 20)), "--", "echo", "ran")
    refused("--policy", "/dev/zero", "--", "echo", "ran")


@pytest.mark.parametrize("quiet", [[], ["-q"]], ids=["", "quiet"])
def test_a_policy_is_read_once(sandbox_bin, tmp_path, quiet):
    """What stands there after the run is perhaps the guest's. Without words of ours nothing was looked at."""
    lent = tmp_path / "lent"
    lent.mkdir()
    lent.chmod(0o777)
    policy = lent / "policy.json"
    policy.write_text("{}")
    code = "rm /mnt/policy.json; mkfifo /mnt/policy.json; exit 3"
    line = [sandbox_bin, "run", *quiet, "--mnt", lent, "--policy", policy, "--", "sh", "-c", code]
    assert subprocess.run(line, timeout=60).returncode == 3 and policy.is_fifo()
    piped = f"{sandbox_bin} run {' '.join(quiet)} --json --policy <(echo '{{}}') -- sh -c 'exit 3'"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and json.loads(done.stdout)["outcome"]["exit_code"] == 3
