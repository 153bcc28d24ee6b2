"""`uv run pytest tests/security/ -v` in a clone, after `make demo`."""

import os
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
UV = Path(sys.prefix) / "bin/uv"


def test_the_security_tests_run_as_the_seeds_say():
    """One of them, and without letting uv change the packages that the other tests run with."""
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    chosen = "TestSyscallFiltering and ptrace"
    line = [UV, "run", "--no-sync", "pytest", "tests/security/", "-v", "-k", chosen, "-p", "no:cacheprovider"]
    done = subprocess.run(line, cwd=TREE, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"test_ptrace_is_refused\S* PASSED", done.stdout)
