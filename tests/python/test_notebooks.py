"""In a notebook: cells define functions, print through the cell's output, are interrupted, and define them again."""

import os
import signal
import sys
import threading
import time

import pytest

pytest.importorskip("IPython", reason="needs IPython")
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

pytestmark = pytest.mark.usefixtures("own_broker")


@pytest.fixture
def cell():
    """cell("x = 1") runs one cell; returns its value and what it printed."""
    shell = InteractiveShell()

    def run(code):
        with capture_output() as captured:
            done = shell.run_cell(code)
        done.raise_error()
        return done.result, captured.stdout

    run("from pctx_sandbox import sandbox")
    return run


def test_a_function_of_a_cell_uses_what_other_cells_define(cell):
    cell("import math\nfactor = 3\ndef helper(n):\n    return math.floor(n) * factor")
    cell("@sandbox\ndef f(n):\n    print('inside', n)\n    return helper(n)")
    value, printed = cell("f(2.5)")
    assert value == 6 and printed.startswith("inside 2.5\n")
    cell("factor = 5")
    assert cell("f(2.5)")[0] == 10


def test_a_cell_that_is_run_again_has_its_new_function(cell):
    cell("@sandbox\ndef f():\n    return 'old'")
    assert cell("f()")[0] == "old"
    cell("@sandbox\ndef f():\n    return 'new'")
    assert cell("f()")[0] == "new"


def test_await_in_a_cell(cell):
    cell("from pctx_sandbox import sandbox_async\n@sandbox_async\ndef f(n):\n    return n + 1")
    assert cell("await f(1)")[0] == 2


def places_of(thread):
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield os.path.basename(frame.f_code.co_filename), frame.f_code.co_name
        frame = frame.f_back


def test_interrupting_a_cell_stops_the_call_and_the_next_one_works(cell):
    cell("import time\n@sandbox\ndef f(seconds):\n    time.sleep(seconds)\n    return 'slept'")
    assert cell("f(0)")[0] == "slept"
    main = threading.main_thread().ident

    def interrupt():
        # Once the call waits for its answer: earlier, the interrupt is IPython's to handle.
        while not any(place == ("client.py", "_run") for place in places_of(main)):
            time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may ignore it
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            cell("f(300)")
    finally:
        signal.signal(signal.SIGINT, before)
    assert cell("f(0)")[0] == "slept"


def test_the_error_of_a_call_shows_the_cells_line(cell):
    cell("@sandbox\ndef f():\n    return 1 / 0")
    with pytest.raises(ZeroDivisionError) as caught:
        cell("f()")
    assert "return 1 / 0" in caught.value.traceback_str
