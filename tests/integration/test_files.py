"""--mnt, --ro, --rw, --tmpfs, --workdir and --changed."""

import json
import os

import pytest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_mnt_is_the_working_folder_and_files_are_the_callers(pctx, folder):
    (folder / "in.txt").write_text("input")
    done = pctx(
        "run", "-q", "--mnt", folder, "--", "sh", "-c", "pwd; cat in.txt; mkdir d; echo out > d/out.txt; ls -n in.txt"
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "/mnt" and lines[1].startswith("input")
    assert (folder / "d/out.txt").read_text() == "out\n"
    assert (folder / "d/out.txt").stat().st_uid == os.getuid()
    assert " 1000 1000 " in done.stdout


def test_mnt_by_a_relative_path_and_a_link(pctx, folder):
    (folder.parent / "link").symlink_to(folder)
    assert pctx("run", "-q", "--mnt", "link", "--", "touch", "x", cwd=folder.parent).returncode == 0
    assert (folder / "x").exists()


def test_ro_at_the_same_path_and_another(pctx, tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("a,b")
    tmp_path.chmod(0o755)
    assert pctx("run", "-q", "--ro", file, "--", "cat", file).stdout == "a,b"
    assert pctx("run", "-q", "--ro", f"{file}:/data/x.csv", "--", "cat", "/data/x.csv").stdout == "a,b"
    assert pctx("run", "-q", "--ro", f"{tmp_path}:/data", "--ro", f"{file}:/more", "--", "cat", "/more").stdout == "a,b"


def test_ro_of_a_file_only_the_caller_may_read(pctx, tmp_path):
    file = tmp_path / "private"
    file.write_text("mine")
    file.chmod(0o600)
    assert pctx("run", "-q", "--ro", f"{file}:/x", "--", "cat", "/x").stdout == "mine"


def test_rw_of_a_folder_and_a_file(pctx, folder):
    (folder / "file").write_text("1")
    done = pctx("run", "-q", "--rw", f"{folder}:/out", "--rw", f"{folder}/file:/single", "--", "sh", "-c",
                "echo new > /out/new; echo 2 > /single")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (folder / "new").read_text() == "new\n" and (folder / "file").read_text() == "2\n"


def test_tmpfs_has_a_size_of_its_own(pctx):
    line = "head -c 900000 /dev/zero > /scratch/a && head -c 900000 /dev/zero > /scratch/b"
    done = pctx("run", "-q", "--tmpfs", "/scratch:1M", "--", "sh", "-c", line)
    assert done.returncode == 1 and "No space left" in done.stderr
    assert pctx("run", "-q", "--tmpfs", "/scratch:4M", "--", "sh", "-c", line).returncode == 0


def test_what_lies_in_another_place_is_seen_however_they_are_named(pctx, tmp_path):
    for name in ("outer", "inner"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / name).touch()
    (tmp_path / "outer" / "place").mkdir()
    outer, inner = ["--ro", f"{tmp_path}/outer:/p"], ["--ro", f"{tmp_path}/inner:/p/place"]
    for options in (outer + inner, inner + outer):
        assert pctx("run", "-q", *options, "--", "ls", "/p/place").stdout == "inner\n"
    assert pctx("run", "-q", *inner, "--tmpfs", "/p", "--", "ls", "/p/place").stdout == "inner\n"
    done = pctx("run", *outer, "--tmpfs", "/p/place", "--ro", f"{tmp_path}/inner:/p/place/x", "--", "true")
    assert done.returncode == 125 and "in a --tmpfs that lies in a lent folder" in done.stderr


def test_workdir(pctx, folder):
    assert pctx("run", "-q", "--workdir", "/tmp", "--", "pwd").stdout == "/tmp\n"
    (folder / "sub").mkdir()
    assert pctx("run", "-q", "--mnt", folder, "--workdir", "/mnt/sub", "--", "pwd").stdout == "/mnt/sub\n"


def test_target_given_twice_is_an_error(refused):
    refused("--ro", "/usr:/x", "--tmpfs", "/x", "--", "echo", "ran", says="twice")


def test_names_with_spaces_and_other_scripts(pctx, tmp_path):
    place = tmp_path / "my dir, ünïcode=1"
    place.mkdir()
    assert pctx("run", "-q", "--mnt", place, "--", "touch", "a b ☃").returncode == 0
    assert (place / "a b ☃").exists()


def test_changed_lists_created_modified_and_deleted(report, folder):
    for name in ("kept", "modified", "deleted"):
        (folder / name).write_text(name)
    line = "echo x > created; mkdir sub; echo y > sub/deep; echo z >> modified; rm deleted; cat kept"
    changed = report("--mnt", folder, "--changed", "--", "sh", "-c", line)["changed"]
    assert changed["created"] == ["created", "sub/deep"]
    assert (changed["modified"], changed["deleted"], changed["skipped"]) == (["modified"], ["deleted"], [])
    assert changed["truncated"] is False


def test_changed_on_the_command_line(pctx, folder):
    done = pctx("run", "-q", "--mnt", folder, "--changed", "--", "sh", "-c", "echo 1 > new; ln -s /etc/passwd link")
    assert done.stdout == "" and done.stderr.splitlines() == ["created  new", "skipped  link (symbolic link)"]


def test_changed_lists_no_more_than_the_guest_may_say(pctx, folder, tmp_path):
    code = "for n in range(300): open(f'{n:03}' + '\\x07' * 200, 'w').close()"
    line = ["run", "-q", "--mnt", folder, "--changed", "--output", "10K"]
    done = pctx(*line, "--", "python3", "-c", code)
    *listed, last = done.stderr.splitlines()
    more = 300 - len(listed)
    assert done.returncode == 0 and len(listed) > 0 and len("\n".join(listed)) < 10240
    assert last == f"pctx-sandbox: {more} more changes are not listed, for --output; --report FILE has them all"
    (folder / "few").touch()
    few = pctx(*line, "--", "rm", "few").stderr.splitlines()
    assert few == ["deleted  few"]
    report = tmp_path / "report.json"
    again = f"import os\nfor name in os.listdir(): os.remove(name)\n{code}"
    pctx("run", *line[1:], "--report", report, "--", "python3", "-c", again)
    changed = json.loads(report.read_text())["changed"]
    assert len(changed["created"] + changed["modified"]) == 300


def test_changed_of_set_id_files_devices_and_special_names(report, folder):
    line = "cp /bin/true s; chmod 4755 s || rm s; mkfifo f; touch $'' 2>/dev/null; echo > '-rf'; echo > 'a\nb'"
    changed = report("--mnt", folder, "--changed", "--", "sh", "-c", line)["changed"]
    skipped = {entry["path"]: entry["reason"] for entry in changed["skipped"]}
    assert "FIFO" in skipped["f"] and skipped.get("s", "set-id file") == "set-id file"
    assert {"-rf", "a\\x0ab"} <= set(changed["created"])


def test_changed_without_mnt_is_an_error(refused):
    refused("--changed", "--", "echo", "ran", says="--mnt")


def test_many_files_are_listed_within_a_budget(report, folder):
    code = "import os\nfor d in range(50):\n    os.mkdir(str(d))\n    for n in range(50): open(f'{d}/{n}', 'w').close()"
    changed = report("--mnt", folder, "--changed", "--", "python3", "-c", code)["changed"]
    assert len(changed["created"]) == 2500 or changed["truncated"]
