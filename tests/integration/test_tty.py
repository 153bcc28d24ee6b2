"""`--tty`: a terminal of the box's own between the caller's and the guest."""

import os
import pty
import subprocess
import sys
import termios
import time

import pytest
from terminals import Terminal


@pytest.fixture
def terminal(sandbox_bin):
    opened = []

    def run(*words, **settings):
        opened.append(Terminal([sandbox_bin, "run", "-q", "--tty", *words], **settings))
        return opened[-1]

    yield run
    for item in opened:
        item.close()


def test_guest_has_a_terminal_of_the_boxs_own(terminal):
    code = "import os, sys; print([os.isatty(fd) for fd in (0, 1, 2)], os.ttyname(0)); print(open('/dev/tty').isatty())"
    run = terminal("--", "python3", "-c", code)
    status, shown = run.finish()
    assert status == 0 and shown == b"[True, True, True] /dev/pts/0\r\nTrue\r\n"
    assert os.ttyname(run.slave).encode() not in shown or os.ttyname(run.slave) == "/dev/pts/0"


SHELL = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)
job = subprocess.Popen(sys.argv[1:], preexec_fn=os.setpgrp)
print("started", flush=True)
time.sleep(1)
print("waits" if job.poll() is None else "has ended", flush=True)
os.tcsetpgrp(0, job.pid)  # and no SIGCONT: bash sends none to a job that was not stopped
print("status", job.wait(), flush=True)
"""


def test_a_job_in_the_background_leaves_what_is_typed_until_it_is_in_front(sandbox_bin):
    """Without --tty, as a shell does it. Bare, the job would be stopped meanwhile."""
    run = Terminal(
        [sys.executable, "-c", SHELL, sandbox_bin, "run", "-q", "--", "sh", "-c", "read line; echo got $line"]
    )
    try:
        run.read_until(b"started")
        os.write(run.master, b"typed early\n")
        shown = run.read_until(b"status 0")
        assert b"waits" in shown and b"got typed early" in shown and b"status 0" in shown, shown
    finally:
        run.close()


IN_FRONT = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def test_a_key_ends_the_loop_around_a_run(sandbox_bin):
    """A shell goes on where a command says 130 by itself; the control is a bare sleep. Keys are for a guest in the
    first place, which one that ignores them has to be killed for."""
    deaf = f"{sandbox_bin} run -q -- sh -c 'trap \"\" INT; sleep 20'"
    for words, keys in (("sleep 20", 1), (f"{sandbox_bin} run -q -- sleep 20", 1), (deaf, 2)):
        loop = ["env", "--default-signal=INT", "bash", "-c", f"echo up; for i in 1 2; do {words}; done"]
        run = Terminal([sys.executable, "-c", IN_FRONT, *loop])
        try:
            run.read_until(b"up")
            for _ in range(keys):
                time.sleep(0.5)
                os.write(run.master, b"\x03")
            assert run.process.wait(15) != 0
        finally:
            run.close()


def test_window_size_is_the_callers(terminal):
    run = terminal("--", "sh", "-c", "sleep 0.5; stty size")
    assert run.finish() == (0, b"33 99\r\n")


def test_window_size_is_there_from_the_start(terminal):
    assert {terminal("--", "stty", "size").finish() for _ in range(20)} == {(0, b"33 99\r\n")}


def test_input_and_line_editing_work(terminal):
    run = terminal("--", "sh", "-c", "echo ready; read line; echo got $line")
    run.read_until(b"ready")
    os.write(run.master, b"hellx\x7fo\n")
    shown = run.read_until(b"got hello")
    assert b"got hello" in shown


def test_interrupt_key_reaches_the_guest(terminal):
    run = terminal("--", "sh", "-c", "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.1; done")
    run.read_until(b"ready")
    os.write(run.master, b"\x03")
    assert b"caught" in run.read_until(b"caught")
    assert run.process.wait(20) == 6


@pytest.mark.parametrize(
    "command", [["true"], ["stty", "raw", "-echo"], ["sh", "-c", "kill -9 $$"], ["/nonexistent"], ["sleep", "20"]],
    ids=["end", "raw mode", "signal", "missing command", "time limit"],
)  # fmt: skip
def test_terminal_is_as_before_afterwards(terminal, command):
    run = terminal("--timeout", "700ms", "--", *command)
    run.process.wait(20)
    assert termios.tcgetattr(run.slave) == run.before


def test_tty_needs_a_terminal(refused):
    refused("-q", "--tty", "--", "echo", "ran", says="terminal", stdin=subprocess.DEVNULL)


def test_tty_and_json_exclude_each_other(pctx):
    done = pctx("run", "--tty", "--json", "--", "echo", "ran")
    assert done.returncode == 125 and "ran" not in done.stdout


def test_without_tty_the_guest_has_no_terminal(sandbox_bin):
    master, slave = pty.openpty()
    code = (
        "import os; print([os.isatty(fd) for fd in (0, 1, 2)])\n"
        "try: open('/dev/tty')\n"
        "except OSError as error: print(error.errno)\n"
    )
    try:
        done = subprocess.run(
            [sandbox_bin, "run", "-q", "--", "python3", "-c", code],
            stdin=slave, stdout=subprocess.PIPE, text=True, timeout=20, start_new_session=True,
        )  # fmt: skip
        assert done.stdout == "[False, False, False]\n6\n"
    finally:
        os.close(master)
        os.close(slave)
