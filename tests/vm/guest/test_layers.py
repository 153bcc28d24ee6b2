"""The receipt against what the kernel itself says, on kernels and users that a development host may not have."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.vm

REQUIRED = ("user", "pid", "mount", "network", "ipc", "proc", "capabilities", "no-new-privs", "seccomp")


def test_every_required_layer_is_on(box):
    ended = box("--", "true")
    assert ended.status == 0, ended
    assert [name for name in REQUIRED if not ended.layer(name)["on"]] == [], ended


def test_the_guest_has_what_the_receipt_says(box):
    ended = box("--", "cat", "/proc/self/status")
    status = dict(line.split(":", 1) for line in ended.stdout.splitlines())
    assert {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}, ended
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2"), ended


def test_landlock_is_on_exactly_where_the_kernel_has_it(box, machine):
    ended = box("--", "true")
    assert ended.layer("landlock")["on"] == (machine.landlock_abi >= 1), ended


def test_required_landlock_is_refused_where_the_kernel_has_none(box, machine):
    ended = box("--require", "landlock", "--", "true")
    assert ended.status == (0 if machine.landlock_abi >= 1 else 125), ended


def test_cgroups_are_on_exactly_where_somebody_lends_them(box, machine):
    ended = box("--", "true")
    assert ended.layer("cgroups")["on"] == machine.lends_cgroups, ended


def test_the_guests_host_id_is_neither_roots_nor_the_callers(box, running, machine):
    ended = box("--", "true")
    assert ended.layer("subordinate-ids")["on"], ended
    owner = Path(f"/proc/{running().guest}").stat().st_uid
    assert owner not in (0, os.getuid())


def test_doctor_says_that_the_required_set_holds(binary):
    done = subprocess.run([binary, "doctor"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
