"""The engine (`--venv`) and the package (`SandboxConfig`) read a virtualenv each by itself: they must agree.

Each virtualenv here is entered by both ways, and what Python finds inside is compared: interpreter, paths, and which of
the host's files are there. What one refuses the other must not run.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import virtualenvs
from pctx_sandbox import SandboxError
from pctx_sandbox.sandbubble import SandboxConfig, run_sandboxed
from pctx_sandbox.sandbubble.virtualenv import BESIDE

pytestmark = pytest.mark.usefixtures("own_broker")

# Of sys.path only what belongs to Python: the first entries depend on how the code was given.
LOOK = """
import json, os, sys
try:
    import own_package
    package = own_package.NAME
except ImportError:
    package = None
print(json.dumps({
    "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
    "version": sys.version,
    "executable": sys.executable,
    "path": [entry for entry in sys.path if "/lib" in entry],
    "package": package,
    "variables": os.environ.get("VIRTUAL_ENV"),
    "seen": {path: os.path.exists(path) for path in sys.argv[1:]},
}))
"""


def uv():
    program = Path(__file__).resolve().parents[2] / ".venv/bin/uv"
    if not program.exists():
        pytest.skip("needs uv in the tree's .venv")
    return program


def with_uv(path, python):
    command = [uv(), "venv", "--quiet", "--no-config", "--offline", "--python", python, path]
    subprocess.run(list(map(str, command)), check=True)
    return path


def own_project(place):
    """A project that is its own virtualenv."""
    path = virtualenvs.make(place / "project")
    (path / ".env").write_text("TOKEN=1")
    (path / "src").mkdir()
    return path


def linked(place):
    virtualenvs.make(place / "real")
    (place / "link").symlink_to("real")
    return place / "link"


def below_local(place):
    """An interpreter in ~/.local, which is full of other things."""
    python = virtualenvs.copy_interpreter(place / ".local")
    (place / ".local/share").mkdir()
    (place / ".local/share/keys").write_text("mine")
    (place / ".local/bin/tool").write_text("#!/bin/sh\n")
    (place / ".local/lib/other").write_text("mine")
    return virtualenvs.make(place / "venv", python=python)


USABLE = {
    "venv": lambda place: virtualenvs.make(place / "venv"),
    "copies": lambda place: virtualenvs.make(place / "venv", "--copies"),
    "system packages": lambda place: virtualenvs.make(place / "venv", "--system-site-packages"),
    "uv": lambda place: with_uv(place / "venv", getattr(sys, "_base_executable", sys.executable)),
    "a project": own_project,
    "a link": linked,
    "an interpreter elsewhere": lambda place: virtualenvs.make(
        place / "venv", python=virtualenvs.interpreter_elsewhere(place / "tools")
    ),
    "uv and an interpreter elsewhere": lambda place: with_uv(
        place / "venv", virtualenvs.interpreter_elsewhere(place / "tools")
    ),
    "an interpreter in .local": below_local,
}


def by_the_command(pctx, venv, *args):
    done = pctx("run", "-q", "--timeout", "120s", "--venv", venv, "--", "python", "-c", LOOK, *args, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.json()


def by_the_package(venv, *args):
    conf = SandboxConfig(venv_path=venv, enable_network=False, warm=False)
    res, _ = run_sandboxed(conf, code=LOOK, args=args, timeout=120)
    assert res.returncode == 0, res.stderr
    return json.loads(res.stdout)


# A place on the host whose name both must keep, and one that every box has of its own. An interpreter in the latter
# is lent by nobody.
PLACES = [(kind, "a home") for kind in USABLE]
PLACES += [(kind, "a temporary folder") for kind in USABLE if not kind.endswith(("elsewhere", ".local"))]


@pytest.mark.parametrize("kind, where", PLACES)
def test_both_see_the_same_virtualenv(kind, where, home, tmp_path, pctx):
    place = home / kind.replace(" ", "-") if where == "a home" else tmp_path / "place"
    place.mkdir()
    place.chmod(0o755)
    (place / "secret").write_text("mine")
    venv = USABLE[kind](place)
    (virtualenvs.site_packages(venv) / "own_package.py").write_text("NAME = 'own'\n")
    files = [str(path) for path in place.rglob("*") if path.is_file() and "/lib/python" not in str(path)]
    files += [str(path) for path in place.rglob("os.py")]
    # The package lends a folder that holds nothing of anybody's own as a whole, the engine lends its parts.
    files = [path for path in files if not any(f"/{name}" in path for name in BESIDE if name != "pyvenv.cfg")]
    files += [str(home), str(Path.home() / ".profile"), "/usr/bin/env", "/etc/shadow"]
    command, package = by_the_command(pctx, venv, *files), by_the_package(venv, *files)
    assert command == package
    assert command["package"] == "own" and command["seen"]["/usr/bin/env"]  # the control: something is seen
    private = ("secret", ".env", "keys", "tool", "other", "shadow")
    assert [path for path in files if command["seen"][path] and Path(path).name in private] == []
    real = os.path.realpath(venv)
    assert command["prefixes"][0] == (real if where == "a home" else "/run/virtualenv")


def without(venv, name):
    (venv / name).unlink()


def instead(venv, name, target):
    (venv / name).unlink()
    if isinstance(target, str):
        (venv / name).write_text(target)
        (venv / name).chmod(0o755)
    else:
        (venv / name).symlink_to(target)


def configured(venv, old, new):
    config = venv / "pyvenv.cfg"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


BROKEN = {
    "nothing there": shutil.rmtree,
    "no pyvenv.cfg": lambda venv: without(venv, "pyvenv.cfg"),
    "no interpreter": lambda venv: without(venv, "bin/python"),
    "an interpreter that is gone": lambda venv: instead(venv, "bin/python", Path("/nowhere/python3.99")),
    "a script as interpreter": lambda venv: instead(venv, "bin/python", '#!/bin/sh\nexec python3 "$@"\n'),
    "another program": lambda venv: instead(venv, "bin/python", Path("/bin/true")),
    "no version": lambda venv: configured(venv, "version = ", "other = "),
    "an old version": lambda venv: configured(venv, "version = 3.", "version = 2."),
    "another version": lambda venv: configured(venv, "version = 3.", "version = 3.9"),
    "no packages": lambda venv: shutil.rmtree(virtualenvs.site_packages(venv)),
    "packages of another Python": lambda venv: virtualenvs.site_packages(venv).parent.rename(venv / "lib/python3.99"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_one_refuses_the_other_does_not_run(kind, tmp_path, pctx):
    venv = virtualenvs.make(tmp_path / "venv")
    assert by_the_command(pctx, venv) == by_the_package(venv)  # the control: whole, both run it
    BROKEN[kind](venv)
    done = pctx("run", "--venv", venv, "--", "python", "-c", "print('ran')")
    assert done.returncode == 125 and "ran" not in done.stdout, done.stderr
    assert done.stderr.startswith("pctx-sandbox: --venv: ") and "hint: " in done.stderr
    conf = SandboxConfig(venv_path=venv, enable_network=False, warm=False)
    with pytest.raises(SandboxError) as refused:
        run_sandboxed(conf, code="print('ran')", timeout=120)
    assert "hint: " in str(refused.value)


HOSTILE = r"""
#include <unistd.h>
#include <fcntl.h>
int main(int argc, char** argv) {
  close(open(WITNESS, O_WRONLY | O_CREAT, 0666));
  execv("/usr/bin/python3", argv);
  return 1;
}
"""


def program_of_a_guest(path, witness, folder):
    """Leaves a file where it runs, and goes on as Python."""
    source = folder / "hostile.c"
    source.write_text(HOSTILE)
    subprocess.run(["cc", "-O1", "-static", f'-DWITNESS="{witness}"', "-o", path, source], check=True)
    return path


def as_an_installation(prefix, program):
    """Looks like a Python of its own."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / virtualenvs.VERSION).mkdir(parents=True)
    (prefix / "lib" / virtualenvs.VERSION / "os.py").touch()
    shutil.copy(program, prefix / "bin" / virtualenvs.VERSION)
    return prefix / "bin" / virtualenvs.VERSION


@pytest.mark.parametrize("kind", ["a program", "a link", "a home"])
def test_nothing_that_a_guest_left_in_a_virtualenv_is_run_on_the_host(kind, tmp_path, pctx):
    tmp_path.chmod(0o755)
    project, witness = tmp_path / "project", tmp_path / "witness"
    project.mkdir()
    venv = virtualenvs.make(project / "venv")
    hostile = program_of_a_guest(project / "python-x", witness, tmp_path)
    subprocess.run([hostile, "-c", ""], check=True)
    assert witness.exists()  # the control: it can
    witness.unlink()
    (venv / "bin/python").unlink()
    if kind == "a program":
        shutil.copy(hostile, venv / "bin/python")
    elif kind == "a link":
        (venv / "bin/python").symlink_to(as_an_installation(project / "own", hostile))
    else:
        own = as_an_installation(project / "own", hostile)
        (venv / "bin/python").symlink_to(own)
        configured(venv, "home = ", f"home = {own.parent}\nother = ")
    pctx("run", "-q", "--venv", venv, "--", "python", "-c", "pass")
    run_sandboxed(SandboxConfig(venv_path=venv, enable_network=False, warm=False), code="pass", timeout=120)
    assert not witness.exists()


LEADING_OUT = {
    "a part": lambda venv, secret: (venv / "share").symlink_to(secret.parent),
    "its library": lambda venv, secret: (
        (venv / "lib").rename(venv / "kept"),
        (venv / "lib").symlink_to(secret.parent),
    ),
    "a home": lambda venv, secret: configured(venv, "home = ", f"home = {secret.parent}/bin\nother = "),
    "an interpreter": lambda venv, secret: instead(venv, "bin/python", secret),
}


@pytest.mark.parametrize("kind", LEADING_OUT)
def test_no_link_in_a_virtualenv_lends_what_it_leads_to(kind, home, pctx):
    """Nor does a setting. Where both are refused, nothing runs that could read it."""
    place = home / f"leading-{kind.replace(' ', '-')}"
    venv = virtualenvs.make(place / "venv")
    (place / "private/bin").mkdir(parents=True)
    (place / "private/lib").mkdir()
    secret = place / "private/secret"
    secret.write_bytes(b"\x7fELF of mine")
    for copy in ("bin/secret", "lib/secret"):
        shutil.copy(secret, place / "private" / copy)
    secret.chmod(0o755)
    code = f"""
import os
found = [os.path.join(at, name) for top in ({str(place)!r}, "/run") for at, _, names in os.walk(top, followlinks=True)
         for name in names if name == "secret" or open(os.path.join(at, name), "rb").read(12) == b"\\x7fELF of mine"]
print(found)
"""
    look = ["--", "python3", "-c", code]
    lent = pctx("run", "-q", "--venv", venv, "--ro", f"{secret.parent}:{secret.parent}", *look)
    assert lent.stdout.count("secret") == 3, lent.stderr  # the control: what is lent is found
    LEADING_OUT[kind](venv, secret)
    for seen in (pctx("run", "-q", "--venv", venv, *look).stdout, printed_by_the_package(venv, code)):
        assert seen in ("", "[]\n")


def printed_by_the_package(venv, code):
    try:
        return run_sandboxed(SandboxConfig(venv_path=venv, enable_network=False, warm=False), code=code)[0].stdout
    except SandboxError:
        return ""


def test_fifos_in_a_virtualenv_keep_nobody_waiting(tmp_path, pctx):
    for name in ("pyvenv.cfg", "bin/python"):
        venv = virtualenvs.make(tmp_path / name.replace("/", "-"))
        (venv / name).unlink()
        os.mkfifo(venv / name)
        (venv / name).chmod(0o755)
        assert pctx("run", "--venv", venv, "--", "true", timeout=30).returncode == 125
        with pytest.raises(SandboxError):
            run_sandboxed(SandboxConfig(venv_path=venv), code="1", timeout=30)


def test_a_virtualenv_stays_as_it_is_where_its_folder_is_lent_to_be_written(tmp_path, pctx):
    tmp_path.chmod(0o777)
    venv = virtualenvs.make(tmp_path / "project/venv")
    (tmp_path / "project").chmod(0o777)
    write = "import os, sys; open('/mnt/beside', 'w'); open(sys.argv[1], 'w')"
    line = ["run", "-q", "--mnt", tmp_path / "project", "--venv", venv, "--", "python", "-c", write]
    for name in ("venv/pyvenv.cfg", "venv/bin/other", "venv/other"):
        done = pctx(*line, f"/mnt/{name}")
        assert "Read-only file system" in done.stderr, done.stderr
    assert (tmp_path / "project/beside").exists()  # the control: the rest is writable
    # A project that is its own virtualenv.
    own = virtualenvs.make(tmp_path / "own")
    own.chmod(0o777)
    line = ["run", "-q", "--mnt", own, "--venv", own, "--", "python", "-c", write]
    assert "Read-only file system" in pctx(*line, "/mnt/bin/other").stderr
    assert (own / "beside").exists()
    with pytest.raises(ValueError, match="lies in mnt_dir"):
        run_sandboxed(SandboxConfig(venv_path=own), code="1", mnt_dir=own)


def test_a_colon_in_the_path_is_refused_by_both(tmp_path, pctx):
    venv = virtualenvs.make(tmp_path / "plain").rename(tmp_path / "a:b")  # venv itself refuses to make one there
    assert "colon" in pctx("run", "--venv", venv, "--", "true").stderr
    with pytest.raises(SandboxError, match="colon"):
        run_sandboxed(SandboxConfig(venv_path=venv), code="1")
