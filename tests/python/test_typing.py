"""Type checkers accept the package and its examples, and see the mistakes in them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent.parent
SAMPLE = Path(__file__).parent / "typing_sample.py"


def check(command):
    environment = {**os.environ, "MYPYPATH": str(TREE / "python")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=TREE, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict_accepts_the_package_and_the_sample(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    files = [str(TREE / "python" / "pctx_sandbox"), str(SAMPLE)]
    check([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--python-version", "3.10", "--strict", *files])


def test_pyright_accepts_the_sample(tmp_path):
    # The same checker in a wheel that needs no node of the host's.
    program = shutil.which("basedpyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if program is None:
        pytest.skip("needs pyright or basedpyright")
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        f'{{"include": ["{SAMPLE}"], "extraPaths": ["{TREE}/python"], "pythonVersion": "3.10", '
        f'"enableTypeIgnoreComments": true, "typeCheckingMode": "strict"}}'
    )
    check([program, "--project", str(config), "--pythonpath", sys.executable])
