"""Every sentence of docs/promises.md names tests that exist, or says why the promise is not kept."""

import re
import subprocess
import sys

import project
import pytest

PAGE = "docs/promises.md"
MACHINE = "tests/vm/guest"
SUITES = ("tests/integration", "tests/security", "tests/python", "tests/style")
TEST = re.compile(r"`(tests/[\w/]+\.py::[\w:]+)`")
DEVIATION = re.compile(r"\bdeviation: \S+ \S+")
GROUPS = ("Filesystem", "Environment", "Network", "Process", "Privilege")


def rows(text):
    """(line number, sentence, what shows it) of every table; a `\\|` is no border."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|") or line.startswith(("| sentence |", "| ---")):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        yield number, cells[0], cells[1] if len(cells) == 2 else ""


ROWS = list(rows(project.text(PAGE)))


@pytest.fixture(scope="module")
def collected():
    """The names of all tests, without their parameters. One process for each suite: their files share names."""
    names = set()
    for suite in SUITES:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", suite]
        done = subprocess.run(command, cwd=project.TREE, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:]
        names |= {line.split("[")[0] for line in done.stdout.splitlines() if "::" in line}
    # Read, not run: those of the virtual machine, and those of Podman where there is none.
    files = {name.split("::")[0] for name in names}
    for folder in (MACHINE, *SUITES):
        for path in sorted((project.TREE / folder).glob("test_*.py")):
            if f"{folder}/{path.name}" not in files:
                tests = re.findall(r"^def (test_\w+)", path.read_text(), re.M)
                names |= {f"{folder}/{path.name}::{name}" for name in tests}
    return names


def test_every_sentence_has_a_test_or_a_reason():
    assert len(ROWS) > 100, "the tables are gone"
    assert [row for row in ROWS if not row[1] or not (TEST.search(row[2]) or DEVIATION.search(row[2]))] == []


def test_every_named_test_exists(collected):
    named = {name for _, _, shown in ROWS for name in TEST.findall(shown)}
    assert len(named) > 50
    assert sorted(named - collected) == []


def test_every_name_in_backticks_is_read():
    """A misspelt reference must not pass as prose."""
    assert [row for row in ROWS if len(TEST.findall(row[2])) != row[2].count("`tests/")] == []


def test_the_seven_groups_are_classes(collected):
    classes = {name.split("::")[1] for name in collected if name.startswith("tests/security/test_sandbox_security.py")}
    assert classes == {*(f"Test{group}Isolation" for group in GROUPS), "TestResourceLimits", "TestSyscallFiltering"}


@pytest.mark.parametrize("shown", ["", "soon", "deviation:", "`tests/style/test_promises.py`"])
def test_the_check_sees_a_row_without_either(shown):
    ((_, _, read),) = rows(f"| A promise. | {shown} |")
    assert not TEST.search(read) and not DEVIATION.search(read)


# --- what is promised about the repository itself ---


def test_the_license_is_mit():
    assert project.text("LICENSE").startswith("MIT License")


def test_make_help_lists_every_verb():
    shown = subprocess.run(["make", "help"], cwd=project.TREE, capture_output=True, text=True).stdout
    verbs = re.search(r"^\.PHONY: (.+)$", project.text("Makefile"), re.MULTILINE).group(1).split()
    assert [verb for verb in verbs if f"make {verb} " not in shown] == []


def test_the_packages_can_be_shown_without_installing():
    script = str(project.TREE / "scripts/install-linux-deps.sh")
    shown = subprocess.run([script, "--print"], capture_output=True, text=True)
    if shown.returncode != 0:
        pytest.skip(f"needs a distribution that the script knows: {shown.stderr.strip()}")
    assert "cmake" in shown.stdout.split()
