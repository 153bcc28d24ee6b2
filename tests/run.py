"""What `make test` runs after set-up: every part, some beside each other, then one line with the sum.

The last line is `N passed, N failed, N skipped`. The exit code is 1 if anything failed, or if more was skipped than
SKIP_CAP: a suite that skips its way to green proves nothing.

A machine with two cores that somebody else uses too fails a test of four thousand now and then, for want of time. What
fails is therefore run once more, when no other part runs any more; if it passes then, it counts as passed and is listed
as repeated, its first failure shown in full above. More than REPEAT_CAP of these fail the whole: then it is not the
machine.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import beside

TREE = Path(__file__).resolve().parent.parent
TEST_USER = "pctx-test"

# Skips come from host features (cgroup version, AppArmor, Landlock) and programs; they occur once as root and once as a
# user. A minimal Ubuntu 22.04, with Podman 3.4 and without node, Java and two of three shells, has 35 of 5300.
SKIP_CAP = 40

REPEAT_CAP = 8

# Parts that run at the same time: there are two cores, and a suite spends half of its time waiting.
AT_ONCE = 5

# Seconds. Far above what an idle machine needs: these end what hangs, they do not measure.
SUITE_LIMIT = 1800

LAST_LINE = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")


@dataclasses.dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skips: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    repeated: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skips += other.skips
        self.failures += other.failures
        self.repeated += other.repeated

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {len(self.skips)} skipped"


def say(*lines: str) -> None:
    print(*lines, sep="\n", file=beside.output.get(), flush=True)


def failure(sentence: str) -> Tally:
    say(f"FAILED: {sentence}")
    return Tally(failed=1, failures=[sentence])


def skip(sentence: str) -> Tally:
    return Tally(skips=[sentence])


@dataclasses.dataclass
class Identity:
    """Who runs the tests: an own command prefix or own ids, and where this user finds the files."""

    name: str
    root: Path = TREE
    python: tuple[str, ...] = (sys.executable,)
    env: dict[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    ids: dict[str, object] = dataclasses.field(default_factory=dict)


def run(command: list[str], *, timeout: float, **options) -> int | None:
    """The exit code, or None when the time was up and the command with all its children was killed."""
    if beside.output.get() is not None:
        options = {"stdout": beside.output.get(), "stderr": subprocess.STDOUT} | options
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, **options)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def first_line(message: str | None) -> str:
    lines = [line for line in (message or "").splitlines() if line.strip() and not re.search(r"\.cc:\d+$", line)]
    return lines[0] if lines else "no reason given"


def read_report(report: Path) -> Tally:
    """Sums the XML report that pytest and GoogleTest write in the same form."""
    tally = Tally()
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.get("status") == "notrun":  # GoogleTest: filtered out or named DISABLED_
            continue
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed += 1
            tally.failures.append(f"{case.get('classname')}.{case.get('name')}")
        elif skipped is not None:
            # Of a whole file, pytest says why in the text: ('PATH', LINE, 'Skipped: WHY').
            why = re.search(r"Skipped: (.*?)['\"]\)?$", skipped.text or "")
            reason = why.group(1) if why else first_line(skipped.get("message"))
            tally.skips.append(f"{case.get('classname')}.{case.get('name')}: {reason}")
        else:
            tally.passed += 1
    return tally


def repeat(first: Tally, again: Callable[[], Tally]) -> Tally:
    """`first`, with its failures replaced by what they give when they are run once more, without the rest."""
    if not 0 < first.failed <= REPEAT_CAP:
        return first
    say(f"repeating alone: {', '.join(first.failures)}")
    with beside.alone():
        second = again()
    if second.passed + second.failed + len(second.skips) < first.failed:  # Not the same tests: nothing was shown.
        return first
    first.repeated = [name for name in first.failures if name not in second.failures]
    first.failed, first.failures = 0, []
    first.add(second)
    return first


def unit_tests(preset: str) -> Tally:
    first = gtest(preset)
    return repeat(first, lambda: gtest(preset, f"--gtest_filter={':'.join(first.failures)}"))


def gtest(preset: str, *arguments: str) -> Tally:
    program = TREE / "build" / preset / "unit_tests"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "unit.xml"
        env = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_stack_use_after_return=1"}
        command = [str(program), "--gtest_brief=1", f"--gtest_output=xml:{report}", *arguments]
        code = run(command, timeout=240, cwd=TREE, env=env)
        if code is None:
            return failure(f"{program.name} ({preset}) did not end within 240 s")
        if not report.exists():
            return failure(f"{program.name} ({preset}) ended with {code} and without a report")
        tally = read_report(report)
    if code != 0 and tally.failed == 0:  # A sanitizer reported after the last test.
        tally.add(failure(f"{program.name} ({preset}) exited with {code} though no test failed"))
    return tally


def built_unit_tests(preset: str, *targets: str) -> Tally:
    if not (TREE / f"build/{preset}/build.ninja").exists():
        run(["cmake", "--preset", preset], timeout=SUITE_LIMIT, cwd=TREE, stdout=subprocess.DEVNULL)
    # It takes what the suites beside it leave over: they wait for their boxes, and it would keep all cores busy.
    build = ["nice", "-n", "15", "cmake", "--build", "--preset", preset, "--target", *targets]
    if run(build, timeout=SUITE_LIMIT, cwd=TREE) != 0:
        return failure(f"the {preset} preset does not build")
    return unit_tests(preset)


def pytest(identity: Identity, *arguments: str, timeout: float) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # The tests' user writes the report and the list of what failed.
        first = pytest_once(identity, Path(folder), *arguments, timeout=timeout)
        only_failed = ("--last-failed", "--last-failed-no-failures=none")
        return repeat(first, lambda: pytest_once(identity, Path(folder), *only_failed, *arguments, timeout=timeout))


def pytest_once(identity: Identity, folder: Path, *arguments: str, timeout: float) -> Tally:
    report = folder / "junit.xml"
    report.unlink(missing_ok=True)
    command = [*identity.python, "-m", "pytest", "-q", "--no-header", "--strict-markers", "--tb=short"]
    command += ["-o", f"cache_dir={folder / 'cache'}", f"--junitxml={report}", *arguments]
    code = run(command, timeout=timeout, cwd=identity.root, env=identity.env, **identity.ids)
    if code is None:
        return failure(f"pytest {' '.join(arguments)} as {identity.name} did not end within {timeout:.0f} s")
    if code == 5:
        return failure(f"pytest found no test in {' '.join(arguments)}")
    if not report.exists():
        return failure(f"pytest {' '.join(arguments)} as {identity.name} ended with {code} and without a report")
    tally = read_report(report)
    tally.skips = [f"as {identity.name}: {reason}" for reason in tally.skips]
    if code != 0 and tally.failed == 0:
        tally.add(failure(f"pytest as {identity.name} exited with {code} though no test failed"))
    return tally


def index_settings() -> dict[str, str]:
    """Where packages come from on this host, for tests that build Environments under another identity."""
    kept = (
        "UV_",
        "PIP_",
        "SSL_CERT_",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    )
    return {name: value for name, value in os.environ.items() if name.startswith(kept)}


def suite_env(base: dict[str, str], root: Path) -> dict[str, str]:
    return base | {"PCTX_SANDBOX_BIN": str(root / ".venv/bin/pctx-sandbox"), "PYTHONDONTWRITEBYTECODE": "1"}


def myself() -> Identity:
    name = "root" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    return Identity(name, env=suite_env(dict(os.environ), TREE))


def root_by_sudo() -> Identity | None:
    if not shutil.which("sudo") or run(["sudo", "-n", "true"], timeout=20, stderr=subprocess.DEVNULL) != 0:
        return None
    env = suite_env(index_settings(), TREE)
    return Identity("root", python=("sudo", "-n", "env", *(f"{k}={v}" for k, v in env.items()), sys.executable))


def ordinary_user() -> pwd.struct_passwd:
    """An account of its own for the tests, with a home and subordinate ids; it stays for the next run."""
    try:
        return pwd.getpwnam(TEST_USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", TEST_USER], check=True)
        say(f"made the user {TEST_USER} for the tests of rootless runs (userdel -r {TEST_USER} removes it)")
        return pwd.getpwnam(TEST_USER)


def copy_readable(folder: Path, target: Path) -> None:
    """By links, if the files are on the same disk and everybody may read them: these are more than a gigabyte."""
    search = ["find", folder, "-type", "f", "!", "-perm", "-o=r", "-print", "-quit"]
    closed = subprocess.run(search, capture_output=True)
    linked = not closed.stdout and subprocess.run(["cp", "-al", folder, target], capture_output=True).returncode == 0
    if not linked:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", "--reflink=auto", folder, target], check=True)


@contextlib.contextmanager
def staged_for(user: pwd.struct_passwd):
    """A copy of the program, the tests and their packages that `user` can read: the tree may be below a closed home."""
    stage = Path(tempfile.mkdtemp(prefix="pctx-tests-", dir="/var/tmp"))
    try:
        os.chmod(stage, 0o755)
        for part in ("tests", "python", "examples", "packaging", "docs", "src"):
            if (TREE / part).is_dir():
                shutil.copytree(TREE / part, stage / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(TREE / "README.md", stage)
        (stage / ".venv/bin").mkdir(parents=True)
        for program in ("pctx-sandbox", "uv"):
            shutil.copy(TREE / ".venv/bin" / program, stage / ".venv/bin")
        (stage / "build/release").mkdir(parents=True)
        shutil.copy(TREE / "build/release/relay_driver", stage / "build/release")
        packages = next((TREE / ".venv/lib").glob("python3*/site-packages"))
        copy_readable(packages, stage / "packages")
        package = TREE / "python/pctx_sandbox"
        shutil.copytree(package, stage / "packages/pctx_sandbox", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", str(stage)], check=True)
        env = index_settings() | {
            "HOME": user.pw_dir,
            "USER": user.pw_name,
            "LOGNAME": user.pw_name,
            "SHELL": "/bin/sh",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{stage / 'packages'}:{stage / 'python'}",
        }
        ids = {
            "user": user.pw_uid,
            "group": user.pw_gid,
            "extra_groups": os.getgrouplist(user.pw_name, user.pw_gid),
        }
        interpreter = os.path.realpath(sys.executable)
        yield Identity(user.pw_name, stage, (interpreter,), suite_env(env, stage), ids)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


# What parts share and main() removes.
SHARED = contextlib.ExitStack()
SHARING = threading.Lock()


@functools.cache
def staged_user() -> Identity:
    return SHARED.enter_context(staged_for(ordinary_user()))


def as_root(suite: str) -> Tally:
    identity = myself() if os.geteuid() == 0 else root_by_sudo()
    if identity is None:
        return skip(f"{suite} as root: this user is not root and `sudo -n` does not work")
    return pytest(identity, suite, timeout=SUITE_LIMIT)


def as_user(suite: str) -> Tally:
    with SHARING:
        identity = staged_user() if os.geteuid() == 0 else myself()
    return pytest(identity, suite, timeout=SUITE_LIMIT)


def chaos() -> Tally:
    """Folder by folder: some have files of the same name."""
    tally = Tally()
    for folder in ("tests/chaos", "tests/integration", "tests/security", "tests/python"):
        if marked(TREE / folder, "chaos"):
            tally.add(pytest(myself(), folder, "-m", "chaos", timeout=1800))
    return tally


def marked(folder: Path, mark: str) -> bool:
    return any(f"mark.{mark}" in file.read_text() for file in folder.glob("test_*.py"))


def style() -> Tally:
    return pytest(myself(), "tests/style", timeout=300)


def script(command: list[str], timeout: float) -> Tally:
    """A script of ours whose last line has the same form as ours; without such a line it counts as one test."""
    if not (TREE / command[0]).exists():
        return skip(f"{command[0]} does not exist in this tree")
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        code = run([str(TREE / command[0]), *command[1:]], timeout=timeout, cwd=TREE, stdout=printed)
        printed.seek(0)
        lines = printed.read().splitlines()
    say(*lines)
    match = LAST_LINE.match(lines[-1]) if lines else None
    if code is None:
        return failure(f"{command[0]} did not end within {timeout:.0f} s")
    if match is None:
        return Tally(passed=1) if code == 0 else failure(f"{command[0]} exited with {code}")
    passed, failed, skipped = map(int, match.groups())
    reasons = [line for line in lines if line.startswith("skipped: ")]
    reasons += [f"{command[0]}: no reason given"] * (skipped - len(reasons))
    tally = Tally(passed, failed, reasons[:skipped])
    if code != 0 and failed == 0:
        tally.add(failure(f"{command[0]} exited with {code} though no test failed"))
    return tally


Part = tuple[str, Callable[[], Tally]]

# Parts of one row run beside each other, AT_ONCE at a time, the longest first. The documents' commands are left for the
# end: they remove the very image and container of Podman that the suite as root uses.
QUICK: list[tuple[Part, ...]] = [
    (("unit tests, release build", lambda: unit_tests("release")),),
    (
        ("integration tests, as root", lambda: as_root("tests/integration")),
        ("integration tests, as an ordinary user", lambda: as_user("tests/integration")),
        ("security tests, as root", lambda: as_root("tests/security")),
        ("security tests, as an ordinary user", lambda: as_user("tests/security")),
        ("unit tests, ASan and UBSan", lambda: built_unit_tests("asan", "unit_tests")),
        ("tests of the Python package", lambda: pytest(myself(), "tests/python", timeout=SUITE_LIMIT)),
    ),
    (("style tests", style),),
]
SLOW: list[tuple[Part, ...]] = [
    (("unit tests, every file compiled by itself", lambda: built_unit_tests("dev", "all")),),
    (("virtual machines with cgroup v2 and AppArmor", lambda: script(["tests/vm/run.sh"], timeout=12000)),),
    (("chaos, as root", chaos),),
    (("the wheel and the clone, installed", lambda: script(["scripts/check-wheel.sh"], timeout=3300)),),
    (("fuzzing, 60 s each", lambda: script(["scripts/fuzz.sh", "60"], timeout=1800)),),
]


def timed(part: Part) -> tuple[Tally, str]:
    name, work = part
    began = time.monotonic()
    try:
        tally = work()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        tally = failure(f"{name}: {error}")
    return tally, f"  {name}: {tally} ({time.monotonic() - began:.0f} s)"


def in_row(row: tuple[Part, ...]):
    """The parts' tallies and lines, each as soon as it is over."""
    if len(row) == 1:
        yield timed(row[0])
        return
    for result, text in beside.run([functools.partial(timed, part) for part in row], AT_ONCE):
        print(text, end="")
        yield result


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs all tests; `make test` and `make test-all` do the set-up first.")
    parser.add_argument("--all", action="store_true", help="also the virtual machine, chaos and fuzzing")
    parser.add_argument("--only", metavar="TEXT", help="only the parts whose name contains TEXT")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)

    rows = QUICK + (SLOW if options.all else [])
    rows = [tuple(part for part in row if not options.only or options.only in part[0]) for row in rows]
    rows = [row for row in rows if row]
    if not rows:
        parser.error(f"no part is named like {options.only!r}")
    total, start, summary = Tally(), time.monotonic(), []
    with SHARED:
        for number, row in enumerate(rows, 1):
            print(f"\n=== [{number}/{len(rows)}]", " | ".join(name for name, _ in row))
            for tally, line in in_row(row):
                summary.append(line)
                print(line.strip())
                total.add(tally)

    print(f"\n=== all parts ({time.monotonic() - start:.0f} s)", *summary, sep="\n")
    for reason in total.skips:
        print(f"  skipped: {reason.removeprefix('skipped: ')}")
    for name in total.failures:
        print(f"  failed: {name}")
    for name in total.repeated:
        print(f"  repeated: {name} failed at first and passed alone")
    too_many = [f"{len(total.skips)} skips: this host lacks too much"] if len(total.skips) > SKIP_CAP else []
    too_many += [f"{len(total.repeated)} repeated tests: too much fails"] if len(total.repeated) > REPEAT_CAP else []
    for sentence in too_many:
        print(f"  {sentence} for the result to mean anything")
    print(total)
    return 1 if total.failed or too_many else 0


if __name__ == "__main__":
    sys.exit(main())
