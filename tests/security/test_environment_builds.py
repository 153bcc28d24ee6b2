"""Packages are hostile from the moment they are downloaded: what they bring harms neither the host nor the store."""

import ast
import json
import os
import socket
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import wheels

# ruff: noqa: E501


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "wheels"
    path.mkdir()
    return path


@pytest.fixture
def cache(tmp_path):
    yield tmp_path / "cache"
    subprocess.run(["chmod", "-R", "u+w", str(tmp_path / "cache")], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def env(cache, folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    settings = {"PIP_FIND_LINKS": str(folder), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    return kept | settings | {"PCTX_SANDBOX_CACHE_DIR": str(cache)}


@pytest.fixture
def build(pctx, env):
    def run(*words, **changes):
        return pctx("env", "build", "--json", *words, env=env | changes, timeout=180)

    return run


def everything_below(top):
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def test_a_wheel_cannot_write_outside_its_environment(build, folder, tmp_path, cache):
    """Entries that climb, are absolute, or name our own record: none is found anywhere, ours stays ours."""
    climbing = "../" * 20 + str(tmp_path / "escaped").lstrip("/")
    hostile = {"trap.py": "x = 1\n", climbing: "x", str(tmp_path / "absolute"): "x", "../../../environment.json": "{}"}
    wheels.make(folder, "trap", "1.0", hostile)
    before = everything_below(tmp_path)
    done = build("trap")
    after = {path for path in everything_below(tmp_path) - before if not path.startswith("cache")}
    assert after == set()
    if done.returncode == 0:
        record = json.loads(Path(done.json()["path"], "environment.json").read_text())
        assert record["requested"] == ["trap"]
    # The control: a reader that trusts such an archive does write outside.
    with zipfile.ZipFile(next(folder.glob("trap-*"))) as archive:
        Path(tmp_path / "control").write_bytes(archive.read(climbing))
    assert (tmp_path / "control").exists()


def test_a_wheel_cannot_forge_the_record(build, folder):
    data = "forger-1.0.data/data"
    wheels.make(folder, "forger", "1.0", {"forger.py": "", f"{data}/environment.json": '{"key": "x"}',
                                          f"{data}/manifest": "D 0 bin\n", f"{data}/.build/x": "y"})  # fmt: skip
    made = build("forger")
    assert made.returncode == 0, made.stderr
    top = Path(made.json()["path"])
    assert json.loads((top / "environment.json").read_text())["key"] == made.json()["key"]
    assert "forger.py" in (top / "manifest").read_text() and not (top / ".build").exists()


@pytest.mark.parametrize("path", ["data/pyvenv.cfg", "data/bin/python", "scripts/python", "scripts/python3"])
def test_a_wheel_cannot_replace_the_interpreter(build, folder, cache, path):
    text = "home = /tmp\n" if path.endswith("cfg") else "#!/bin/sh\necho hostile\n"
    wheels.make(folder, "usurper", "1.0", {"usurper.py": "", f"usurper-1.0.data/{path}": text})
    done = build("usurper")
    if done.returncode == 0:
        assert os.readlink(Path(done.json()["path"], "bin/python")) == done.json()["python"]
    else:
        assert done.returncode == 1 and list((cache / "env").iterdir()) == []


def test_links_and_set_user_id_bits_do_not_arrive(build, folder):
    link, suid = zipfile.ZipInfo("linked.py"), zipfile.ZipInfo("raised")
    for entry, mode in ((link, stat.S_IFLNK | 0o777), (suid, stat.S_IFREG | 0o6755)):
        entry.create_system, entry.external_attr = 3, mode << 16
    wheels.make(folder, "bits", "1.0", {"bits.py": ""}, entries=[(link, "/etc/passwd"), (suid, "#!/bin/sh\n")])
    made = build("bits").json()
    site = Path(made["site_packages"])
    assert (site / "raised").stat().st_mode & 0o7777 == 0o555
    assert not (site / "linked.py").is_symlink() and (site / "linked.py").read_text() == "/etc/passwd"


def test_a_pth_file_runs_neither_on_the_host_nor_in_the_build(build, pctx, folder, env, tmp_path):
    """uv's own bytecode compiler starts the new interpreter, which runs every .pth file; ours does not."""
    # Wherever it runs it leaves a trace: on the host, or in the tree that the build may write to.
    code = (
        "import os, sys; [open(os.path.join(p, 'pth-ran'), 'w').close() for p in "
        f"({str(tmp_path)!r}, sys.prefix) if os.access(p, os.W_OK)]\n"
    )
    wheels.make(folder, "starter", "1.0", {"starter.py": "", "starter.pth": code})
    made = build("starter")
    assert made.returncode == 0, made.stderr
    assert not (tmp_path / "pth-ran").exists()
    assert not Path(made.json()["path"], "pth-ran").exists()
    listed = pctx("env", "show", "--verify", made.json()["key"], env=env)
    assert listed.returncode == 0 and not (tmp_path / "pth-ran").exists()
    # The control: such a file does run where an Environment's Python is started, which only happens in a box.
    wheels.make(folder, "control", "1.0", {"control.py": "", "control.pth": "import os; os.environ['SEEN'] = 'ran'\n"})
    shown = "import os; print(os.environ['SEEN'])"
    assert pctx("run", "-q", "--with", "control", "--", "python", "-c", shown, env=env).stdout == "ran\n"


BACKEND = """
import base64, hashlib, os, socket, subprocess, zipfile

def attempt(path):
    try:
        with open(path, "w") as file:
            file.write("x")
        return "written"
    except OSError as error:
        return error.strerror

def look(path):
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        return error.strerror

def reach(port):
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return "reached"
    except OSError as error:
        return error.strerror

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(directory, config_settings=None, metadata_directory=None):
    found = {{
        "looks": {{path: look(path) for path in {looks!r}}},
        "writes": {{path: attempt(path) for path in {writes!r}}},
        "variables": sorted(os.environ),
        "network": reach({port}),
        "uid": os.getuid(),
    }}
    name = "builder-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        archive.writestr("builder.py", repr(found))
        archive.writestr("builder-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: builder\\nVersion: 1.0\\n")
        archive.writestr("builder-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr("builder-1.0.dist-info/RECORD", "")
    return name
"""


def told_by(made):
    """What the hostile backend found out while it ran, read as data."""
    return ast.literal_eval(Path(made["site_packages"], "builder.py").read_text())


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def source(folder, tmp_path, listener, cache):
    outside = tmp_path / "outside"
    writes = [str(outside), "/etc/planted", "/usr/planted", str(cache / "env/planted"), str(folder / "planted")]
    looks = [str(cache), str(cache / "env"), "/home", "/root"]
    text = BACKEND.format(writes=writes, looks=looks, port=listener)
    wheels.make_source(folder, "builder", "1.0", text)
    return writes


def test_a_source_distribution_is_not_built_without_consent(build, source):
    done = build("builder")
    assert done.returncode == 1 and "builder" in done.stderr


def test_a_source_distribution_writes_nothing_outside(build, source, folder, cache, tmp_path, listener):
    wheels.make(folder, "neighbour", "1.0", {"neighbour.py": "SECRET = 1\n"})
    assert build("neighbour").returncode == 0
    done = build("--allow-source", "builder", SECRET_TOKEN="hunter2")
    assert done.returncode == 0, done.stderr
    assert "from which the indexes can be reached" in done.stderr
    made = done.json()
    found = told_by(made)
    refused = {"Read-only file system", "Permission denied", "No such file or directory"}
    for path, answer in found["writes"].items():
        # Below /tmp the box has a folder of its own, which goes with it.
        assert answer in refused or (answer == "written" and path.startswith("/tmp/")), (path, answer)
    assert [path for path in source if os.path.exists(path)] == []
    # Of the store it sees the way to its own folder, and nothing else.
    assert found["looks"][str(cache)] == ["env"] and found["looks"][str(cache / "env")] == [made["key"]]
    assert "SECRET_TOKEN" not in found["variables"]
    # The listener is there, on the host's loopback, which is none of the box's.
    socket.create_connection(("127.0.0.1", listener), 2).close()
    assert found["network"] == "Connection refused"
    assert json.loads(Path(made["path"], "environment.json").read_text())["build"]["source"] is True
    # The control: the same backend, started on the host, does write there.
    program = f"import sys; sys.path.insert(0, '.'); import backend; print(backend.attempt({source[0]!r}))"
    subprocess.run(["tar", "xf", str(next(folder.glob("builder-*.tar.gz"))), "-C", str(tmp_path)], check=True)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "builder-1.0", capture_output=True, text=True)
    assert done.stdout == "written\n", done.stderr


def test_wheels_and_source_never_share_an_environment(build, source, folder):
    wheels.make(folder, "plain", "1.0", {"plain.py": ""})
    assert build("plain").json()["key"] != build("--allow-source", "plain").json()["key"]


def test_credentials_reach_neither_record_nor_messages_nor_source_builds(build, folder, cache, source):
    secret = "geheim-4711"
    index = f"http://me:{secret}@127.0.0.1:9/simple"
    failed = build("nosuch", UV_DEFAULT_INDEX=index, UV_HTTP_RETRIES="0", PIP_NO_INDEX="0")
    assert failed.returncode == 1 and secret not in failed.stderr
    refused = build("--allow-source", "builder", UV_DEFAULT_INDEX=index)
    assert refused.returncode == 125 and "credentials" in refused.stderr and secret not in refused.stderr
    wheels.make(folder, "plain", "1.0", {"plain.py": ""})
    made = build("plain", UV_INDEX_PRIVATE_PASSWORD=secret)
    assert made.returncode == 0, made.stderr
    for path in cache.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert secret.encode() not in path.read_bytes(), path


def test_a_netrc_file_is_used_for_wheels_and_hidden_from_source_builds(build, folder, tmp_path, cache):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine 127.0.0.1 login me password geheim-4711\n")
    (home / ".netrc").chmod(0o600)
    text = BACKEND.format(writes=[], looks=["/run/pctx"], port=9)
    wheels.make_source(folder, "builder", "1.0", text)
    made = build("--allow-source", "builder", HOME=str(home))
    assert made.returncode == 0, made.stderr
    found = told_by(made.json())
    assert "netrc" not in found["looks"]["/run/pctx"] and "NETRC" not in found["variables"]


LINKER = """
import os, zipfile

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(directory, config_settings=None, metadata_directory=None):
    cache = os.environ["UV_CACHE_DIR"]
    top = os.path.dirname(os.path.dirname(cache))
    {act}
    name = "linker-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        archive.writestr("linker.py", "")
        archive.writestr("linker-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: linker\\nVersion: 1.0\\n")
        archive.writestr("linker-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr("linker-1.0.dist-info/RECORD", "")
    return name
"""
ACTS = {
    "our record is a link": "os.symlink({victim!r}, top + '/environment.json'); os.symlink({victim!r}, top + '/manifest')",
    "a folder is a link": "os.symlink(os.path.dirname({victim!r}), top + '/folder')",
    "a pipe": "os.mkfifo(top + '/pipe')",
    "very deep folders": "p = top\n    for n in range(300):\n        p = p + '/d'\n        os.mkdir(p) if len(p) < 3900 else None",
    "closed folders": "os.makedirs(top + '/closed/inner'); os.chmod(top + '/closed', 0)",
    "site-packages is a link": "import glob; s = glob.glob(top + '/lib/python3*')[0]; os.rename(s, s + 'x'); os.symlink({victim!r} + '.d', s)",
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_what_a_build_leaves_is_never_followed(build, pctx, env, folder, cache, tmp_path, act):
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    victim.chmod(0o640)
    Path(f"{victim}.d").mkdir()
    wheels.make_source(folder, "linker", "1.0", LINKER.format(act=ACTS[act].format(victim=str(victim))))
    done = build("--allow-source", "linker")
    assert done.returncode in (0, 1), done.stderr
    assert victim.read_text() == "untouched" and victim.stat().st_mode & 0o7777 == 0o640
    assert list(Path(f"{victim}.d").iterdir()) == []
    assert list((cache / "new").iterdir()) == []
    if done.returncode == 0:
        assert pctx("env", "prune", "--all", env=env).returncode == 0
        assert list((cache / "env").iterdir()) == [] and victim.exists()


def test_terminal_codes_in_a_packages_name_are_not_obeyed(pctx, env):
    done = pctx("env", "build", "--", "x\x1b]0;owned\x07", env=env)
    assert done.returncode == 125 and "\x1b" not in done.stderr


def test_a_guest_cannot_hold_the_locks_of_its_environment(pctx, env, folder, build):
    wheels.make(folder, "plain", "1.0", {"plain.py": ""})
    made = build("plain").json()
    code = (
        "import fcntl, os, sys\nfor f, _, names in os.walk(sys.prefix):\n"
        "  for n in [*names, '.']:\n    try: fcntl.flock(os.open(os.path.join(f, n), os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except OSError: pass\nprint('holding', flush=True); sys.stdin.read()"
    )
    many = ["--files", "2000", "--allow-degraded", "subordinate-ids"]
    line = [pctx("--version").args[0], "run", "-q", *many, "--with", "plain", "--", "python", "-c", code]
    guest = subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert guest.stdout.readline() == "holding\n"
        assert build("plain").json()["path"] == made["path"]
        assert build("--no-cache", "plain").json()["built"]
    finally:
        guest.communicate("", timeout=30)
