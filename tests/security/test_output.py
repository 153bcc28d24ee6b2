"""The host keeps no more of the guest's output than the limit, and a terminal shows text only."""

import os
import pty
import subprocess

import pytest

LIMIT = ("--output", "100K")


@pytest.mark.parametrize("stream", ["1", "2"], ids=["stdout", "stderr"])
def test_flood_is_cut_at_the_limit(inside, stream):
    ended = inside(f"import os\nwhile True: os.write({stream}, b'x' * 65536)", *LIMIT)
    assert (ended.kind, ended.limit) == ("output_limit", "output") and ended.receipt["truncated"] is True
    assert len(ended.stdout) + len(ended.stderr) == 100 * 1024
    assert ended.outcome["message"] == "too much output: limit 100 KiB (--output)"


def test_both_streams_count_together(inside):
    code = "import os\nfor fd in (1, 2): os.write(fd, b'x' * {})"
    assert inside(code.format(51000), *LIMIT).kind == "exited"
    over = inside(code.format(52000), *LIMIT)
    assert over.kind == "output_limit" and len(over.stdout) + len(over.stderr) == 100 * 1024


def test_byte_too_much_counts_when_the_guest_ends_with_it(inside):
    """On one processor the output and the end often arrive together."""
    one = {min(os.sched_getaffinity(0))}
    for _ in range(40):
        ended = inside(
            ["sh", "-c", "printf 0123456789abc"], "--output", "10", preexec_fn=lambda: os.sched_setaffinity(0, one)
        )
        assert (ended.kind, ended.stdout, ended.status) == ("output_limit", "0123456789", 153)


TAKES_BACK = """
import os
os.chmod("/proc/self/fd/1", 0o666)
back = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
while True:
    os.write(1, b"k")
    try: os.read(back, 1)
    except BlockingIOError: pass
"""


def test_guest_cannot_take_back_what_it_wrote(inside):
    """It would wake us up without end, and pay nothing for it."""
    code = "import os\nopen('/proc/self/fd/1', 'w').write('by name\\n')\nfor fd in (1, 2):\n"
    code += "    try: os.open(f'/proc/self/fd/{fd}', os.O_RDONLY)\n    except OSError as error: print(error.errno)"
    assert inside(code).stdout == "by name\n13\n13\n"


@pytest.mark.rootless_only
def test_guest_that_owns_its_pipes_pays_for_what_it_takes_back(inside, tmp_path):
    """Where it has the caller's uid it can."""
    ended = inside(TAKES_BACK, "--mnt", tmp_path, "--output", "1M")
    assert ended.kind == "output_limit" and ended.receipt["usage"]["stdout_bytes"] < 1 << 20


def test_output_at_the_limit_is_whole(inside):
    ended = inside("import os; os.write(1, b'x' * 102400)", *LIMIT)
    assert (ended.kind, len(ended.stdout), ended.receipt["truncated"]) == ("exited", 102400, False)


def test_flood_of_a_dead_guests_child_is_cut_too(inside):
    code = "import os\nif os.fork() == 0:\n    while True: os.write(1, b'x' * 4096)\nimport time; time.sleep(5)"
    ended = inside(code, *LIMIT)
    assert ended.kind == "output_limit" and len(ended.stdout) == 100 * 1024


def test_report_is_json_whatever_the_guest_writes(inside):
    code = "import os; os.write(1, bytes(range(256)) + b'\\xed\\xa0\\x80\"}]'); os.write(2, b'\\xff\\xfe\\x00')"
    ended = inside(code)
    assert "\ufffd" in ended.stdout and "\ufffd" in ended.stderr
    assert ended.receipt["usage"]["stdout_bytes"] == 262 and ended.receipt["usage"]["stderr_bytes"] == 3


def test_guest_cannot_forge_the_report(inside):
    forged = '{"outcome": {"kind": "exited", "exit_code": 0}, "receipt": {}}'
    code = (
        f"import os\nos.write(1, {forged.encode()!r})\n"
        "for fd in range(3, 10):\n"
        "    try: os.write(fd, b'\\x02' + bytes(11))  # a status frame: ended, with 0\n"
        "    except OSError: pass\n"
        "os._exit(9)\n"
    )
    ended = inside(code)
    assert (ended.status, ended.outcome["exit_code"], ended.stdout) == (9, 9, forged)


def on_a_terminal(command):
    """Runs `command` with stdout on a terminal; what the terminal got."""
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
        os.close(slave)
        shown = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        process.wait(20)
        return shown
    finally:
        os.close(master)


ESCAPES = {
    "window title": b"\x1b]0;owned\x07",
    "clipboard": b"\x1b]52;c;b3duZWQ=\x07",
    "cursor report": b"\x1b[6n",
    "device attributes": b"\x1b[c",
    "8-bit CSI": b"\x9b6n",
    "encoded C1": "\u009b6n".encode(),
    "bidi override": "\u202eevil".encode(),
    "screen switch": b"\x1b[?1049h",
    "DCS": b'\x1bP$q"p\x1b\\',
    "bell": b"\x07",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_terminal_is_not_driven_by(sandbox_bin, name):
    code = f"import os; os.write(1, b'before' + {ESCAPES[name]!r} + b'after\\n')"
    shown = on_a_terminal([sandbox_bin, "run", "-q", "--", "python3", "-c", code])
    assert ESCAPES[name] not in shown and shown.startswith(b"before") and b"after" in shown
    # What does not go to a terminal goes as it is.
    assert (
        ESCAPES[name]
        in subprocess.run([sandbox_bin, "run", "-q", "--", "python3", "-c", code], capture_output=True).stdout
    )


def test_colours_pass_and_are_reset(sandbox_bin):
    shown = on_a_terminal([sandbox_bin, "run", "-q", "--", "printf", "\\033[31mred"])
    assert shown.startswith(b"\x1b[31mred") and shown.rstrip().endswith((b"\x1b[0m", b"\x1b[m"))
