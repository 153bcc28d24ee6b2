"""What a function prints appears through the caller's own streams, as it happens, bounded."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import threading
import time

import neighbours
import pytest
from pctx_sandbox import SandboxExecutionError, sandbox
from pctx_sandbox._output import Output, OutputLimit, escape

pytestmark = pytest.mark.usefixtures("broker")


@sandbox
def speak(text="hello"):
    import sys

    print(text)
    print("careful", file=sys.stderr)


def test_capsys_sees_both_streams(capsys):
    speak()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("hello\n", "careful\n")


def test_what_is_not_there_any_more_keeps_nobody_waiting():
    """A function that has our own uid can, where no other is to be had: each time costs it some of its output."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    output = Output(limit=100, write=lambda name, text: None)
    try:
        assert output.pump("stdout", read_end)
        with pytest.raises(OutputLimit):
            output.pump("stdout", read_end)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_redirect_stdout_sees_it():
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        speak("größe ✓")
    assert sorted(text.getvalue().splitlines()) == ["careful", "größe ✓"]


def test_it_is_written_in_the_calling_thread_as_it_happens():
    seen = []

    class Stream(io.StringIO):
        def write(self, text):
            seen.append((text, threading.get_ident(), time.monotonic()))
            return len(text)

    @sandbox
    def slowly():
        import time

        print("first")
        time.sleep(0.6)
        print("second")

    with contextlib.redirect_stdout(Stream()):
        slowly()
    assert "".join(text for text, _, _ in seen) == "first\nsecond\n"
    assert {thread for _, thread, _ in seen} == {threading.get_ident()}
    assert seen[-1][2] - seen[0][2] > 0.4


def test_child_processes_and_descriptors_are_heard(capsys):
    @sandbox
    def shell():
        import subprocess
        import sys

        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        os.write(1, b"from a descriptor\n")

    shell()
    assert capsys.readouterr().out == "from a child\nfrom a descriptor\n"


def test_output_without_a_last_newline_is_complete(capsys):
    sandbox(lambda: print("no newline", end=""))()
    assert capsys.readouterr().out == "no newline"


def test_what_was_printed_before_a_failure_is_shown(capsys):
    @sandbox
    def fails():
        print("before")
        raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert capsys.readouterr().out == "before\n"

    @sandbox
    def dies():
        print("last words", flush=True)
        os._exit(1)

    with pytest.raises(SandboxExecutionError):
        dies()
    assert capsys.readouterr().out == "last words\n"


def test_warnings_of_logging_reach_stderr(capsys):
    @sandbox
    def logs():
        import logging

        logging.getLogger("inside").warning("look out")
        logging.getLogger("inside").info("not shown")

    logs()
    assert capsys.readouterr().err == "look out\n"


def test_too_much_output_stops_the_call(capsys):
    @sandbox(output_mb=0.1)
    def floods():
        while True:
            print("x" * 1000)

    with pytest.raises(SandboxExecutionError, match=r"output_mb=0.1") as caught:
        floods()
    assert caught.value.error_type == "output_limit"
    assert len(capsys.readouterr().out) <= 0.1 * 2**20
    assert sandbox(lambda: 1)() == 1


def test_much_output_below_the_limit_is_complete(capsys):
    sandbox(lambda: print("y" * 3_000_000))()
    assert len(capsys.readouterr().out) == 3_000_001


def test_closed_streams_do_no_harm(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    speak()

    @sandbox
    def closes():
        os.close(1)
        os.close(2)
        return 1

    assert closes() == 1


def test_a_stream_that_knows_only_ascii_gets_escapes(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    sandbox(lambda: print("é"))()
    sys.stdout.flush()
    assert raw.getvalue() == b"\\xe9\n"


def test_half_characters_wait_for_their_other_half():
    shown = []
    output = Output(100, lambda name, text: shown.append(text))
    for piece in (b"\xc3", b"\xa9", b"\xff", b"\xc3"):
        read, write = os.pipe()
        os.write(write, piece)
        os.close(write)
        output.pump("stdout", read)
        os.close(read)
    output.finish()
    assert "".join(shown) == "é\ufffd\ufffd"


def test_control_sequences_are_escaped_on_a_terminal_only(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pctx_sandbox import sandbox\n"
        "@sandbox\n"
        "def paint():\n"
        "    print('\\x1b[31mred\\x1b[0m\\ttab \\x9b31m')\n"
        "paint()\n"
    )
    main, side = pty.openpty()
    subprocess.run([sys.executable, script], stdout=side, env=neighbours.environment(), check=True)
    os.close(side)
    assert os.read(main, 1000) == b"\\x1b[31mred\\x1b[0m\ttab \\x9b31m\r\n"
    os.close(main)
    piped = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, env=neighbours.environment(), check=True)
    assert piped.stdout.startswith(b"\x1b[31mred")


def test_escape_leaves_text_alone():
    assert escape("a\tb\nc\r✓") == "a\tb\nc\r✓"
    assert escape("\x00\x08\x7f") == "\\x00\\x08\\x7f"
