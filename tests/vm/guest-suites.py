"""Runs in the virtual machine, as root: each suite as root and as an ordinary user, and the sum.

A machine in software is starved whenever its host is busy. As in tests/run.py, what fails is run once more, alone; what
passes then counts as passed and is listed as repeated, up to REPEAT_CAP of one suite.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
SUITES = {
    # Kernels before 5.12 keep mounts apart by other means.
    "vm": ["tests/vm/guest", "tests/security/test_propagation.py"],
    # The same claims as on the host's cgroups, whatever they are, on cgroup v2.
    "limits": [
        "tests/integration/test_usage.py",
        "tests/security/test_memory.py",
        "tests/security/test_kernel_memory.py",
        "tests/security/test_exhaustion.py",
        "tests/security/test_worker_limits.py",
        "tests/security/test_leftovers.py",
        "tests/security/test_lifetime.py",
    ],
    "all": ["tests/integration", "tests/security"],
}
# What the Podman backend promises, where this machine has Podman and systemd: with crun, on cgroup v2.
PODMAN = [
    "tests/integration/test_backends.py",
    "tests/integration/test_podman_pauses.py",  # without root this takes cgroup v2
    "tests/integration/test_podman.py::test_no_device_of_the_host_changes_hands",  # with crun
    "tests/security/test_sandbox_security.py",
]
PROFILE = TREE / "packaging/apparmor/pctx-sandbox-guest"
USERS = ("root", "tester")
# A suite that hangs must not take the others' results with it.
SUITE_LIMIT = 2700
REPEAT_CAP = 8
PASS_ON = ("PATH", "LANG", "PCTX_SANDBOX_BIN", "PCTX_TEST_SLOW", "PCTX_VM", "PYTHONDONTWRITEBYTECODE")


def as_user(user: str, command: list[str]) -> list[str]:
    """The command in a login session of that user; with systemd that means a session scope and XDG_RUNTIME_DIR."""
    variables = [f"{name}={os.environ[name]}" for name in PASS_ON if name in os.environ]
    variables.append(f"PYTHONPATH={TREE / 'python'}")  # the package is not installed in the machine
    line = shlex.join(["env", *variables, *command])
    if user == "root":
        return ["sh", "-c", line]
    return ["su", "-l", user, "-c", f"cd {shlex.quote(str(TREE))} && exec {line}"]


def has_podman() -> bool:
    return shutil.which("podman") is not None and Path("/run/systemd/system").exists()


def run_once(user: str, paths: list[str], *options: str) -> tuple[int, list[str], int]:
    """How many passed, the names of what failed, how many were skipped."""
    name = " ".join([*options, *paths])
    print(f"\n=== {name} as {user}", flush=True)
    report = Path(f"/tmp/report-{user}.xml")
    report.unlink(missing_ok=True)
    pytest = [
        "python3",
        "-m",
        "pytest",
        "-o",
        f"cache_dir=/tmp/pytest-{user}",
        "-o",
        "faulthandler_timeout=600",
        "-q",
        "-rfE",
        "--tb=short",
        "--continue-on-collection-errors",
        # Claims about big packages and tools that this small machine lacks; the host's run has them.
        "--ignore=tests/integration/test_everyday.py",
        # Half of it claims something about kernels without AppArmor; test_profiles.py has the claims with it.
        "--ignore=tests/integration/test_selfcheck.py",
        # Both, so that tests/conftest.py keeps what is marked for this machine.
        "-m",
        "vm or not vm",
        f"--junitxml={report}",
        *options,
        *paths,
    ]
    started = time.monotonic()
    status = subprocess.run(
        ["timeout", "--kill-after=10", str(SUITE_LIMIT), *as_user(user, pytest)], cwd=TREE
    ).returncode
    seconds = time.monotonic() - started
    passed = skipped = known = 0
    failed = []
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = []
    for case in cases:
        reason = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}.{case.get('name')}")
        elif reason is not None and reason.get("type") == "pytest.xfail":
            known += 1
        elif reason is not None:
            skipped += 1
            print(f"skipped: as {user}: {case.get('name')}: {reason.get('message').splitlines()[0]}", flush=True)
        else:
            passed += 1
    if status in (124, 137):
        failed.append(f"{name}: killed, not finished after {SUITE_LIMIT} s")
    elif status not in (0, 5) and not failed:  # 5: no test collected
        failed.append(f"{name}: pytest ended with {status} though no test failed")
    counts = f"{passed} passed, {len(failed)} failed, {skipped} skipped, {known} known to fail"
    print(f"=== {name} as {user}: {counts}, {seconds:.0f} s", flush=True)
    return passed, failed, skipped


def run_suite(user: str, paths: list[str], *options: str) -> tuple[int, int, int]:
    passed, failed, skipped = run_once(user, paths, *options)
    if 0 < len(failed) <= REPEAT_CAP:
        again, still, skips = run_once(user, paths, "--last-failed", "--last-failed-no-failures=none", *options)
        if again + len(still) + skips >= len(failed):  # or else these were not the same tests
            for name in set(failed) - set(still):
                print(f"repeated: as {user}: {name} failed at first and passed alone", flush=True)
            passed, failed, skipped = passed + again, still, skipped + skips
    return passed, len(failed), skipped


def main() -> int:
    passed = failed = skipped = 0
    # Set-up does this once on a user's machine, as root; the tests of both users rely on it.
    if PROFILE.exists() and subprocess.run(["apparmor_parser", "--replace", str(PROFILE)]).returncode != 0:
        print(f"{PROFILE.relative_to(TREE)} does not load", flush=True)
        failed += 1
    wanted = (TREE / "suites").read_text().strip()
    suites = [(SUITES["vm"], ())]
    if wanted != "vm":
        suites.append((SUITES[wanted], ()))
    if has_podman() and wanted != "all":  # which has them, too
        suites.append((PODMAN, ("-k", "podman")))
    for paths, options in suites:
        for user in USERS:
            counts = run_suite(user, paths, *options)
            passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
