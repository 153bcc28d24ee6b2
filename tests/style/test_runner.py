"""What `make test` makes of failures: repeated alone once, listed, and never hidden."""

import importlib.util
import sys
import threading
import time

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


def test_what_is_repeated_has_the_machine_for_itself(runner, monkeypatch):
    """It waits for every part, those included that have not begun; several that wait take turns."""
    monkeypatch.setattr(runner, "AT_ONCE", 2)
    events, begun = [], threading.Barrier(2)

    def passes(name):
        return name, lambda: (events.append(f"{name} runs"), runner.Tally(passed=1))[-1]

    def fails(name):
        def again():
            events.append(f"{name} repeats")
            time.sleep(0.05)  # long enough for whatever would run beside it
            events.append(f"{name} is over")
            return runner.Tally(passed=1)

        def work():
            begun.wait(60)  # both of these run at the same time
            return runner.repeat(runner.Tally(failed=1, failures=[name]), again)

        return name, work

    row = (fails("first"), fails("second"), passes("third"), passes("fourth"))
    total = runner.Tally()
    for tally, _ in runner.in_row(row):
        total.add(tally)
    assert (total.passed, total.failed, sorted(total.repeated)) == (4, 0, ["first", "second"])
    assert sorted(events[:2]) == ["fourth runs", "third runs"]
    turns = [["first repeats", "first is over"], ["second repeats", "second is over"]]
    assert sorted([events[2:4], events[4:]]) == turns


def test_no_more_parts_run_at_once_than_there_are_places(runner, monkeypatch):
    monkeypatch.setattr(runner, "AT_ONCE", 2)
    running, most, begun, lock, pair = 0, 0, [], threading.Lock(), threading.Barrier(2)

    def part(number):
        def work():
            nonlocal running, most
            with lock:
                running, most = running + 1, max(most, running + 1)
                begun.append(number)
            pair.wait(60)  # two of them do run at the same time
            with lock:
                running -= 1
            return runner.Tally(passed=1)

        return str(number), work

    assert len(list(runner.in_row(tuple(map(part, range(6)))))) == 6
    assert most == 2 and [sorted(begun[at : at + 2]) for at in (0, 2, 4)] == [[0, 1], [2, 3], [4, 5]]
