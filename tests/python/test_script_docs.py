"""Every example of docs/scripts.md runs and gives what its comment says."""

import inspect
import re
import subprocess
import sys

import pctx_sandbox
import pytest
import test_python_docs
from pctx_sandbox import sandbubble

PAGE = test_python_docs.PAGE.parent / "scripts.md"

pytestmark = pytest.mark.usefixtures("own_broker")


def test_every_example_gives_what_it_says(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    space = {"venv": tmp_path / "venv"}
    checked = 0
    for found in test_python_docs.FENCE.finditer(PAGE.read_text()):
        if found["mark"] == "with-environments":
            continue  # tests/integration/test_script_environments.py
        checked += test_python_docs.run(found["code"], space, f"<docs/scripts.md:{found.start()}>")
    assert checked >= 5


def test_the_page_describes_every_argument_and_field():
    text = PAGE.read_text()
    known = [*inspect.signature(sandbubble.SandboxConfig).parameters, *sandbubble.ScriptResult.__dataclass_fields__]
    known += [name for name in inspect.signature(sandbubble.run_sandboxed).parameters if name != "conf"]
    for name in known:
        assert re.search(rf"`{name}`|`[^`]*\b{name}\b[^`]*`", text), name


def test_the_page_and_the_docstring_of_run_name_each_of_its_arguments():
    section = PAGE.read_text().split("\n## `pctx_sandbox.run`\n")[1].split("\n## ")[0]
    for name, parameter in inspect.signature(pctx_sandbox.run).parameters.items():
        written = name if parameter.default is inspect.Parameter.empty else f"{name}={parameter.default!r}"
        assert re.search(rf"[( ]{re.escape(written)}[,)]", section.split("```")[1]), written
        assert re.search(rf"^\|.*`{name}`.*\|", section, re.MULTILINE), name
        assert name == "code" or re.search(rf"`{name}\b", pctx_sandbox.run.__doc__), name
