"""`--policy FILE` is strict, options win over it, and --print-policy can be read back."""

import json

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


def test_options_win(pctx, policy):
    mixed = printed(pctx, "--policy", policy(FULL), "--memory", "64M", "--env", "A=2", "--env", "B=3", "--uid", "7")
    assert mixed["limits"]["memory"] == 64 << 20 and mixed["limits"]["pids"] == 20
    assert mixed["identity"] == {"env": {"A": "2", "B": "3"}, "hostname": "named", "uid": 7}


def test_options_become_a_policy(pctx, tmp_path):
    made = printed(pctx, "--mnt", tmp_path, "--rw", f"{tmp_path}:/other", "--cpu-time", "2s", "--network", "host")
    assert made["files"] == {"mnt": str(tmp_path), "rw": [f"{tmp_path}:/other"]}
    assert made["limits"]["cpu_time"] == 2.0 and made["network"] == "host"


WRONG = {
    "unknown key": ({"limit": {}}, "limit"),
    "unknown key below": ({"limits": {"ram": 1}}, "limits.ram"),
    "wrong type": ({"limits": {"pids": "x"}}, "limits.pids"),
    "negative": ({"limits": {"pids": -1}}, "limits.pids"),
    "fraction": ({"limits": {"files": 1.5}}, "limits.files"),
    "out of range": ({"limits": {"memory": 1}}, "--memory"),
    "list for an object": ([], "object"),
    "not JSON": ("{", "JSON"),
    "empty": ("", "JSON"),
    "key twice": ('{"network": "none", "network": "host"}', "network"),
    "too deep": ("[" * 100 + "]" * 100, "nested"),
    "unknown layer": ({"require": ["magic"]}, "magic"),
    "unknown network": ({"network": "bridge"}, "bridge"),
    "uid": ({"identity": {"uid": 65534}}, "uid"),
    "variable": ({"identity": {"env": {"A": 1}}}, "env"),
    "NUL": ({"identity": {"env": {"A": "x\0y"}}}, "--env"),
    "null": ({"files": {"mnt": None}}, "files.mnt"),
    "reserved target": ({"files": {"ro": ["/usr:/proc/x"]}}, "/proc"),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_policy_is_an_error_that_names_the_key(refused, policy, which):
    content, named = WRONG[which]
    refused("--policy", policy(content), "--", "echo", "ran", says=named)


def test_policy_of_any_size_is_refused_in_time(refused, policy):
    refused("--policy", policy(" " * (2 << 20)), "--", "echo", "ran")
    refused("--policy", "/dev/zero", "--", "echo", "ran")
