"""The Lima backend as far as it can be shown without a machine: what is missing is told before anything is made.

The template and the reading of Lima's list have unit tests; docs/lima.md says what was run with a machine.
"""

import os


def test_without_lima_one_sentence_tells_how_to_install_it(pctx, tmp_path):
    env = {**os.environ, "PATH": str(tmp_path)}
    done = pctx("serve", "--backend", "lima", env=env)
    assert done.returncode == 125 and len(done.stderr.splitlines()) == 2, done.stderr
    assert "Lima is not installed" in done.stderr and "brew install lima" in done.stderr
    done = pctx("run", "--backend", "lima", "--", "echo", "ran", env=env)
    assert (done.returncode, done.stdout) == (125, "") and "Lima is not installed" in done.stderr
    assert "Lima is not installed" in pctx("doctor", env=env).stdout


def test_auto_never_makes_a_machine(pctx):
    """The control: the backend is known by its name, and to nobody else."""
    assert pctx("run", "-q", "--backend", "auto", "--", "true").returncode == 0
    assert "lima" in pctx("serve", "--backend", "nowhere").stderr
