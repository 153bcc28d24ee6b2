"""`shell`: Python's prompt in a box, on a terminal of the box's own."""

import contextlib
import os
import signal
import subprocess
import sys
import termios
import time

import pytest
from terminals import PATIENCE, Terminal

PROMPT = b">>> "


@pytest.fixture
def shell(sandbox_bin):
    """shell(*words) is a prompt that waits."""
    opened = []

    def start(*words, **settings):
        opened.append(Terminal([sandbox_bin, "shell", *map(str, words)], **settings))
        shown = opened[-1].read_until(PROMPT)
        assert PROMPT in shown, shown
        return opened[-1]

    yield start
    for item in opened:
        item.close()


def ask(run, line, answer):
    """Types a line and waits for an answer that the line itself does not hold."""
    os.write(run.master, line.encode() + b"\n")
    shown = run.read_until(answer.encode())
    assert answer.encode() in shown, shown
    return shown


def press_end(run):
    """As a person does who sees that nothing happens: a key that comes before the prompt may be lost."""
    until = time.monotonic() + PATIENCE
    while run.process.poll() is None and time.monotonic() < until:
        os.write(run.master, b"\x04")
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(2)


def test_a_prompt_in_a_box(shell):
    run = shell()
    ask(run, "print('six', 6 * 7)", "six 42")
    ask(run, "import os; print('at', os.getcwd(), os.getuid(), os.ttyname(0))", "at /mnt 1000 /dev/pts/0")
    ask(run, "print(os.path.exists('/root') or os.path.exists('/home/' + 'pctx-test'), 'host')", "False host")


def test_the_end_key_ends_it(shell):
    run = shell()
    press_end(run)
    assert run.finish()[0] == 0
    assert run.restored()


def test_an_exit_status_is_passed_on(shell):
    run = shell()
    os.write(run.master, b"exit(7)\n")
    assert run.finish()[0] == 7


def test_the_interrupt_key_interrupts_the_line_and_not_the_session(shell):
    run = shell()
    # In small steps: Python does not notice a signal that comes right before it begins to sleep.
    os.write(run.master, b"import time; print('now' + 'waiting'); exec('while True: time.sleep(0.1)')\n")
    assert b"nowwaiting" in run.read_until(b"nowwaiting")
    os.write(run.master, b"\x03")
    assert b"KeyboardInterrupt" in run.read_until(b"KeyboardInterrupt")
    ask(run, "print('still', 1 + 1)", "still 2")


def test_what_is_left_in_mnt_is_gone_with_the_box(shell):
    run = shell()
    ask(run, "print(open('/mnt/left', 'w').write('12345'), 'written')", "5 written")
    press_end(run)
    assert run.finish()[0] == 0
    ask(shell(), "import os; print(os.listdir('/mnt'), 'there')", "[] there")


def test_the_window_has_its_size_and_follows(shell):
    run = shell(rows=33, columns=99)
    # One line for both: before each prompt readline reads the size and sets what it read, over one that came meanwhile.
    code = (
        "import os, time; print('size', *os.get_terminal_size())\n"
        "while tuple(os.get_terminal_size()) != (70, 20): time.sleep(0.05)\n"
        "print('now', *os.get_terminal_size())"
    )
    ask(run, f"exec({code!r})", "size 99 33")
    run.resize(20, 70)
    shown = run.read_until(b"now 70 20")
    assert b"now 70 20" in shown, shown


def test_a_line_is_edited(shell):
    ask(shell(), "print('hellx\x7fo', 1 + 1)", "hello 2")


def test_a_session_that_is_ended_for_its_file_locks_says_so(shell):
    run = shell()
    ask(
        run,
        "import fcntl, tempfile, time; kept = [tempfile.TemporaryFile() for _ in range(50)]; print('op' + 'en')",
        "open",
    )
    ask(
        run,
        "for n in range(15000): fcntl.lockf(kept[n % 50], fcntl.LOCK_EX, 1, 30000 - n)\n\ntime.sleep(60)",
        "more than 10000 file locks",
    )
    assert run.finish()[0] == 137


def test_a_virtualenv_is_the_prompts_own(shell, virtualenv):
    run = shell("--venv", virtualenv)
    ask(run, "import sys; print('in', sys.prefix != sys.base_prefix)", "in True")


def children(pid):
    """The processes below `pid`, seen from outside."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            yield int(entry)


@pytest.mark.root_only
def test_the_terminal_is_as_before_when_the_box_is_killed(shell):
    run = shell()
    (guest,) = [below for own in children(run.process.pid) for below in children(own)]
    os.kill(guest, signal.SIGKILL)
    assert run.process.wait(PATIENCE) != 0
    assert run.restored()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_as_before_when_we_are_killed(shell, how):
    run = shell()
    assert run.before != termios.tcgetattr(run.slave)  # the control: it is raw meanwhile
    os.kill(run.process.pid, how)
    run.process.wait(PATIENCE)
    assert run.restored()


def test_the_command_opens_a_prompt_too(sandbox_bin, tree, virtualenv, skip_unless):
    """`python -m pctx_sandbox.sandbubble --interactive`"""
    skip_unless(not os.path.exists("/sys/module/apparmor"), "a kernel without AppArmor, on which no profile is named")
    paths = [str(tree / "python"), *(path for path in sys.path if path)]
    variables = {"PCTX_SANDBOX_BINARY": sandbox_bin, "PYTHONPATH": ":".join(paths), "CODEEXEC_SANDBOX_VENV": virtualenv}
    words = [*(f"{name}={value}" for name, value in variables.items()), sys.executable]
    run = Terminal(["env", *words, "-m", "pctx_sandbox.sandbubble", "--interactive", "--disable-network"])
    try:
        assert PROMPT in run.read_until(PROMPT)
        ask(run, "import sys; print('in', sys.prefix != sys.base_prefix)", "in True")
        press_end(run)
        assert run.finish()[0] == 0
    finally:
        run.close()


def test_it_needs_a_terminal(pctx):
    done = pctx("shell", stdin=subprocess.DEVNULL)
    assert done.returncode == 125
    assert "shell needs a terminal" in done.stderr and "pctx-sandbox run -" in done.stderr
