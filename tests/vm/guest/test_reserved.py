"""Ubuntu 24.04 lets everyone make a user namespace and gives rights in it to named programs only."""

import subprocess
from pathlib import Path

import pytest
from boxes import RESTRICTION, SLOW

pytestmark = [pytest.mark.vm, pytest.mark.root_only, pytest.mark.reserved]

LIMIT = 60 * max(1, SLOW / 4)


def as_tester(line):
    done = subprocess.run(["su", "-l", "tester", "-c", line], capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module", autouse=True)
def restricted():
    """As the distribution's own boot does it, for which this machine has no service manager."""
    subprocess.run(["apparmor_parser", "--replace", "/etc/apparmor.d/unprivileged_userns"], check=True)
    RESTRICTION.write_text("1")


@pytest.fixture(scope="module")
def set_up(binary):
    """`setup`, once, after the tests that must come before it."""
    done = subprocess.run([binary, "setup", "--yes"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr


def test_anyone_gets_a_namespace_and_no_rights_in_it():
    """What is to be noticed: without the restriction the second would work too."""
    assert as_tester("unshare --user true")[0] == 0
    assert as_tester("unshare --user --mount true")[0] != 0


def test_an_ordinary_users_run_is_refused_with_the_way_out(binary):
    assert subprocess.run([binary, "run", "--", "true"], capture_output=True).returncode == 0  # root's does
    status, _, said = as_tester(f"{binary} run -- true")
    assert status == 125 and "AppArmor" in said and "pctx-sandbox setup" in said, said


def test_doctor_explains_it(binary):
    status, shown, _ = as_tester(f"{binary} doctor")
    assert status == 1 and "apparmor_restrict_unprivileged_userns = 1" in shown, shown
    assert f"sudo {binary} setup" in shown


def test_a_self_check_fails_loudly(binary):
    status, _, said = as_tester(f"{binary} selfcheck")
    assert status == 1 and "SELF-CHECK FAILED" in said and "AppArmor" in said, said


def test_after_setup_the_same_run_works(binary, set_up):
    assert as_tester(f"{binary} run -- true")[0] == 0
    assert as_tester(f"{binary} doctor")[0] == 0
    status, shown, said = as_tester(f"{binary} selfcheck")
    assert status == 0, shown + said


def test_a_copy_elsewhere_stays_refused(binary, set_up):
    copy = Path("/home/tester/copied")
    copy.write_bytes(Path(binary).read_bytes())
    copy.chmod(0o755)
    status, _, said = as_tester(f"{copy} run -- true")
    assert status == 125 and "AppArmor" in said, said
