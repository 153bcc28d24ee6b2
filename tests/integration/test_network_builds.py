"""Environments are built with a network by name: what is configured is reached, and where its pages lead.

Everything runs in an internet of the tests' own (network_world): no packet leaves this machine.
"""

import ast
import json
import pathlib

import pytest
import wheels


@pytest.fixture
def index(world, networked, sandbox_bin):
    """An index at index.test whose pages link to files.test. build(...) builds there; what it prints is its report."""
    names = {"index.test": {"A": ["5.5.5.5"]}, "files.test": {"A": ["5.5.5.6"]}, "evil.test": {"A": ["5.5.5.7"]}}
    world.names(names)
    files = world.folder / "www/packages"
    files.mkdir(parents=True, exist_ok=True)

    def publish(name, file):
        page = world.folder / "www/simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<html><body><a href="http://files.test/files/packages/{file}">{file}</a></body></html>')

    def build(*words, **more):
        env = {
            "UV_DEFAULT_INDEX": "http://index.test/files/simple",
            "PIP_CONFIG_FILE": "/dev/null",
            "UV_NO_CONFIG": "1",
            "UV_HTTP_RETRIES": "0",  # what is refused here is refused for good: uv would ask again for ten seconds
        }
        env |= {"PIP_FIND_LINKS": "", "PCTX_SANDBOX_CACHE_DIR": str(world.folder / "cache"), **more}
        return world.run(sandbox_bin, "env", "build", "--json", *words, env=env, timeout=120)

    return files, publish, build


def test_a_build_reaches_its_index_and_where_its_pages_lead(world, index):
    files, publish, build = index
    wheels.make(files, "alpha", "1.0", {"alpha.py": "VERSION = '1.0'\n"})
    publish("alpha", "alpha-1.0-py3-none-any.whl")
    world.seen()
    done = build("alpha")
    assert done.returncode == 0, done.stderr
    assert set(world.seen()["dns"]) == {"index.test", "files.test"}
    record = json.loads(pathlib.Path(json.loads(done.stdout)["path"], "environment.json").read_text())
    assert record["build"]["network"] == "indexes"


BACKEND = """
import os, socket, zipfile
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
def reach(host, port):
    try:
        socket.create_connection((host, port), 3).close()
        return "reached"
    except OSError as error:
        return type(error).__name__
def get_requires_for_build_wheel(config_settings=None): return []
def build_wheel(directory, config_settings=None, metadata_directory=None):
    found = [reach(*place) for place in (("index.test", 80), ("evil.test", 80), ("5.5.5.7", 80), ("127.0.0.1", 8080))]
    name = "builder-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        archive.writestr("builder.py", repr(found))
        archive.writestr("builder-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: builder\\nVersion: 1.0\\n")
        archive.writestr("builder-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("builder-1.0.dist-info/RECORD", "")
    return name
"""


def test_code_that_runs_in_a_build_reaches_nobody_else(world, index):
    files, publish, build = index
    wheels.make_source(files, "builder", "1.0", BACKEND)
    publish("builder", "builder-1.0.tar.gz")
    # The file host is another one, which is not learned while code of packages runs: it is configured.
    done = build("--allow-source", "builder", UV_FIND_LINKS="http://files.test/files/packages/")
    assert done.returncode == 0, done.stderr
    told = pathlib.Path(json.loads(done.stdout)["site_packages"], "builder.py").read_text()
    assert ast.literal_eval(told) == ["reached", "gaierror", "ConnectionRefusedError", "ConnectionRefusedError"]


def test_a_build_reaches_its_proxy_and_nobody_else(world, index):
    files, publish, build = index
    wheels.make(files, "beta", "1.0", {"beta.py": "VERSION = '1.0'\n"})
    publish("beta", "beta-1.0-py3-none-any.whl")
    world.names({"proxy.test": {"A": ["5.5.5.9"]}})
    world.seen()
    assert build("beta").returncode != 0, "without the proxy there is no way"
    world.seen()
    done = build("beta", HTTP_PROXY="http://proxy.test:8000", http_proxy="http://proxy.test:8000")
    assert done.returncode == 0, done.stderr
    seen = world.seen()
    assert {address for _, address, _ in seen["tcp"]} == {"5.5.5.9"} and "proxy.test" in seen["dns"]
