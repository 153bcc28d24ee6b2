"""Environments: found by what is asked for, built once in a box of their own, never half built, used read-only."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import wheels

UNREACHABLE = "http://127.0.0.1:9/simple"  # the discard port: nobody listens there


@pytest.fixture(scope="session")
def index():
    """The host's own index settings, if the index answers: tests that need a real one are skipped elsewhere."""
    return dict(os.environ)


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache"
    yield folder
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False)


@pytest.fixture
def local(cache, tmp_path):
    """An environment in which only the wheels of a folder exist, and nothing can be reached."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheels.make(folder, "alpha", "1.0", {"alpha/__init__.py": "VERSION = '1.0'\n"})
    wheels.make(folder, "alpha", "2.0", {"alpha/__init__.py": "VERSION = '2.0'\n"})
    wheels.make(folder, "beta", "1.0", {"beta.py": "import alpha\n"}, requires=["alpha>=1"])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    return kept | {
        "PCTX_SANDBOX_CACHE_DIR": str(cache),
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
    }


@pytest.fixture
def build(pctx):
    def run(*requirements, env, options=(), timeout=300):
        done = pctx("env", "build", "--json", *options, "--", *requirements, env=env, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.json()

    return run


def tell(pctx, environment, code, env):
    """Runs code with an Environment, lent as `run --with` lends it; returns what it prints."""
    done = pctx("run", "-q", "--timeout", "120s", *environment, "--", "python", "-c", code, env=env, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_environment_is_built_once_and_found_again(build, local):
    first = build("alpha", "beta", env=local)
    again = build("beta ", "Alpha", env=local)
    assert first["built"] and not again["built"]
    assert first["key"] == again["key"] and first["path"] == again["path"]
    assert first["modules"] == {"alpha": ["alpha"], "beta": ["beta"]}
    assert [(p["name"], p["version"]) for p in first["packages"]] == [("alpha", "2.0"), ("beta", "1.0")]
    assert all(len(p["sha256"]) == 64 for p in first["packages"])
    assert first["site_packages"].startswith(first["path"] + "/lib/python3.")
    assert Path(first["python"]).is_absolute() and not first["python"].startswith(first["path"])


def test_versions_live_side_by_side(build, pctx, local):
    for version in ("1.0", "2.0"):
        asked = ("--with", f"alpha=={version}")
        assert tell(pctx, asked, "import alpha; print(alpha.VERSION)", local) == version


def test_everything_in_it_is_read_only_and_recorded(build, local):
    made = build("beta", env=local)
    top = Path(made["path"])
    for path in top.rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o7222 == 0, path
    record = json.loads((top / "environment.json").read_text())
    assert record["requested"] == ["beta"] and record["build"]["network"] in ("none", "indexes")
    assert record["build"]["bytecode"] and list(top.rglob("beta.cpython-*.pyc"))
    assert not (top / ".build").exists()


def test_nothing_in_it_tells_where_packages_came_from(build, local, tmp_path):
    top = Path(build("beta", env=local)["path"])
    told = [
        path for path in top.rglob("*") if path.is_file() and str(tmp_path / "wheels").encode() in path.read_bytes()
    ]
    assert told == []


def test_its_own_paths_are_right_after_publishing(build, pctx, local, tmp_path):
    wheels.make(
        tmp_path / "wheels", "tool", "1.0", {"tool.py": "def main(): print('tool ran')\n"}, script="tool = tool:main"
    )
    made = build("tool", env=local)
    config = Path(made["path"], "pyvenv.cfg").read_text()
    assert f"home = {Path(made['python']).parent}\n" in config
    assert Path(made["path"], "bin/tool").read_text().startswith(f"#!{made['path']}/bin/python")
    done = pctx("run", "-q", "--with", "tool", "--", "tool", env=local)
    assert done.stdout == "tool ran\n", done.stderr


def test_a_guest_cannot_change_the_environment_it_runs_in(build, pctx, local):
    code = "import alpha, os; open(os.path.join(os.path.dirname(alpha.__file__), 'x'), 'w')"
    done = pctx("run", "-q", "--with", "alpha", "--", "python", "-c", code, env=local)
    assert done.returncode == 1 and "Read-only file system" in done.stderr


def test_a_guest_sees_no_other_environment_and_no_lock(build, pctx, local, cache):
    build("alpha", env=local)
    code = f"import os; print(sorted(os.listdir({str(cache)!r})), sorted(os.listdir({str(cache / 'env')!r})))"
    made = build("beta", env=local)
    assert tell(pctx, ("--with", "beta"), code, local) == f"['env'] ['{made['key']}']"


def test_two_builds_at_once_build_once(sandbox_bin, local):
    line = [sandbox_bin, "env", "build", "--json", "--", "beta"]
    running = [subprocess.Popen(line, env=local, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    assert sorted(answer["built"] for answer in answers) == [False, False, False, True]
    assert len({answer["path"] for answer in answers}) == 1


@pytest.mark.parametrize("delay", [0.02, 0.08, 0.15, 0.25, 0.4])
def test_a_killed_build_leaves_nothing_that_looks_built(sandbox_bin, pctx, build, local, cache, delay):
    process = subprocess.Popen([sandbox_bin, "env", "build", "--", "beta"], env=local, stdout=subprocess.DEVNULL)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=20)
    published = list((cache / "env").glob("*")) if (cache / "env").is_dir() else []
    listed = pctx("env", "list", "--json", env=local).json()
    assert len(listed) == len(published) and not any(entry["damaged"] for entry in listed)
    # The next build works, and sweeps what the killed one left.
    made = build("beta", env=local)
    assert made["built"] == (not published)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pctx("env", "prune", env=local)
        if not list((cache / "new").iterdir()):
            break
        time.sleep(0.2)
    assert list((cache / "new").iterdir()) == []


def test_what_cannot_be_resolved_is_said_in_the_resolvers_words(pctx, local, cache):
    done = pctx("env", "build", "--json", "--", "alpha==3.0", env=local)
    assert done.returncode == 1 and done.stdout == ""
    assert "alpha==3.0" in done.stderr and "No solution found" in done.stderr
    assert list((cache / "env").iterdir()) == [] and list((cache / "new").iterdir()) == []
    # Not cached: once the index has it, it is built.
    wheels.make(Path(local["PIP_FIND_LINKS"]), "alpha", "3.0", {"alpha/__init__.py": ""})
    assert pctx("env", "build", "--", "alpha==3.0", env=local).returncode == 0


def test_a_run_without_its_packages_does_not_start(pctx, local):
    done = pctx("run", "--with", "no-such-package", "--", "echo", "ran", env=local)
    assert done.returncode == 125 and done.stdout == "" and "no-such-package" in done.stderr


HOSTILE = ["--index-url=http://127.0.0.1:9/", "--index-url http://127.0.0.1:9/", "-r /etc/passwd", "./alpha", "/etc",
           "../alpha", "alpha @ http://127.0.0.1:9/alpha.whl", "http://127.0.0.1:9/alpha.whl", "file:///etc/passwd",
           "git+https://127.0.0.1:9/x", "alpha\n--index-url http://127.0.0.1:9/", "alpha --hash=sha256:00",
           "alpha.whl", "${HOME}", "", " ", "alpha # x"]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_a_requirement_that_is_no_name_is_refused_with_one_sentence(pctx, local, cache, text):
    done = pctx("env", "build", "--json", "--", text, env=local)
    assert done.returncode == 125 and done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("pctx-sandbox: ") and len(lines) <= 2
    assert not (cache / "env").exists() or list((cache / "env").iterdir()) == []


def test_configuration_may_allow_addresses(build, local, tmp_path):
    file = next((tmp_path / "wheels").glob("alpha-1.0*"))
    made = build(f"alpha @ file://{file}", env=local | {"PCTX_SANDBOX_ALLOW_URLS": "1"})
    assert made["packages"][0]["version"] == "1.0"


def test_a_cached_environment_needs_neither_network_nor_uv(build, pctx, local, sandbox_bin, tmp_path):
    build("alpha", env=local)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "pctx-sandbox").write_bytes(Path(sandbox_bin).read_bytes())
    (alone / "pctx-sandbox").chmod(0o755)
    env = {"PCTX_SANDBOX_CACHE_DIR": local["PCTX_SANDBOX_CACHE_DIR"], "HOME": str(alone), "PATH": "/usr/bin:/bin",
           "UV_DEFAULT_INDEX": UNREACHABLE}  # fmt: skip
    line = [alone / "pctx-sandbox", "env", "build", "--json", "--"]
    found = subprocess.run([*line, "alpha"], env=env, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and not json.loads(found.stdout)["built"], found.stderr
    # The control: what is not cached needs uv, and says so.
    missing = subprocess.run([*line, "beta"], env=env, capture_output=True, text=True, timeout=60)
    assert missing.returncode == 125
    assert (
        missing.stderr.startswith("pctx-sandbox: uv, which builds Environments,")
        and "hint: install it" in missing.stderr
    )


def test_an_index_that_cannot_be_reached_is_named_by_the_resolver(pctx, local):
    env = {k: v for k, v in local.items() if not k.startswith("PIP_")} | {
        "UV_DEFAULT_INDEX": UNREACHABLE,
        "UV_HTTP_RETRIES": "0",
    }
    done = pctx("env", "build", "--", "alpha", env=env, timeout=120)
    assert done.returncode == 1 and "127.0.0.1:9" in done.stderr


def damage_by_removing(top):
    victim = next(top.rglob("alpha/__init__.py"))
    victim.parent.chmod(0o755)
    victim.unlink()


def damage_by_adding(top):
    folder = next(top.rglob("site-packages"))
    folder.chmod(0o755)
    (folder / "planted.pth").write_text("import os\n")


def damage_of_the_record(top):
    top.chmod(0o755)
    (top / "environment.json").chmod(0o644)
    (top / "environment.json").write_text("{}")


def damage_of_the_manifest(top):
    top.chmod(0o755)
    (top / "manifest").unlink()


@pytest.mark.parametrize("damage", [damage_by_removing, damage_by_adding, damage_of_the_record, damage_of_the_manifest])
def test_a_damaged_environment_is_noticed_and_built_again(build, pctx, local, damage):
    made = build("alpha", env=local)
    damage(Path(made["path"]))
    assert [entry["damaged"] for entry in pctx("env", "list", "--json", env=local).json()] == [True]
    again = build("alpha", env=local)
    assert again["built"] and again["path"] == made["path"]
    assert not build("alpha", env=local)["built"]
    assert pctx("env", "show", "--verify", made["key"], env=local).returncode == 0


def test_verify_sees_one_changed_byte(build, pctx, local):
    made = build("alpha", env=local)
    assert pctx("env", "show", "--verify", made["key"][:8], env=local).returncode == 0
    victim = next(Path(made["path"]).rglob("alpha/__init__.py"))
    victim.chmod(0o644)
    victim.write_text(victim.read_text().replace("2", "3"))
    done = pctx("env", "show", "--verify", "--json", made["key"][:8], env=local)
    assert done.returncode == 1 and "has other content" in done.json()["differences"][0]


@pytest.fixture
def twins(build, local):
    """Two Environments that have one large file in common; `tables` makes either of them again."""
    for version in ("1.0", "2.0"):
        files = {"tables/__init__.py": f"VERSION = '{version}'\n", "tables/large.txt": "0123456789abcdef" * 4096}
        wheels.make(Path(local["PIP_FIND_LINKS"]), "tables", version, files)

    def tables(version, *options):
        made = build(f"tables=={version}", env=local, options=options)
        return next(Path(made["path"]).rglob("tables/large.txt"))

    return tables


def test_what_environments_have_in_common_is_kept_once(twins, pctx, local, cache):
    first, second = twins("1.0"), twins("2.0")
    assert first != second and first.samefile(second)
    small = [path.with_name("__init__.py") for path in (first, second)]
    assert not small[0].samefile(small[1])
    assert pctx("env", "prune", "--all", env=local).returncode == 0
    assert list((cache / "shared").iterdir()) == []


def test_a_shared_file_that_was_changed_is_not_shared_again(twins):
    first = twins("1.0")
    content = first.read_text()
    first.chmod(0o644)
    first.write_text(content.replace("0", "X"))
    assert twins("2.0").read_text() == content
    assert twins("1.0", "--no-cache").read_text() == content


def test_no_cache_builds_anew_even_while_the_old_one_is_used(build, pctx, local, cache, sandbox_bin):
    made = build("alpha", env=local)
    code = "import time; print('up', flush=True); time.sleep(3); import alpha; print(alpha.VERSION)"
    line = [sandbox_bin, "run", "-q", "--with", "alpha", "--", "python", "-c", code]
    user = subprocess.Popen(line, env=local, stdout=subprocess.PIPE, text=True)
    assert user.stdout.readline() == "up\n"
    assert build("alpha", env=local, options=["--no-cache"])["built"]
    pruned = pctx("env", "prune", "--all", "--json", env=local).json()
    assert pruned["in_use"] == [made["key"]] and pruned["removed"] == []
    assert user.communicate(timeout=30)[0] == "2.0\n" and user.returncode == 0
    assert len(pctx("env", "prune", "--all", "--json", env=local).json()["removed"]) == 1
    assert [list((cache / name).iterdir()) for name in ("env", "new", "old")] == [[], [], []]


def test_prune_takes_the_longest_unused_first(build, pctx, local, cache):
    old, new = build("alpha==1.0", env=local), build("alpha==2.0", env=local)
    past = time.time() - 40 * 86400
    os.utime(cache / "lock" / f"{old['key']}.use", (past, past))
    assert pctx("env", "prune", "--older-than", "50d", "--json", env=local).json()["removed"] == []
    would = pctx("env", "prune", "--older-than", "30d", "--dry-run", "--json", env=local).json()
    assert [entry["key"] for entry in would["removed"]] == [old["key"]] and Path(old["path"]).exists()
    size = next(e["bytes"] for e in pctx("env", "list", "--json", env=local).json() if e["key"] == new["key"])
    gone = pctx("env", "prune", "--max-size", size + 100, "--json", env=local).json()
    assert [entry["key"] for entry in gone["removed"]] == [old["key"]] and not Path(old["path"]).exists()
    assert Path(new["path"]).exists()


def test_a_build_has_a_time_limit_of_its_own(pctx, local):
    done = pctx("env", "build", "--timeout", "1ms", "--", "alpha", env=local)
    assert done.returncode == 1 and "did not end within 1 ms" in done.stderr


def test_a_store_that_others_may_write_to_is_refused(pctx, local, cache):
    cache.mkdir()
    cache.chmod(0o777)
    done = pctx("env", "build", "--", "alpha", env=local)
    assert done.returncode == 125 and "others may write to it" in done.stderr


def test_no_requirements_need_no_environment(pctx, local, cache):
    assert pctx("env", "build", "--json", env=local).stdout == "null\n"
    assert not cache.exists()


def test_a_script_brings_its_own_requirements(pctx, local, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "# /// script\n# requires-python = '>=3.8'\n# dependencies = ['alpha<2']\n"
        "# [tool.uv]\n# index-url = 'http://127.0.0.1:9/'\n# ///\n"
        "import sys, alpha\nprint(alpha.VERSION, sys.argv[1:])\n"
    )
    assert pctx("run", "-q", script, "one", env=local).stdout == "1.0 ['one']\n"
    assert pctx("run", "-q", "-", "one", env=local, input=script.read_text()).stdout == "1.0 ['one']\n"
    with script.open() as file:
        assert pctx("run", "-q", "-", env=local, stdin=file).stdout == "1.0 []\n"
    # --with adds to it.
    done = pctx("run", "-q", "--with", "beta", script, env=local)
    assert done.stdout == "1.0 []\n", done.stderr
    listed = pctx("env", "list", "--json", env=local).json()
    assert sorted(entry["requested"] for entry in listed) == [["alpha<2"], ["alpha<2", "beta"]]


@pytest.mark.parametrize("block", ["dependencies = ['alpha'", "dependencies = [alpha]", "requires-python = '>=2,x'",
                                   "dependencies = ['--index-url=http://127.0.0.1:9/']"])  # fmt: skip
def test_a_script_whose_block_is_wrong_does_not_run(pctx, local, tmp_path, block):
    script = tmp_path / "script.py"
    script.write_text(f"# /// script\n# {block}\n# ///\nprint('ran')\n")
    done = pctx("run", "-q", script, env=local)
    assert done.returncode == 125 and done.stdout == "" and done.stderr.startswith("pctx-sandbox: ")


def test_a_script_that_needs_another_python_says_so(pctx, local, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("# /// script\n# requires-python = '>=3.99'\n# ///\nprint('ran')\n")
    done = pctx("run", "-q", script, env=local)
    assert done.returncode == 125 and done.stdout == "" and "no Python >=3.99 was found; there is 3." in done.stderr
    piped = pctx("run", "-q", "-", env=local, input=script.read_text())
    assert (piped.returncode, piped.stdout, piped.stderr) == (125, "", done.stderr)


def test_a_script_that_never_ends_is_waited_for_no_longer_than_it_may_run(pctx):
    read_end, write_end = os.pipe()
    try:
        done = pctx("run", "-q", "--timeout", "1s", "-", stdin=read_end)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert done.returncode == 125 and "did not end within 1 s (--timeout)" in done.stderr


def test_a_longer_time_than_the_kernel_waits_at_once_is_not_cut(pctx):
    """4294968296 ms, in 32 bits a second; in all of them enough for a script that takes two."""
    read_end, write_end = os.pipe()
    line = "sleep 2.5; echo 'print(1)'"
    with subprocess.Popen(["sh", "-c", line], stdout=write_end):
        os.close(write_end)
        done = pctx("run", "-q", "--timeout", "4294968296ms", "-", stdin=read_end)
    os.close(read_end)
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_explain_looks_and_never_builds(pctx, local, cache):
    done = pctx("explain", "--with", "alpha", "--", "true", env=local)
    assert done.returncode == 125 and "is not built yet" in done.stderr
    assert pctx("run", "-q", "--with", "alpha", "--", "true", env=local).returncode == 0
    assert str(cache / "env") in pctx("explain", "--with", "alpha", "--", "true", env=local).stdout


def test_input_is_the_guests_and_not_the_builds(pctx, local):
    done = pctx("run", "-q", "--with", "alpha", "-", env=local, input="import alpha; print(alpha.VERSION)\n")
    assert done.stdout == "2.0\n", done.stderr


# --- with the host's own index ---


def test_two_versions_of_pandas_from_the_hosts_index(pctx, build, index, cache):
    env = index | {"PCTX_SANDBOX_CACHE_DIR": str(cache)}
    code = "import pandas as p; print(p.__version__, p.DataFrame({'a': [1, 2]}).a.sum())"
    for version in ("2.2.2", "2.2.3"):
        made = build(f"pandas=={version}", env=env, timeout=600)
        assert made["modules"] == {"pandas": ["pandas"]}
        assert {p["name"] for p in made["packages"]} >= {"pandas", "numpy"}
        assert all(len(p["sha256"]) == 64 for p in made["packages"])
        asked = ("--with", f"pandas=={version}")
        assert tell(pctx, asked, code, env | {"UV_DEFAULT_INDEX": UNREACHABLE}) == f"{version} 3"
        assert not list(Path(made["path"]).rglob("direct_url.json"))


def test_an_interrupted_build_publishes_nothing(sandbox_bin, local, cache):
    big = "\n".join(f"def f{n}(a, b): return [a + {n} for _ in range(b) if a > {n}]" for n in range(20000))
    wheels.make(Path(local["PIP_FIND_LINKS"]), "slow", "1.0", {f"slow/m{n}.py": big for n in range(6)})
    process = subprocess.Popen(
        [sandbox_bin, "env", "build", "--", "slow"], env=local, stderr=subprocess.PIPE, text=True
    )
    site = "new/*/tree/lib/python3*/site-packages/slow"
    deadline = time.monotonic() + 60
    while not list(cache.glob(site)) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # it compiles now
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1, said
    assert list((cache / "env").iterdir()) == [] and list((cache / "new").iterdir()) == []


@pytest.mark.usefixtures("own_broker")
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_snippet_runs_with_its_dependencies(warm, local, monkeypatch):
    import pctx_sandbox

    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    for name in ("PCTX_SANDBOX_CACHE_DIR", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE"):
        monkeypatch.setenv(name, local[name])
    code = "import alpha, beta, sys; print(alpha.VERSION); sys.exit(3)"
    res = pctx_sandbox.run(code, dependencies=["alpha<2", "beta"], warm=warm, timeout=300)
    assert (res.stdout, res.stderr, res.returncode, res.files.created) == ("1.0\n", "", 3, ())
    assert res.receipt["layers"]["network"]["on"]
    with pytest.raises(pctx_sandbox.DependencyInstallError):
        pctx_sandbox.run(code, dependencies=["gamma"], warm=warm, timeout=300)


def test_nothing_of_the_folder_that_we_are_in_is_run_on_the_host(sandbox_bin, tmp_path):
    """Where uv is looked for among the packages of Python, a file of that name may be anybody's."""
    (tmp_path / "uv.py").write_text("open('witness', 'w')\n")
    (tmp_path / "script.py").write_text('# /// script\n# dependencies = ["pctx-nosuch-package"]\n# ///\n')
    (tmp_path / "alone").mkdir()
    program = shutil.copy(sandbox_bin, tmp_path / "alone")
    env = os.environ | {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run(["/usr/bin/python3", "-c", "import uv"], cwd=tmp_path, check=True)
    assert (tmp_path / "witness").exists()  # the control: Python would
    (tmp_path / "witness").unlink()
    done = subprocess.run([program, "run", "script.py"], cwd=tmp_path, env=env, capture_output=True, timeout=120)
    assert done.returncode == 125 and not (tmp_path / "witness").exists()
