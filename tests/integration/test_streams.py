"""stdin, stdout and stderr pass through as they are; signals reach the guest."""

import hashlib
import os
import signal
import subprocess
import time

import pytest
from waiting import in_time


def test_binary_passes_both_ways(pctx):
    data = bytes(range(256)) * 64
    done = pctx("run", "-q", "--", "cat", input=data, text=False)
    assert done.stdout == data


def test_ten_megabytes_pass(pctx):
    data = os.urandom(1 << 20) * 10
    done = pctx("run", "-q", "--", "sha256sum", input=data, text=False)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    done = pctx("run", "-q", "--", "cat", input=data, text=False)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_streams_stay_apart(pctx):
    done = pctx("run", "-q", "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


MANY = "for n in $(seq 100); do echo out $n; echo err $n >&2; done"
IN_ORDER = "".join(f"out {n}\nerr {n}\n" for n in range(1, 101))


@pytest.mark.parametrize("words", [[], ["--report", "r.json"]], ids=" ".join)
def test_streams_that_go_to_one_place_keep_their_order(pctx, tmp_path, words):
    with open(tmp_path / "log", "w") as log:
        done = pctx("run", "-q", *words, "--", "sh", "-c", MANY, stdout=log, stderr=log, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "log").read_text() == IN_ORDER
    done = pctx(
        "run", "-q", *words, "--", "sh", "-c", MANY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path
    )
    assert done.stdout == IN_ORDER
    apart = pctx("run", "-q", "--json", "--", "sh", "-c", MANY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).json()
    assert apart["stdout"] == "".join(f"out {n}\n" for n in range(1, 101))


def test_streams_that_are_one_file_in_two_directions_are_two(sandbox_bin, tmp_path):
    (tmp_path / "log").touch()
    line = f"{sandbox_bin} run -q -- sh -c 'echo err >&2' 1<log 2>>log"
    assert subprocess.run(["sh", "-c", line], cwd=tmp_path, timeout=20).returncode == 0
    assert (tmp_path / "log").read_text() == "err\n"


@pytest.mark.parametrize("words", [[], ["--uid", "0"]], ids=" ".join)
@pytest.mark.parametrize("names", ["/dev/std{}", "/proc/self/fd/{}", "/dev/fd/{}"])
def test_streams_can_be_opened_by_name(pctx, words, names):
    given, out, err = (names.format(word) for word in (("in", "out", "err") if names.endswith("std{}") else (0, 1, 2)))
    line = f"cat {given}; echo out >{out}; echo err | tee {err}; echo more >>{out}"
    done = pctx("run", "-q", *words, "--", "sh", "-c", line, input="in\n")
    assert (done.stdout, done.stderr, done.returncode) == ("in\nout\nerr\nmore\n", "err\n", 0)


def test_input_that_cannot_be_read_is_no_end(pctx, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    writable = os.open("/dev/null", os.O_WRONLY)  # as nohup leaves it: nothing that could be missed
    try:
        done = pctx("run", "-q", "--", "cat", stdin=folder)
        assert done.returncode == 125
        assert done.stderr.splitlines()[0] == "pctx-sandbox: standard input cannot be read: Is a directory"
        assert pctx("run", "-q", "--", "echo", "ran", stdin=writable).stdout == "ran\n"
    finally:
        os.close(folder)
        os.close(writable)


def test_guest_sees_the_end_of_its_input(pctx):
    assert pctx("run", "-q", "--", "wc", "-c", input="").stdout == "0\n"
    assert pctx("run", "-q", "--", "cat", stdin=subprocess.DEVNULL).stdout == ""


def test_a_loop_over_a_file_has_all_its_lines(sandbox_bin, tmp_path):
    (tmp_path / "list").write_text("one\ntwo\nthree\n")
    for command in ("echo", "true", "/nonexistent"):
        line = f'while read -r l; do {sandbox_bin} run -q -- {command} "$l"; echo "$l"; done < {tmp_path}/list'
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert done.stdout == ("one\none\ntwo\ntwo\nthree\nthree\n" if command == "echo" else "one\ntwo\nthree\n")


@pytest.mark.parametrize("size", [100, 65536, 1 << 20])
def test_what_a_guest_leaves_of_a_file_is_left_to_the_next_reader(pctx, tmp_path, size):
    file = tmp_path / "input"
    file.write_bytes(os.urandom(size))
    for line, taken in (("dd bs=1 count=7 status=none", 7), ("exec <&-; sleep 0.2", 0), ("cat", size - 5)):
        with open(file, "rb", buffering=0) as source:
            source.seek(5)
            done = pctx("run", "-q", "--", "sh", "-c", line, stdin=source, text=False)
            assert done.stdout == file.read_bytes()[5 : 5 + taken] and source.tell() == 5 + taken, line


def test_input_that_never_ends_does_not_keep_the_run(sandbox_bin):
    read_end, write_end = os.pipe()
    try:
        done = subprocess.run([sandbox_bin, "run", "-q", "--", "true"], stdin=read_end, timeout=20)
        assert done.returncode == 0
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_streams(sandbox_bin, closed, tmp_path):
    line = f"{sandbox_bin} run -q --mnt {tmp_path} -- sh -c 'cat; echo out; echo err >&2; echo ran > /mnt/ran' {closed}"
    done = subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    lost = ">&-" in closed.replace("2>&-", "")
    assert (tmp_path / "ran").read_text() == "ran\n" and done.returncode == (125 if lost else 0)
    assert done.stdout == ("" if lost else "out\n")
    assert done.stderr.startswith("" if "2>&-" in closed else "err\n")
    assert lost == ("the guest's output could not be written" in done.stderr) or "2>&-" in closed


@pytest.mark.parametrize("words", [["run", "--"], ["run", "--json", "--"], ["run", "--print-policy"], ["--version"]])
def test_what_goes_to_a_closed_output_is_no_success(sandbox_bin, words):
    command = [sandbox_bin, *words, *(["echo", "hi"] if words[-1] == "--" else [])]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=20).returncode == 0  # the control
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=20)
    assert done.returncode == 125 and "Bad file descriptor" in done.stderr, done.stderr
    assert subprocess.run(["sh", "-c", '"$@" >&-', "sh", sandbox_bin, "run", "true"], timeout=20).returncode == 0


def test_an_output_that_can_only_be_read_keeps_nobody_waiting(sandbox_bin):
    """The read end of a pipe never becomes writable, nor fails before somebody writes."""
    read_end, write_end = os.pipe()
    try:
        command = [sandbox_bin, "run", "-q", "--", "echo", "hi"]
        done = subprocess.run(command, stdout=read_end, stderr=subprocess.PIPE, text=True, timeout=20)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert done.returncode == 125 and "the guest's output could not be written" in done.stderr


@pytest.mark.parametrize("words", [["explain"], ["--version"], ["--help-all"], ["doctor"], ["run", "--json"]])
def test_what_nobody_could_read_is_no_success(sandbox_bin, words):
    command = [sandbox_bin, *words, *(["--", "true"] if words[0] in ("run", "explain") else [])]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode == 0  # the control
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 125 and "No space left on device" in done.stderr, done.stderr


def test_a_reader_that_has_gone_wanted_no_more(sandbox_bin):
    line = f"trap '' PIPE; {sandbox_bin} --help-all | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_limit_on_files_is_told_and_not_died_of(sandbox_bin):
    line = f"ulimit -f 10; {sandbox_bin} run -q -- true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=20)
    assert done.returncode == 125 and "ulimit -f" in done.stderr, done
    done = subprocess.run(["bash", "-c", line.replace("10", "1000000")], timeout=20)
    assert done.returncode == 0  # the control


def test_pipe_into_head(sandbox_bin):
    line = f"{sandbox_bin} run -q -- yes | head -n 3"
    done = subprocess.run(["bash", "-c", line + "; echo ${PIPESTATUS[0]}"], capture_output=True, text=True, timeout=20)
    assert done.stdout.startswith("y\ny\ny\n")
    assert done.stdout.split()[-1] in ("141", "1")


def test_guest_starts_with_default_signals(pctx):
    done = pctx("run", "-q", "--", "grep", "SigIgn", "/proc/self/status")
    assert done.stdout.split()[1] == "0" * 16


def test_pipes_inside_end_quietly(pctx):
    done = pctx("run", "-q", "--", "sh", "-c", "yes | head -n 1")
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_signals_ignored_by_the_caller_are_not_ignored_by_the_guest(pctx):
    def ignore():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)

    done = pctx("run", "-q", "--", "grep", "SigIgn", "/proc/self/status", preexec_fn=ignore)
    held = int(done.stdout.split()[1], 16)
    assert held == 0


def start(sandbox_bin, code, *options, prefix=()):
    process = subprocess.Popen(
        [*prefix, sandbox_bin, "run", "-q", *options, "--", "python3", "-u", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "up\n"
    return process


# Not one long sleep: a signal that comes just before it, Python sees after it.
NAPS = "for _ in range(200): time.sleep(0.1)"

FORWARDED = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPROF", "SIGVTALRM"]
FORWARDED += ["SIGIO", "SIGPWR", "SIGURG", "SIGCONT", "SIGRTMIN", "SIGRTMAX"]
CATCH = (
    "import signal, sys, time\n"
    "def caught(number, frame): print('got', number); sys.exit(5)\n"
    f"for name in {FORWARDED}: signal.signal(getattr(signal, name), caught)\n"
    "print('up')\n" + NAPS
)


@pytest.mark.parametrize("name", FORWARDED)
def test_signal_reaches_the_guest(sandbox_bin, name):
    process = start(sandbox_bin, CATCH)
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, f"got {int(getattr(signal, name))}\n")


def test_under_nohup_the_guest_outlives_a_hangup(sandbox_bin):
    """test_signal_reaches_the_guest is the control: without it the guest hears of the hangup."""
    process = start(sandbox_bin, CATCH, prefix=["nohup"])
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, f"got {int(signal.SIGUSR1)}\n")


@pytest.mark.parametrize("name", ["INT", "QUIT", "TERM"])
def test_what_the_caller_ignores_does_not_reach_the_guest(sandbox_bin, name):
    """A job in the background of a script ignores the keys of a terminal that others have."""
    process = start(sandbox_bin, CATCH, prefix=["env", f"--ignore-signal={name}"])
    process.send_signal(getattr(signal, f"SIG{name}"))
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, f"got {int(signal.SIGUSR1)}\n")


def test_guest_that_does_not_handle_a_signal_ends_by_it(sandbox_bin):
    process = start(sandbox_bin, "import time; print('up'); time.sleep(20)")
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143


@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT"])
def test_a_key_of_the_terminal_ends_a_script_and_the_command_it_waits_for(sandbox_bin, name):
    """As without a box, where the terminal signals the whole group: the first one is enough."""
    number = getattr(signal, name)
    script = ["sh", "-c", "echo up; sleep 60; echo b"]
    for command, status in ([sandbox_bin, "run", "-q", "--", *script], 128 + number), (script, -number):
        # Whoever starts these tests in the background ignores both keys, and so would the control.
        heard = ["env", f"--default-signal={name[3:]}", *command]
        process = subprocess.Popen(heard, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout.readline() == "up\n"
        time.sleep(0.2)  # the shell has started its command
        if command is script:
            os.killpg(process.pid, number)  # the control
        else:
            process.send_signal(number)
        out, _ = process.communicate(timeout=20)
        assert (process.returncode, out) == (status, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_other_signals_are_the_guests_alone(sandbox_bin, number):
    code = "trap 'wait; exit 4' TERM USR1; sh -c 'echo up; sleep 1; echo alive' & wait"
    process = subprocess.Popen([sandbox_bin, "run", "-q", "--", "sh", "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (4, "alive\n")


def test_output_that_cannot_be_written_has_a_next_step(sandbox_bin):
    with open("/dev/full", "wb") as full:
        command = [sandbox_bin, "run", "-q", "--", "echo", "hi"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1] == "hint: make room where it goes, or let it go elsewhere"


def limited_files(sandbox_bin, number):
    line = f'ulimit -n {number} && exec "$0" run -q -- echo ran'
    return subprocess.run(["sh", "-c", line, sandbox_bin], capture_output=True, text=True, timeout=30)


def test_few_open_files_are_enough_or_the_limit_is_named(sandbox_bin):
    # Not at once: others of this user may have more descriptors on their way than that, which the kernel counts for us.
    assert in_time(lambda: limited_files(sandbox_bin, 64).stdout == "ran\n")
    done = limited_files(sandbox_bin, 12)
    assert done.returncode == 125 and "hint: " in done.stderr and "ulimit -n" in done.stderr, done.stderr


def test_second_interrupt_kills(sandbox_bin):
    code = "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('no'))\nprint('up')\n"
    process = start(sandbox_bin, code + NAPS)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "no\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 137


def test_output_is_passed_on_while_the_guest_runs(sandbox_bin):
    process = start(sandbox_bin, "print('up'); import time; time.sleep(20)")  # readline() returned: it came early
    process.kill()
    process.communicate()
