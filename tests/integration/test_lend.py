"""`lend`: a copy of a folder for a container, and what changed in it back; nothing of the caller's is lost by it."""

import os
import subprocess

import pytest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a/sub").mkdir(parents=True)
    (tmp_path / "a/kept").write_text("kept")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious").write_text("precious")
    (tmp_path / "link").symlink_to("a")
    return tmp_path


def files(folder):
    return {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_changed_in_the_copy_comes_back(sandbox_bin, folder):
    for place in ("fresh", "empty"):
        if place == "empty":
            (folder / place).mkdir()
        process = subprocess.Popen(
            [sandbox_bin, "lend", "a", place], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        (folder / place / "new").write_text(place)
        process.communicate("back\n", timeout=20)
        assert process.returncode == 0 and (folder / "a/new").read_text() == place
        assert os.listdir(folder / place) == []


@pytest.mark.parametrize(
    ("host", "copy", "says"),
    [
        ("a", "a", "one is in the other"),
        ("a/sub", "a", "one is in the other"),
        ("a", "a/sub", "one is in the other"),
        ("a", "link/sub", "one is in the other"),
        ("a", "full", "full: the folder for the copy is not empty"),
    ],
)
def test_a_place_that_holds_something_is_refused(pctx, folder, host, copy, says):
    before = files(folder)
    done = pctx("lend", host, copy, cwd=folder)
    assert done.returncode == 125 and says in done.stderr and done.stderr.count("\n") == 2, done.stderr
    assert files(folder) == before
