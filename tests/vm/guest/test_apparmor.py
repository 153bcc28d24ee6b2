"""The AppArmor layer: a profile on the guest, and kernels that reserve user namespaces for named programs."""

import subprocess
from pathlib import Path

import pytest
from boxes import PROFILE, RESTRICTION

pytestmark = pytest.mark.vm

TREE = Path(__file__).resolve().parents[3]
SOURCE = TREE / "packaging/apparmor" / PROFILE


@pytest.fixture
def profile(machine):
    if not SOURCE.exists():
        pytest.skip(f"needs packaging/apparmor/{PROFILE}")
    assert machine.apparmor


def test_the_guest_runs_under_the_profile(box, profile):
    assert Path("/proc/self/attr/current").read_text().strip("\0\n") == "unconfined"  # the control
    ended = box("--", "cat", "/proc/self/attr/current")
    assert ended.status == 0, ended
    assert ended.layer("apparmor")["on"], ended
    assert PROFILE in ended.stdout and "unconfined" not in ended.stdout, ended


def test_every_day_code_runs_under_the_profile(box, profile):
    code = "import multiprocessing, ssl, sqlite3, subprocess, tempfile; subprocess.run(['id', '-u'], check=True)"
    ended = box("--", "/usr/bin/python3", "-c", code)
    assert ended.status == 0, ended


def test_required_apparmor_is_met(box, profile):
    assert box("--require", "apparmor", "--", "true").status == 0


@pytest.mark.root_only
def test_without_the_profile_the_receipt_says_so_and_require_refuses(box, profile):
    subprocess.run(["apparmor_parser", "--remove", str(SOURCE)], check=True)
    try:
        ended = box("--", "true")
        assert ended.status == 0 and not ended.layer("apparmor")["on"], ended
        refused = box("--require", "apparmor", "--", "true")
        assert refused.status == 125 and PROFILE in refused.stderr, refused
    finally:
        subprocess.run(["apparmor_parser", "--replace", str(SOURCE)], check=True)


@pytest.mark.reserved
@pytest.mark.rootless_only
def test_a_box_starts_where_user_namespaces_are_reserved_for_named_programs(box):
    """After `setup`, which the tests of root did before (test_reserved.py)."""
    assert RESTRICTION.read_text().strip() == "1"
    assert box("--", "true").status == 0
