"""A mistake in the decorator's arguments is answered at decoration, with one sentence that says what to write."""

import os
import subprocess
import sys

import neighbours
import pytest
from pctx_sandbox import (
    LimaNotInstalledError,
    PlatformNotSupportedError,
    PodmanNotInstalledError,
    SandboxExecutor,
    sandbox,
    sandbox_async,
)
from pctx_sandbox._requirements import normalise


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"dependencies": "pandas"}, TypeError, r"dependencies=\['pandas'\]"),
        ({"dependencies": [3]}, TypeError, "strings"),
        ({"dependencies": [""]}, ValueError, "empty"),
        ({"dependencies": ["--index-url x"]}, ValueError, "no options"),
        ({"dependencies": ["-r requirements.txt"]}, ValueError, "no options"),
        ({"dependencies": ["./package"]}, ValueError, "no paths"),
        ({"dependencies": ["pkg.whl"]}, ValueError, "no paths"),
        ({"dependencies": ["git+https://host/x"]}, ValueError, "no URLs"),
        ({"dependencies": ["pkg @ file:///x"]}, ValueError, "no URLs"),
        ({"dependencies": ["pandas numpy"]}, ValueError, "no requirement"),
        ({"dependencies": ["pandas\n--index-url x"]}, ValueError, "control"),
        ({"memory_mb": 0}, ValueError, "at least 16"),
        ({"memory_mb": 1.5}, TypeError, "whole number"),
        ({"memory_mb": True}, TypeError, "whole number"),
        ({"timeout_sec": 0}, ValueError, "more than 0"),
        ({"timeout_sec": float("inf")}, ValueError, "finite"),
        ({"timeout_sec": float("nan")}, ValueError, "finite"),
        ({"timeout_sec": "30"}, TypeError, "number"),
        ({"cpus": -1}, ValueError, "more than 0"),
        ({"pids": 0}, ValueError, "at least 1"),
        ({"disk_mb": 0}, ValueError, "at least 1"),
        ({"inodes": 1}, ValueError, "at least 16"),
        ({"output_mb": 0}, ValueError, "more than 0"),
        ({"cpu_time_sec": 0}, ValueError, "more than 0"),
        ({"allow_network": True}, TypeError, "list of host names"),
        ({"allow_network": False}, TypeError, "list of host names"),
        ({"allow_network": "example.com"}, TypeError, r"allow_network=\['example.com'\]"),
        ({"allow_network": ["http://example.com/"]}, ValueError, "is a URL"),
        ({"disable_cache": 1}, TypeError, "True or False"),
        ({"env": {"A": 1}}, TypeError, "strings"),
        ({"env": {"A B": "1"}}, ValueError, "name of a variable"),
        ({"env": os.environ}, ValueError, "every secret"),
        ({"mnt_dir": 3}, TypeError, "path of a folder"),
        ({"include": "mypkg"}, TypeError, r"include=\['mypkg'\]"),
        ({"include": ["my.pkg"]}, ValueError, "top-level"),
        ({"returns": "pickle"}, ValueError, "'data', 'opaque'"),
        ({"backend": "docker"}, ValueError, "'podman'"),
        ({"build_timeout_sec": 0}, ValueError, "more than 0"),
        ({"queue_timeout_sec": -1}, ValueError, "more than 0"),
        ({"require": ["landlok"]}, ValueError, "no layer"),
        ({"allow_degraded": "cgroups"}, TypeError, "takes a list"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, kind, words):
    for make in (sandbox, sandbox_async, SandboxExecutor):
        with pytest.raises(kind, match=words) as caught:
            make(**arguments)
        assert "\n" not in str(caught.value)


def test_every_argument_may_be_given():
    decorated = sandbox(
        dependencies=["pandas>=2"],
        memory_mb=256,
        timeout_sec=1.5,
        cpus=0.5,
        allow_network=None,
        disable_cache=True,
        pids=8,
        disk_mb=16,
        inodes=100,
        output_mb=0.5,
        cpu_time_sec=3,
        env={"TZ": "UTC"},
        mnt_dir=".",
        include=["json"],
        returns="opaque",
        backend="namespaces",
        build_timeout_sec=60,
        queue_timeout_sec=5,
        require=["landlock"],
        allow_degraded=["cgroups"],
    )(lambda: None)
    policy = decorated._prepared.settings.policy()
    assert policy == {
        "limits": {
            "memory": 256 << 20,
            "cpus": 0.5,
            "pids": 8,
            "disk": 16 << 20,
            "inodes": 100,
            "timeout": 1.5,
            "cpu_time": 3,
        },
        "network": "none",
        "identity": {"env": {"TZ": "UTC"}},
        "files": {"mnt": os.getcwd()},
        "require": ["landlock"],
        "allow_degraded": ["cgroups"],
    }


def test_the_first_six_arguments_may_be_positional():
    config = sandbox(["pandas"], 512, 10, 2, None, True)(lambda: None)._sandbox_config
    assert (config["memory_mb"], config["timeout_sec"], config["cpus"], config["disable_cache"]) == (512, 10, 2, True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["pandas", "numpy"], ["numpy", "pandas "]),
        (["Scikit_Learn"], ["scikit-learn"]),
        (["pandas >= 2, <3"], ["pandas<3,>=2"]),
        (["uvicorn[Standard, extra]"], ["uvicorn[extra,standard]"]),
        (["a (>=1)"], ["a>=1"]),
        (["a", "a"], ["a"]),
        (["a ;  python_version >= '3.10'"], ["a; python_version >= '3.10'"]),
        ([], None),
    ],
)
def test_requirements_have_one_normal_form(one, other):
    assert normalise(one) == normalise(other)


def test_other_systems_are_told_the_way(monkeypatch):
    @sandbox
    def function():
        return 1

    for platform, way in (("darwin", "lima"), ("win32", "WSL2")):
        monkeypatch.setattr(sys, "platform", platform)
        with pytest.raises(PlatformNotSupportedError, match=way):
            function()


ELSEWHERE = """
import asyncio, importlib.metadata, mmap, os, select, socket, subprocess, sys
for module, names in (
    (select, "poll"),
    (socket, "AF_UNIX CMSG_SPACE SCM_RIGHTS SO_PEERCRED SOCK_SEQPACKET send_fds"),
    (socket, "MSG_CMSG_CLOEXEC MSG_NOSIGNAL MSG_DONTWAIT"),
    (os, "register_at_fork fork memfd_create geteuid sched_getaffinity"),
    (mmap, "MAP_PRIVATE"),
):
    for name in names.split():
        delattr(module, name)
for name in ("fcntl", "pctx_sandbox._native"):
    sys.modules[name] = None
sys.platform = "win32"
import pctx_sandbox
@pctx_sandbox.sandbox(dependencies=["pandas"])
def function():
    return 1
for call in (function, lambda: function.submit().result()):
    try:
        call()
    except pctx_sandbox.PlatformNotSupportedError as error:
        print("WSL2" in str(error))
"""


def test_the_package_can_be_imported_where_linux_is_missing():
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, env=neighbours.environment()
    )
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_another_backend_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PodmanNotInstalledError, match="apt-get install podman"):
        sandbox(backend="podman")(lambda: 1)()
    with pytest.raises(LimaNotInstalledError, match="brew install lima"):
        sandbox(backend="lima")(lambda: 1)()
    with pytest.raises(PlatformNotSupportedError, match="auto"):
        sandbox(backend="microvm")(lambda: 1)()


def test_only_backends_that_there_are_are_offered():
    with pytest.raises(ValueError, match="choose one of 'auto', 'namespaces', 'podman', 'lima'$"):
        sandbox(backend="docker")(lambda: 1)
