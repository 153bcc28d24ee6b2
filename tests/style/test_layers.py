"""Includes point one way: base, sys, policy, plan, {launch, net}, box, {env, pool}, broker, backend, cli."""

import re

import project
import pytest

# A module may include itself and any module of a lower rank. `wire` knows frames and descriptors, nothing of boxes;
# `data` is the Python extension and knows nothing of the engine.
RANK = {
    "base": 0,
    "data": 1,
    "sys": 1,
    "policy": 2,
    "wire": 2,
    "plan": 3,
    "launch": 4,
    "net": 4,
    "box": 5,
    "env": 6,
    "pool": 6,
    "broker": 7,
    "backend": 8,
    "cli": 9,
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def violations(path, text):
    """What is wrong with the quoted includes of src/<module>/<file>, one sentence each."""
    module = path.parts[1]
    for included in INCLUDE.findall(text):
        target = included.split("/")[0]
        if target not in RANK:
            yield f'{path} includes "{included}", which does not start with the name of a module'
        elif target != module and RANK[target] >= RANK[module]:
            yield f'{path} includes "{included}": {module} must not know {target}'


SOURCES = [path for path in project.files("src/*.h", "src/*.cc", "src/*.c") if len(path.parts) > 2]


def test_every_folder_of_src_has_a_rank():
    assert {path.parts[1] for path in SOURCES} <= RANK.keys()


def test_no_include_points_upward():
    assert SOURCES, "there is nothing to check"
    assert [line for path in SOURCES for line in violations(path, project.text(path))] == []


@pytest.mark.parametrize("included", ["box/box.h", "cli/run.h", "util.h"])
def test_the_check_sees_a_wrong_include(included):
    assert list(violations(project.Path("src/plan/x.cc"), f'#include "{included}"\n'))


@pytest.mark.parametrize("included", ["plan/plan.h", "base/fd.h"])
def test_the_check_accepts_a_right_include(included):
    assert not list(violations(project.Path("src/plan/x.cc"), f'#include "{included}"\n'))
