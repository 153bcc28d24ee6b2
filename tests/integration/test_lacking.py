"""Layers that a box can be without, on hosts that refuse them: the receipt says so; who asked for one is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import refusing_host
from waiting import in_time

REASONS = {
    "uts": ("uts", "this host refuses it: No space left on device"),
    "cgroup": ("cgroup-namespace", "this host refuses it: No space left on device"),
    "name": ("uts", "new, but its host name cannot be set: it is the host's: Operation not permitted"),
}


@pytest.fixture(scope="module")
def on_host(sandbox_bin):
    """on_host("uts", "run", …): the program where no such namespace can be made, or (`name`) no host name be set."""
    probe = subprocess.run(refusing_host.without_namespaces("uts", "true"), capture_output=True)
    if probe.returncode != 0:
        pytest.skip("needs `unshare -U -r` to set limits of namespaces")

    def call(lack, *words):
        wrap = refusing_host.without_host_name if lack == "name" else refusing_host.without_namespaces
        host = wrap(sandbox_bin, *words) if lack == "name" else wrap(lack, sandbox_bin, *words)
        return subprocess.run(host, capture_output=True, text=True, timeout=60)

    return call


@pytest.mark.parametrize("lack", REASONS)
def test_a_box_does_without_and_its_receipt_says_so(on_host, lack):
    layer, reason = REASONS[lack]
    kind = "cgroup" if lack == "cgroup" else "uts"
    done = on_host(lack, "run", "--json", "--", "sh", "-c", f"readlink /proc/self/ns/{kind}; uname -n")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["receipt"]["layers"][layer] == {"on": False, "detail": reason}
    namespace, name = report["stdout"].split()
    assert (namespace == os.readlink(f"/proc/self/ns/{kind}")) == (lack != "name")
    assert (name == os.uname().nodename) == (layer == "uts")
    others = {"uts", "cgroup-namespace"} - {layer}
    assert all(report["receipt"]["layers"][other]["on"] for other in others)  # the control


@pytest.mark.parametrize("lack", REASONS)
def test_who_requires_it_is_refused(on_host, lack):
    layer, _ = REASONS[lack]
    done = on_host(lack, "run", "--require", layer, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    first, hint = done.stderr.splitlines()[-2:]
    assert first.startswith(f"pctx-sandbox: --require {layer}: this host refuses") and hint.startswith("hint: "), first


@pytest.mark.parametrize("lack", ["uts", "name"])
def test_a_host_name_that_was_asked_for_is_not_left_out_in_silence(on_host, lack):
    done = on_host(lack, "run", "--hostname", "mine", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    first, hint = done.stderr.splitlines()[-2:]
    assert first.startswith("pctx-sandbox: --hostname mine: this host refuses") and hint.startswith("hint: "), first
    accepted = on_host(lack, "run", "-q", "--hostname", "mine", "--allow-degraded", "uts", "--", "echo", "ran")
    assert accepted.stdout == "ran\n", accepted.stderr


@pytest.mark.parametrize("lack", REASONS)
def test_doctor_blames_the_layer_that_is_refused_and_no_other(on_host, lack):
    layer, reason = REASONS[lack]
    done = on_host(lack, "doctor", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ready"]) == (0, True), found["verdict"]
    layers = {entry["name"]: entry for entry in found["layers"]}
    assert (layers[layer]["on"], layers[layer]["detail"]) == (False, reason)
    remedies = {remedy["about"]: remedy["blocks"] for remedy in found["remedies"]}
    assert remedies[layer] is False and "user" not in remedies


CALL = """
from pctx_sandbox import sandbox

@sandbox
def where():
    import os
    return os.uname().nodename

print(where())
"""


@pytest.mark.parametrize("lack", REASONS)
def test_workers_do_without_too(on_host, lack, tmp_path, sandbox_bin):
    (tmp_path / "call.py").write_text(CALL)
    env = os.environ | {"PCTX_SANDBOX_SOCKET": str(tmp_path / "s"), "PCTX_SANDBOX_BINARY": sandbox_bin}
    words = [
        "sh",
        "-c",
        '"$0" "$1"; status=$?; "$2" stop >&2; exit $status',
        sys.executable,
        tmp_path / "call.py",
        sandbox_bin,
    ]
    host = refusing_host.without_host_name(*words) if lack == "name" else refusing_host.without_namespaces(lack, *words)
    done = subprocess.run(host, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.strip() == os.uname().nodename) == (lack != "cgroup")


WITHOUT_USER = """
read mapped
echo 0 > /proc/sys/user/max_user_namespaces
mounts() { wc -l < /proc/self/mountinfo; }
before=$(mounts)
"$@"
echo $? $(($(mounts) - before))
"""


@pytest.mark.root_only
def test_root_does_without_a_user_namespace_where_it_says_so(sandbox_bin):
    """In a user namespace of all ids that allows none below it, with mounts as shared as systemd makes them."""

    def call(*words):
        wrap = [
            "unshare",
            "--user",
            "--keep-caps",
            "--mount",
            "--propagation",
            "shared",
            "sh",
            "-c",
            WITHOUT_USER,
            "sh",
        ]
        command = [*wrap, sandbox_bin, "run", "--backend", "namespaces", *words, "--", "cat", "/proc/self/status"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        own = os.readlink("/proc/self/ns/user")
        assert in_time(lambda: os.readlink(f"/proc/{process.pid}/ns/user") != own)
        for file in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{file}").write_text("0 0 4294967295")
        out, err = process.communicate("mapped\n", timeout=60)
        *said, last = out.splitlines()
        return dict(line.split(":\t", 1) for line in said), last, err

    said, ended, error = call()
    assert (said, ended) == ({}, "125 0") and "user namespaces are switched off" in error  # the control
    said, ended, error = call("--allow-degraded", "user")
    assert ended == "0 0" and "WARNING: the box has no user namespace of its own" in error
    assert {said[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert said["Seccomp"] == "2" and "0" not in said["Uid"].split() and said["Pid"] == "2"
