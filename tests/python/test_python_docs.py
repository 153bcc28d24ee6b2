"""Every example of docs/python.md runs and gives what its comment says."""

import ast
import contextlib
import io
import linecache
import os
import re
import sys
import types
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "python.md"
FENCE = re.compile(r"^(?:<!-- runs: (?P<mark>[\w-]+) -->\n)?```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.usefixtures("broker")


def blocks():
    text = PAGE.read_text()
    return [(found["mark"], text[: found.start()].count("\n"), found["code"]) for found in FENCE.finditer(text)]


def run(code, space, name):
    """Runs the statements one by one; the last line of each may say what it gives, or what it prints."""
    lines = code.splitlines()
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    checked = 0
    for statement in ast.parse(code).body:
        expected = [
            line.partition("# → ")[2] for line in lines[statement.lineno - 1 : statement.end_lineno] if "# → " in line
        ]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), name, "eval"), space)
                shown = repr(value)
            else:
                exec(compile(ast.Module([statement], []), name, "exec"), space)
                shown = printed.getvalue().strip()
        for want in expected:
            assert want == shown
            checked += 1
    return checked


def test_every_example_gives_what_it_says(monkeypatch):
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    checked = 0
    for mark, line, code in blocks():
        if mark == "with-environments" and os.environ.get("PCTX_TEST_BROKER") != "real":
            continue
        checked += run(code, vars(module), f"<docs/python.md:{line}>")
    assert checked >= 14


def test_the_page_describes_every_argument_and_exception():
    import inspect

    import pctx_sandbox

    text = PAGE.read_text()
    for name in inspect.signature(pctx_sandbox.sandbox).parameters:
        assert f"`{name}`" in text or f"{name}=" in text, name
    for name in pctx_sandbox.__all__:
        if name.endswith("Error") and name not in ("PodmanNotInstalledError", "LimaNotInstalledError"):
            assert f"`{name}`" in text, name
