"""What `make test` makes of failures: repeated alone once, listed, and never hidden."""

import importlib.util
import sys

import pytest


@pytest.fixture(scope="module")
def runner(tree):
    spec = importlib.util.spec_from_file_location("pctx_runner", tree / "tests/run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for the module of a class
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def run_suite(runner, folder, text, monkeypatch):
    (folder / "test_sample.py").write_text(text)
    monkeypatch.setattr(runner, "TREE", folder)
    return runner.pytest(runner.Identity("me", root=folder), "test_sample.py", timeout=120)


FAILS_ONCE = """
import pathlib

def test_good(): pass

def test_late():
    mark = pathlib.Path("mark")
    if not mark.exists():
        mark.touch()
        assert False, "the first time"
"""


def test_what_passes_alone_is_passed_and_listed(runner, tmp_path, monkeypatch):
    tally = run_suite(runner, tmp_path, FAILS_ONCE, monkeypatch)
    assert (tally.passed, tally.failed) == (2, 0)
    assert tally.repeated == ["test_sample.test_late"]


def test_what_fails_again_is_failed(runner, tmp_path, monkeypatch):
    tally = run_suite(runner, tmp_path, FAILS_ONCE + "\ndef test_bad(): assert False\n", monkeypatch)
    assert (tally.passed, tally.failed) == (2, 1)
    assert tally.failures == ["test_sample.test_bad"]
    assert tally.repeated == ["test_sample.test_late"]


def test_many_failures_are_not_repeated(runner, tmp_path, monkeypatch):
    text = FAILS_ONCE + "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_bad(n): assert False\n"
    tally = run_suite(runner, tmp_path, text, monkeypatch)
    assert (tally.passed, tally.failed, tally.repeated) == (1, 21, [])


def test_a_suite_without_tests_fails(runner, tmp_path, monkeypatch):
    assert run_suite(runner, tmp_path, "", monkeypatch).failed == 1


def test_parts_beside_each_other_keep_their_output_apart(runner, capfd):
    def part(word):
        return lambda: (runner.say(word), runner.run(["echo", word * 2], timeout=60), runner.Tally(passed=1))[-1]

    tallies = [tally.passed for tally, _ in runner.in_row((("one", part("a")), ("two", part("b"))))]
    assert tallies == [1, 1]
    assert sorted(capfd.readouterr().out.split()) == ["a", "aa", "b", "bb"]
