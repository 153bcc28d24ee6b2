"""What is compiled for the wheel loads on old systems: the tag of the wheel is made from the same look."""

import subprocess
import sys

import project
import pytest

FLOOR = project.TREE / "scripts" / "glibc_floor.py"
OLDEST = (2, 17)  # manylinux2014, the oldest for which PyPI's own tools still build
COMPILED = (
    "pctx-sandbox",
    "python/pctx_sandbox/_native.abi3.so",
    "python/pctx_sandbox/guest/_fork.so",
    "python/pctx_sandbox/guest/_scripts.so",
)


def look(*paths):
    return subprocess.run([sys.executable, FLOOR, *paths], capture_output=True, text=True)


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_compiled_loads_on_a_glibc_of_2012(name):
    built = project.TREE / "build" / "release" / name
    assert built.exists(), f"{built} is missing; run scripts/setup.sh test"
    done = look(built)
    assert done.returncode == 0, done.stderr
    assert tuple(map(int, done.stdout.split("."))) <= OLDEST


def test_the_look_sees_what_a_program_of_this_system_asks_for(tmp_path):
    source = tmp_path / "new.c"
    source.write_text(
        "#include <unistd.h>\nint close_range(unsigned, unsigned, int);\nint f(void) { return close_range(3, 4, 0); }\n"
    )
    made = tmp_path / "new.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, source], check=True)
    done = look(made)
    assert (done.returncode, done.stdout) == (0, "2.34\n"), done.stderr  # close_range came with glibc 2.34


def test_a_library_that_is_not_glibcs_is_refused(tmp_path):
    source = tmp_path / "thrower.cc"
    source.write_text("void f() { throw 1; }\n")
    made = tmp_path / "thrower.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", made, source], check=True)
    done = look(made)
    assert done.returncode == 1 and "libstdc++.so.6" in done.stderr
