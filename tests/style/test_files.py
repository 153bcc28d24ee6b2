"""What every file of the project has in common."""

import importlib.metadata
import re

import project
import pytest

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LONGEST = 500
# Files that may be longer, each with the reason.
LONG_FILES: dict[str, str] = {}

SOURCE_PATTERNS = ("*.cc", "*.h", "*.c", "*.py", "*.sh", "*.cmake")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME)\b(?!\(#\d+\))")
# These two speak of the rule itself.
ABOUT_UNFINISHED = ("CONTRIBUTING.md", "tests/style/test_files.py")


def test_no_source_file_is_a_giant():
    lengths = {str(path): project.text(path).count("\n") for path in project.files(*SOURCE_PATTERNS)}
    giants = {path: lines for path, lines in lengths.items() if lines > LONGEST and path not in LONG_FILES}
    assert giants == {}, f"more than {LONGEST} lines: find the missing noun, or list the file with its reason"


def test_the_list_of_long_files_is_true():
    for path in LONG_FILES:
        assert project.text(path).count("\n") > LONGEST, f"{path} is short now; remove it from LONG_FILES"


def test_no_file_names_a_path_of_the_building_machine():
    here = str(project.TREE)
    assert [str(path) for path in project.files() if here in project.text(path)] == []


def test_unfinished_work_names_its_issue():
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in project.files(*SOURCE_PATTERNS, "*.md", "CMakeLists.txt", "Makefile")
        for number, line in enumerate(project.text(path).splitlines(), 1)
        if str(path) not in ABOUT_UNFINISHED and UNFINISHED.search(line)
    ]
    assert found == []


def test_no_lock_file_records_download_addresses():
    names = {path.name for path in project.files()}
    assert not names & {"uv.lock", "poetry.lock", "package-lock.json", "Cargo.lock", "pylock.toml"}


def test_python_requirements_are_pinned_and_name_no_address():
    lines = [line.split("#")[0].strip() for line in project.text("requirements-dev.txt").splitlines()]
    for line in filter(None, lines):
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.]+(; .+)?", line), line


def requirements(file):
    lines = [line.split("#")[0].strip() for line in project.text(file).splitlines()]
    return [Requirement(line) for line in lines if line]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_python_requirements_fit_together_on(python):
    """The machine that runs this has one Python; who has another must be able to install them too."""
    there = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    pins = {
        canonicalize_name(pinned.name): str(pinned.specifier).removeprefix("==")
        for pinned in requirements("requirements.txt") + requirements("requirements-dev.txt")
        if pinned.marker is None or pinned.marker.evaluate(there)
    }
    for name in pins:
        try:
            needs = [Requirement(text) for text in importlib.metadata.requires(name) or []]
        except importlib.metadata.PackageNotFoundError:  # another Python's
            continue
        for need in needs:
            if need.marker is None or need.marker.evaluate(there):
                pinned = pins.get(canonicalize_name(need.name))
                assert pinned is not None and need.specifier.contains(pinned), f"{name} needs {need}, not {pinned}"


def test_the_changelog_has_a_section_for_the_version_being_built():
    version = re.search(r"project\(pctx_sandbox VERSION ([\d.]+)", project.text("CMakeLists.txt")).group(1)
    headings = re.findall(r"^## \[([^\]]+)\]", project.text("CHANGELOG.md"), re.MULTILINE)
    assert version in headings or "Unreleased" in headings


def test_ci_runs_make_test_and_nothing_else():
    commands = [
        line for line in project.text(".ci/run").splitlines() if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["exec make test"]
