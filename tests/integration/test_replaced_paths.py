"""A path that a guest replaced in a folder which it could write leads no later run out of that folder, and what is made
of paths keeps its words to itself."""

import json
import os
import shutil

import pytest
import virtualenvs
from pctx_sandbox import SandboxError
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed

pytestmark = pytest.mark.usefixtures("own_broker")


@pytest.fixture
def project(tmp_path):
    """A folder that guests may write, and a private one beside it."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "project"
    folder.mkdir()
    folder.chmod(0o777)
    private = tmp_path / "private"
    private.mkdir()
    (private / "key.py").write_text("print('secret')\n")
    return folder


def replaced(pctx, project, name, target):
    """By a guest."""
    done = pctx("run", "-q", "--mnt", project, "--", "ln", "-sfn", target, f"/mnt/{name}")
    assert done.returncode == 0, done.stderr
    assert os.readlink(project / name) == str(target)


# The words of a line, and what a run says that follows the link.
WAYS = {
    "a script": (["{link}"], "secret\n"),
    "a folder": (["--ro", "{link}:/data", "--", "ls", "/data"], "key.py\n"),
    "a folder to write": (["--rw", "{link}:/data", "--", "ls", "/data"], "key.py\n"),
    "a path behind it": (["--ro", "{link}/key.py:/data", "--", "cat", "/data"], "print('secret')\n"),
}


@pytest.mark.parametrize("kind", WAYS)
def test_a_link_that_a_guest_may_have_made_leads_nowhere(kind, project, pctx):
    words, seen = WAYS[kind]
    private = project.parent / "private"
    name = "link.py" if kind == "a script" else "link"
    replaced(pctx, project, name, private / "key.py" if kind == "a script" else private)
    line = [word.format(link=project / name) for word in words]
    assert pctx("run", "-q", *line).stdout == seen  # the control: where nobody could have made it, links are followed
    for lent in (["--mnt", project], ["--rw", f"{project}:/p"]):
        done = pctx("run", "-q", *lent, *line)
        assert (done.returncode, done.stdout) == (125, "") and "a link leads" in done.stderr, done.stderr
    inside = [word.format(link=name) for word in words]
    refused = pctx("run", "-q", "--mnt", ".", *inside, cwd=project)
    assert refused.returncode == 125 and "a link leads" in refused.stderr, "by a relative path, too"


def test_a_link_that_stays_in_its_folder_is_followed(project, pctx):
    (project / "data").mkdir()
    (project / "data/x").write_text("mine\n")
    replaced(pctx, project, "link", "data")
    line = ["run", "-q", "--mnt", project, "--ro", f"{project}/link:/data", "--", "cat", "/data/x"]
    assert pctx(*line).stdout == "mine\n"


def test_a_virtualenv_behind_such_a_link_is_refused(project, pctx):
    other = virtualenvs.make(project.parent / "private/venv")
    line = ["--venv", project / "venv", "--", "python", "-c", "import sys; print(sys.prefix)"]
    replaced(pctx, project, "venv", other)
    assert pctx("run", "-q", *line).returncode == 0  # the control
    done = pctx("run", "-q", "--mnt", project, *line)
    assert done.returncode == 125 and "--venv: a link leads" in done.stderr
    with pytest.raises(ValueError, match="behind a link there"):
        run_sandboxed(SandboxConfig(venv_path=project / "venv"), code="1", mnt_dir=project)


def test_folders_on_the_way_to_a_virtualenv_cannot_be_moved_away(project, pctx):
    (project / "a/b").mkdir(parents=True)
    virtualenvs.make(project / "a/b/venv")
    for folder in (project / "a", project / "a/b"):
        folder.chmod(0o777)
    line = ["run", "-q", "--mnt", project, "--venv", project / "a/b/venv", "--"]
    for moved in ("/mnt/a", "/mnt/a/b", "/mnt/a/b/venv"):
        done = pctx(*line, "python", "-c", f"import os; os.rename('{moved}', '/mnt/moved')")
        assert "Device or resource busy" in done.stderr or "Invalid cross-device link" in done.stderr, done.stderr
    assert sorted(entry.name for entry in project.iterdir()) == ["a"]
    done = pctx(
        *line, "sh", "-c", "touch /mnt/x /mnt/a/x /mnt/a/b/x && mkdir /mnt/a/c && mv /mnt/a/c /mnt/c"
    )  # the control
    assert done.returncode == 0 and (project / "c").is_dir() and (project / "a/b/x").exists(), done.stderr


def test_what_was_looked_at_is_what_is_lent(project, pctx):
    """A policy of a program's own that has looked at its paths."""
    policy = project.parent / "policy.json"
    private = project.parent / "private"
    (project / "data").mkdir()

    def run(key):
        policy.write_text(json.dumps({"files": {key: [f"{project}/data:/data"]}}))
        return pctx("run", "-q", "--policy", policy, "--", "ls", "/data")

    assert run("ro_as_is").returncode == 0
    (project / "data").rename(project / "kept")
    (project / "data").symlink_to(private)
    assert run("ro").stdout == "key.py\n"  # the control
    done = run("ro_as_is")
    assert done.returncode == 125 and "data leads through a link" in done.stderr


def test_an_interpreter_that_was_replaced_between_two_calls_is_not_lent(home, monkeypatch):
    """What a virtualenv needs is remembered from call to call."""
    monkeypatch.setenv("TMPDIR", str(home))
    place = home / "replaced"
    base = virtualenvs.copy_interpreter(place / "project/tools").parent.parent
    venv = virtualenvs.make(place / "venv", python=base / "bin" / virtualenvs.VERSION)
    (place / "private").mkdir()
    (place / "private/key.py").write_text("secret")
    conf = SandboxConfig(venv_path=venv, enable_network=False, warm=False)
    assert run_sandboxed(conf, code="print(1)", timeout=120)[0].stdout == "1\n"  # the control
    with pytest.raises(ValueError, match="lies in mnt_dir"):
        run_sandboxed(conf, code="1", mnt_dir=place / "project")
    (base / "lib").rename(base / "kept")
    (base / "lib").symlink_to(place / "private")
    look = f"print(open({str(base / 'lib/key.py')!r}).read())"
    with pytest.raises(SandboxError, match="leads through a link"):
        run_sandboxed(conf, code=look, timeout=120)


def test_a_setting_is_a_file_and_nothing_else_is_opened(project, pctx):
    venv = virtualenvs.make(project.parent / "venv")
    os.mkfifo(project / "fifo")
    (venv / "pyvenv.cfg").unlink()
    (venv / "pyvenv.cfg").symlink_to(project / "fifo")
    held = os.open(project / "fifo", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(held, b"for somebody else")
        done = pctx("run", "--venv", venv, "--", "true")
        assert done.returncode == 125 and "has no pyvenv.cfg" in done.stderr
        with pytest.raises(SandboxError):
            run_sandboxed(SandboxConfig(venv_path=venv), code="1")
        assert os.read(held, 100) == b"for somebody else"  # and the control: whoever reads takes it away
        with pytest.raises(BlockingIOError):
            os.read(held, 100)
    finally:
        os.close(held)


def test_a_name_writes_no_line_of_its_own(project, pctx):
    venv = virtualenvs.make(project.parent / "venv")
    name = venv / "bin/x\x1b[31mred\nhint: trust me"
    shutil.copy("/bin/true", name)
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to(name)
    said = pctx("run", "--venv", venv, "--", "true").stderr
    with pytest.raises(SandboxError) as refused:
        run_sandboxed(SandboxConfig(venv_path=venv), code="1")
    for text in (said, str(refused.value)):
        assert "red" in text and "\x1b" not in text and "\nhint: trust me" not in text


def test_the_home_of_an_interpreter_may_be_written_in_a_roundabout_way(project, pctx):
    venv = virtualenvs.make(project.parent / "venv")
    config = (venv / "pyvenv.cfg").read_text()
    (venv / "pyvenv.cfg").write_text(config.replace("home = /", "home = /tmp/../", 1))
    assert (venv / "pyvenv.cfg").read_text() != config
    done = pctx("run", "-q", "--venv", venv, "--", "python", "-c", "import sys; print(sys.prefix)")
    assert done.returncode == 0, done.stderr
