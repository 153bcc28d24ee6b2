"""A line that cannot be read: one sentence that names the word, the next step, exit status 125, and nothing has run."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

MISTAKES = [
    # the line, what the sentence says, what the hint says
    ([], "no verb is given", "pctx-sandbox help"),
    (["--", "true"], "no verb is given", "pctx-sandbox run -- CMD"),
    (["runn", "--", "true"], "there is no verb 'runn'", "did you mean 'run'?"),
    (["frobnicate"], "there is no verb 'frobnicate'", "the verbs are run, explain, "),
    (["help", "frobnicate"], "there is no verb 'frobnicate'", "the verbs are run, explain, "),
    (["help", "env", "bild"], "there is no verb 'bild' of 'env'", "did you mean 'build'?"),
    (["help", "env", "build", "x"], "there is no verb 'x' of 'env build'", "pctx-sandbox env build --help"),
    (["help", "doctor", "x"], "there is no verb 'x' of 'doctor'", "pctx-sandbox doctor --help"),
    (["env"], "'env' needs a verb of its own: build, ", "pctx-sandbox env --help"),
    (["env", "bild"], "there is no verb 'bild' of 'env'", "did you mean 'build'?"),
    (["--memory", "1G", "run", "--", "true"], "no option '--memory' before the verb", "pctx-sandbox run --memory"),
    (["--bogus"], "no option '--bogus' before the verb", "pctx-sandbox --help"),
    (["run", "--workdir=", "--", "true"], "--workdir needs a GUEST, such as /tmp", "pctx-sandbox run --help"),
    (["run", "--files", "--", "true"], "--files needs an N, such as 64", "pctx-sandbox run --help"),
    (["run", "--memry", "1G", "--", "true"], "'run' has no option '--memry'", "did you mean '--memory'?"),
    (["run", "--memry=1G", "--", "true"], "'run' has no option '--memry'", "did you mean '--memory'?"),
    (["run", "-x", "--", "true"], "'run' has no option '-x'", "pctx-sandbox run --help"),
    (["explain", "--jsn", "--", "true"], "'explain' has no option '--jsn'", "pctx-sandbox explain --help"),
    (["doctor", "extra"], "'doctor' takes no word 'extra'", "pctx-sandbox doctor --help"),
    (["run", "--mnt", "a", "--mnt", "b", "--", "true"], "--mnt was given twice", "leave one of them out"),
    (["run", "--memory", "--", "true"], "--memory needs a SIZE, such as 512M", "pctx-sandbox run --help"),
    (["run", "--env", "--", "true"], "--env needs a NAME=VALUE, such as LANG=C.UTF-8", "pctx-sandbox run --help"),
    (["run", "--env", "A=1", "--env"], "--env needs a NAME=VALUE", "pctx-sandbox run --help"),
    (["run", "--quiet=maybe", "--", "true"], "--quiet takes no value", "pctx-sandbox run --help"),
    (["shell", "--quiet=maybe"], "--quiet takes no value", "pctx-sandbox shell --help"),
    (["env", "list", "--json=maybe"], "--json takes no value", "pctx-sandbox env list --help"),
    (["completions"], "'completions' needs a SHELL", "pctx-sandbox completions --help"),
    (["completions", "tcsh"], "there is no SHELL 'tcsh'", "bash,fish,zsh"),
    (["env", "show"], "'env show' needs a KEY", "pctx-sandbox env show --help"),
    (["serve", "--idle", "soon"], "--idle: 'soon' is not a number", "pctx-sandbox serve --help"),
    (["serve", "--max-workers", "0"], "--max-workers: '0' is not a whole number above 0", "pctx-sandbox serve --help"),
    (["serve", "--memory-budget", "x"], "--memory-budget: 'x' is not a size", "for example 512M"),
]

# In a folder with the folders `m` and `m.py`, the files `f` and `x.py`, and a link.
PATHS = [
    (["--ro", "m", "--", "true"], "--ro: 'm' is a relative path and names no place in the box", "m:/data"),
    (["--ro", "/", "--", "true"], "--ro: / is never lent as a whole", "lend the files or folders"),
    (["--ro", "/:/host", "--", "true"], "--ro: / is never lent as a whole", "lend the files or folders"),
    (["--ro", "/proc", "--", "true"], "--ro: /proc is never lent as a whole", "lend the files or folders"),
    (["--ro", "m:data", "--", "true"], "--ro: 'data' is not an absolute path in the box", "begin with /"),
    (["--ro", "m:/data/", "--", "true"], "'/data/' has an empty, '.' or '..' part", "without a slash at its end"),
    (["--ro", "m:/etc/passwd", "--", "true"], "/etc/passwd cannot be a folder: /etc/passwd is a file", "/data"),
    (["--ro", "m:/etc/passwd/x", "--", "true"], "/etc/passwd/x cannot be a folder: /etc/passwd is a file", "/data"),
    (["--ro", "f:/home/sandbox", "--", "true"], "cannot be a file: /home/sandbox is a folder in the box", "/data"),
    (["--ro", "m:/usr/nosuch", "--", "true"], "cannot make /usr/nosuch in the box", "lent read-only"),
    (["--mnt", "", "--", "true"], "--mnt: the path is empty", "name a file or folder of this host"),
    (["--mnt", "nosuch", "--", "true"], "--mnt: nosuch: No such file", "make it first"),
    (["--mnt", "f", "--", "true"], "--mnt: f is not a folder", "--ro or --rw"),
    (["--ro", "nosuch:/x", "--", "true"], "--ro: nosuch: No such file", "check the spelling"),
    (["--report", "nosuch/x", "--", "true"], "--report: cannot open nosuch/x: No such file", "make it first"),
    (["--report", "", "--", "true"], "--report: the path is empty", "name a file"),
    (["--report", "-", "--", "true"], "--report: - is no file", "with --json"),
    (["--workdir", "", "--", "true"], "--workdir: the path is empty", "leave the option out"),
    (["m.py"], "the script m.py is no ordinary file", "run - < SCRIPT"),
    (["--seccomp", "nosuch", "--", "true"], "--seccomp: cannot open nosuch: No such file", "check the spelling"),
    (["--policy", "nosuch", "--", "true"], "--policy: cannot open nosuch: No such file", "check the spelling"),
    (["--seccomp", "f", "--", "true"], "--seccomp f: nothing is in it", "name another file"),
    (["--policy", "", "--", "true"], "--policy: the path is empty", "leave the option out"),
    (["--seccomp", "", "--", "true"], "--seccomp: the path is empty", "leave the option out"),
    (["--venv", "", "x.py"], "--venv: the path is empty", "leave the option out"),
    (["--python", "", "x.py"], "--python: the path is empty", "leave the option out"),
    (["--lend", "", "--", "true"], "--lend: the path is empty", "leave the option out"),
    (["--report", "link", "--", "true"], "--report: link is a link, and reports are not", "name the file itself"),
    (["--python", "nosuch", "x.py"], "--python: nosuch is not on the PATH", "the path of a Python interpreter"),
    (["nosuch.py"], "the script nosuch.py cannot be read: No such file", "pctx-sandbox run -- nosuch.py"),
]

VALUES = [
    (["--memory", "0"], "--memory: 0 B is not between 4 MiB and 1024 TiB", "leave it out for 1 GiB"),
    (["--memory", "lots"], "--memory: 'lots' is not a size", "for example 512M"),
    (["--memory", "99999999T"], "--memory: '99999999T' is too large", "1024T"),
    (["--cpus", "0"], "--cpus: '0' is not a number of CPUs", "for example 0.5"),
    (["--cpus", "0.001"], "--cpus: 0.001 is not between 0.01 and 1000", "leave it out for 1"),
    (["--cpus", "0.00001"], "--cpus: '0.00001' is too little of a CPU", "0.01 is the least"),
    (["--cpus", "1001"], "--cpus: '1001' is more CPUs than any machine has", "1000 is the most"),
    (["--pids", "0"], "--pids: 0 is not between 1 and 4000000", "leave it out for 64"),
    (["--pids", "64.5"], "--pids: '64.5' is not a whole number", "digits only"),
    (["--pids", "9" * 30], f"--pids: '{'9' * 30}' is too large", "a smaller number"),
    (["--timeout", "soon"], "--timeout: 'soon' is not a duration", "for example 30s"),
    (["--timeout", "99999999h"], "--timeout: '99999999h' is too long", "277777h"),
    (["--cpu-time", "0"], "--cpu-time: the time must be above zero", "leave it out for no limit"),
    (["--disk", "1"], "--disk: 1 B is not between 64 KiB and 1024 TiB", "leave it out for 256 MiB"),
    (["--inodes", "5"], "--inodes: 5 is not between 16 and", "leave it out for 20000"),
    (["--output", "2T"], "--output: 2 TiB is not between 0 B and 1 TiB", "leave it out for 16 MiB"),
    (["--files", "3"], "--files: 3 is not between 8 and 1000000", "leave it out for 512"),
    (["--io-read", "1"], "--io-read: the rate is below 4096 bytes per second", "leave it out for no limit"),
    (["--io-write", "1"], "--io-write: the rate is below 4096 bytes per second", "leave it out for no limit"),
    (["--uid", "abc"], "--uid: 'abc' is not a whole number", "digits only"),
    (["--uid", "99999999999"], "--uid: 99999999999 is not below 65534", "0 and 1000"),
    (["--hostname", "bad name"], "--hostname: 'bad name' is not a host name", "letters, digits, dashes and dots"),
    (["--env", "LANG"], "--env: 'LANG' is not NAME=VALUE", "--env LANG=C.UTF-8"),
    (
        ["--env", "A=" + "x" * 70_000, "--env", "B=" + "x" * 70_000],
        "--env: the variables take more than 128 KiB",
        "as a file",
    ),
    (["--ro", "/usr:/x", "--ro", "/usr:/x"], "--ro: /x is given twice", "another place"),
    (["--ro", "/usr:/data:ro"], "--ro: '/data:ro' is no place in the box", "write /usr:/data: --ro is read-only"),
    (["--ro", "/home"], "--ro: /home would hide /home/sandbox", "for example /data"),
    (["--tmpfs", "/home"], "--tmpfs: /home would hide /home/sandbox", "for example /data"),
    (["--rw", "/usr"], "--rw: '/usr' names no place in the box", "HOST:GUEST"),
    (["--ro", "/usr:/" + "x" * 1100], "--ro: the path is longer than 1024 bytes", "a shorter one"),
    (["--tmpfs", "/x:lots"], "--tmpfs: 'lots' is not a size", "for example 512M"),
    (["--workdir", "x"], "--workdir: 'x' is not an absolute path in the box", "begin with /"),
    (["--changed"], "--changed lists what changed under /mnt, and there is no --mnt", "add --mnt DIR"),
    (["--require", "landlock", "--allow-degraded", "landlock"], "--require: 'landlock' stands in", "leave it out"),
    (["--require", "network", "--network", "host"], "--require network: --network host", "leave one of the two out"),
    (["--require", "pid", "--require", "armour"], "--require: 'armour' is not a layer", "the layers are"),
    (["--require", "landlock,"], "--require: '' is not a layer", "the layers are"),
    (["--require", ",landlock"], "--require: '' is not a layer", "the layers are"),
    (["--require", "armour"], "--require: 'armour' is not a layer", "the layers are"),
    (["--apparmor", "a b"], "--apparmor: 'a b' is not a profile's name", "names have letters"),
    (["--network", "lan"], "--network: 'lan' is not a network mode", "write none, host or allow"),
    (["--network", "allow:a.example:0"], "'0' is not a port between 1 and 65535", "api.example.com"),
    (["--network", "allow:-a.example"], "has a part that begins or ends with '-'", "api.example.com"),
    (["--network", "allow:a..example"], "has an empty part between its dots", "api.example.com"),
    (["--network", "allow:[2001:db8::1"], "lacks the closing ']'", "in brackets"),
    (["--network", "allow:a.example:53"], "--network: 'a.example:53': port 53 is", "leave the entry out"),
    (["--network", "allow:a.example", "--network-private", "10.0.0.0/99"], "not between 0 and 32", "10.1.2.0/24"),
    (["--network", "allow:a.example", "--net-rate", "1"], "--net-rate: the rate is below 1024", "leave it out"),
    (["--network", "allow:a.example", "--net-connections", "0"], "--net-connections: 0 is not between", "leave it out"),
    (["--net-rate", "1M"], "--net-rate: there is no list of hosts", "--network allow:HOST"),
    (["--report", "/dev/fd/99"], "--report: /dev/fd/99 is no descriptor that is open for writing", "open it first"),
    (["--with", "x" * 5000], "a requirement is longer than", "a word of its own"),
    (["--backend", "magic"], "--backend: there is no backend 'magic'", "choose one of"),
]


def test_a_backend_that_a_variable_names_is_refused_by_the_name_of_the_variable(pctx):
    env = {**os.environ, "PCTX_SANDBOX_BACKEND": "nope"}
    done = pctx("run", "--", "true", env=env)
    one_sentence_and_a_hint(done, "PCTX_SANDBOX_BACKEND: there is no backend 'nope'", "choose one of")
    assert pctx("run", "-q", "--backend", "namespaces", "--", "true", env=env).returncode == 0


def test_too_few_descriptors_are_told_wherever_they_run_out(pctx, sandbox_bin):
    ran = 0
    for most in (*range(8, 64), 1024):  # the last also runs where others of this user's have descriptors on their way
        line = f"ulimit -n {most}; exec {sandbox_bin} run -q -- true"
        done = subprocess.run(
            ["bash", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        ran += done.returncode == 0
        assert done.returncode == 0 or "ulimit -n" in done.stderr, (most, done.stderr)
    assert 0 < ran < 57


def test_a_long_name_is_cut(pctx):
    done = pctx("run", "-q", "--", "é" * 2500)
    assert done.returncode == 126 and done.stderr.startswith(
        f"pctx-sandbox: {'é' * 100}…: cannot be run: File name too"
    )
    assert "x" * 150 in pctx("run", "-q", "--", "x" * 150).stderr


@pytest.mark.parametrize(("line", "says", "hint"), MISTAKES, ids=[" ".join(line) for line, _, _ in MISTAKES])
def test_a_mistake_is_named_with_what_to_do(pctx, line, says, hint):
    one_sentence_and_a_hint(pctx(*line), says, hint)


@pytest.mark.parametrize(("line", "says", "hint"), PATHS, ids=[" ".join(line) for line, _, _ in PATHS])
def test_a_path_that_will_not_do_is_named_with_what_to_do(pctx, tmp_path, line, says, hint):
    (tmp_path / "m").mkdir()
    (tmp_path / "f").touch()
    (tmp_path / "x.py").touch()
    (tmp_path / "m.py").mkdir()
    (tmp_path / "link").symlink_to("f")
    one_sentence_and_a_hint(pctx("run", "-q", *line, cwd=tmp_path), says, hint)


@pytest.mark.parametrize(("words", "says", "hint"), VALUES, ids=[" ".join(words)[:60] for words, _, _ in VALUES])
def test_a_value_that_will_not_do_is_named_with_what_to_do(pctx, words, says, hint):
    one_sentence_and_a_hint(pctx("run", "-q", *words, "--", "true"), says, hint)


def test_a_terminal_and_json_do_not_go_together(pctx):
    done = pctx("run", "--tty", "--json", "--", "true")
    assert (done.returncode, done.stderr.splitlines()[1]) == (125, "hint: " + done.json()["error"]["hint"])
    assert "--report FILE" in done.stderr


def test_every_option_with_a_value_of_its_own_kind_is_among_them(pctx):
    """Values that any word is good for, or that are paths, which have a table of their own."""
    free = {"--venv", "--python", "--policy", "--seccomp", "--mnt", "--lend", "--network-private", "--net-bytes"}
    options = set(re.findall(r"^  (?:-\w,)?(--[a-z-]+) [A-Z]", pctx("run", "--help").stdout, re.MULTILINE))
    assert len(options) > 20 and options - free <= {word for words, _, _ in VALUES for word in words}


COMMANDS = [
    (["/etc/passwd"], 126, "/etc/passwd: cannot be run: Permission denied", "chmod +x it, or name its interpreter"),
    (["/usr"], 126, "/usr: cannot be run: Is a directory", "it is a folder"),
]


@pytest.mark.parametrize(("command", "status", "says", "hint"), COMMANDS, ids=[words[0] for words, *_ in COMMANDS])
def test_a_command_that_cannot_be_run_is_named_with_what_to_do(pctx, command, status, says, hint):
    one_sentence_and_a_hint(pctx("run", "-q", "--", *command), says, hint, status)


HIDDEN = [
    (["--ro", "m:/usr"], "below /usr hides the host's programs"),
    (["--tmpfs", "/usr"], "below /usr hides the host's programs"),
    (["--env", "PATH=/nosuch"], "which --env PATH has set"),
    (["--env", "A=b"], "the box has the host's /usr"),
]


@pytest.mark.parametrize(("words", "hint"), HIDDEN, ids=[" ".join(words) for words, _ in HIDDEN])
def test_a_command_that_is_not_there_is_missed_where_it_is_looked_for(pctx, tmp_path, words, hint):
    (tmp_path / "m").mkdir()
    done = pctx("run", "-q", *words, "--", "nosuch", cwd=tmp_path)
    one_sentence_and_a_hint(done, "nosuch: no such command in the box", hint, 127)


def test_names_do_nothing_to_a_terminal(pctx, tmp_path):
    name = "x\x1b[2J\nall is well"
    shown = "x\\x1b[2J\\x0aall is well"
    for line in (["--mnt", name, "--", "true"], ["--ro", f"/nope/{name}:/x", "--", "true"]):
        one_sentence_and_a_hint(pctx("run", *line), shown, "spelling")
    one_sentence_and_a_hint(pctx("run", "-q", "--", name), shown, "--ro DIR", 127)
    (tmp_path / name).mkdir()
    lent = pctx("explain", "--ro", f"{name}:/x", "--env", f"X={name}", cwd=tmp_path)
    assert lent.returncode == 0 and "\x1b" not in lent.stdout and lent.stdout.count(shown) == 2
    assert "all is well" not in [line.strip() for line in lent.stdout.splitlines()]


def test_a_command_that_is_too_long_is_one_sentence(pctx):
    few, many = (":".join(["/" + "d" * length] * count) for length, count in ((200, 600), (2, 30_000)))
    one_sentence_and_a_hint(pctx("run", "-q", "--env", f"PATH={few}", "--", "x" * 4000), "cannot be run", "", 126)
    one_sentence_and_a_hint(pctx("run", "-q", "--env", f"PATH={few}", "--", "nosuch"), "no such command", "", 127)
    done = pctx("run", "-q", "--env", f"PATH={many}", "--", "x" * 4000)
    one_sentence_and_a_hint(done, "longer than a box can be told", "a long list belongs in a file")


@pytest.mark.rootless_only
def test_descriptors_that_others_have_on_their_way_are_told(sandbox_bin):
    def run(most):
        line = f"ulimit -n {most}; exec {sandbox_bin} run -q -- true"
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with here, there:
        for _ in range(60):
            socket.send_fds(here, [b"x"], [here.fileno()])
        one_sentence_and_a_hint(run(40), "Too many references", "raise the limit, for example with 'ulimit -n 1024'")
        for most in range(50, 70):  # at one of them the first messages pass, and a later one does not
            done = run(most)
            assert done.returncode == 0 or (done.returncode == 125 and "ulimit -n" in done.stderr), (most, done)
        assert run(512).returncode == 0  # the control


@pytest.mark.rootless_only
def test_what_a_user_may_not_read_is_named_before_anything_runs(pctx, tmp_path):
    (tmp_path / "x.py").touch(0o200)
    one_sentence_and_a_hint(pctx("run", "-q", "x.py", cwd=tmp_path), "the script x.py cannot be read", "name a copy")
    (tmp_path / "x.py").chmod(0o600)
    assert pctx("run", "-q", "x.py", cwd=tmp_path).returncode == 0  # the control


@pytest.mark.rootless_only
def test_a_folder_that_the_guest_may_not_enter_is_blamed_by_its_option(pctx, tmp_path, skip_unless):
    skip_unless(Path("/root").stat().st_mode & 0o077 == 0, "a folder of root's that is closed to others")
    done = pctx("run", "-q", "--mnt", "/root", "--", "ls")
    one_sentence_and_a_hint(done, "--mnt /root: the guest may not enter it", "chmod")
    assert pctx("run", "-q", "--mnt", str(tmp_path), "--", "ls").returncode == 0  # the control


WRONG = [["--bogus"], ["--memory"], ["--mnt", ".", "--mnt", "."], ["--memory", "x"]]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
@pytest.mark.parametrize("form", ["two", "one"])
def test_a_mistake_is_in_the_report_too(pctx, tmp_path, words, form):
    (tmp_path / "r.json").write_text("of an earlier run")
    where = ["--report", "r.json"] if form == "two" else ["--report=r.json"]
    done = pctx("run", "--json", *where, *words, "--", "true", cwd=tmp_path)
    written = json.loads((tmp_path / "r.json").read_text())
    assert done.returncode == 125 and done.json() == written and written["error"]["kind"] == "usage"
    assert written["error"]["message"] in done.stderr


def test_a_report_of_the_commands_own_is_not_written(pctx, tmp_path):
    """Behind the first word that is no option of ours nobody knows whose words they are."""
    (tmp_path / "mine").write_text("mine")
    for words in (["--memroy", "1G", "x.py", "--report", "mine"], ["--memory", "x.py", "--bogus", "--report", "mine"]):
        assert pctx("run", *words, cwd=tmp_path).returncode == 125
        assert (tmp_path / "mine").read_text() == "mine"
    assert pctx("run", "--report", "mine", "--memroy", "1G", "x.py", cwd=tmp_path).returncode == 125
    assert (tmp_path / "mine").read_text() != "mine"  # the control


def test_a_guest_that_fails_is_told_of_with_what_it_was_refused(pctx, tmp_path):
    command = ["--", "unshare", "-U", "true"]
    done = pctx("run", *command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("pctx-sandbox: refused meanwhile: unshare flags 0x10000000 (EPERM);")
    for words in (["-q"], ["--report", str(tmp_path / "r.json")], ["--json"]):
        assert "refused meanwhile" not in pctx("run", *words, *command).stderr  # where it is known otherwise
    aborts = pctx("run", "--", "sh", "-c", "unshare -U true 2>/dev/null; kill -ABRT $$")
    assert aborts.returncode == 134 and "refused meanwhile: unshare" in aborts.stderr
    (tmp_path / "src").mkdir()
    done = pctx("run", "--", "sh", "-c", "unshare -U true; false", "src", cwd=tmp_path)
    assert "refused meanwhile" in done.stderr and "is yours" not in done.stderr  # one cause is enough
    assert "src is yours" in pctx("run", "--", "ls", "src", cwd=tmp_path).stderr
    assert "refused meanwhile" not in pctx("run", "--", "sh", "-c", "unshare -U true; exit 0").stderr
    assert "refused meanwhile" not in pctx("run", "--", "sh", "-c", "exit 1").stderr


@pytest.mark.rootless_only
def test_a_guest_with_a_uid_of_its_own_is_told_what_it_cannot_read(pctx, layers, skip_unless, tmp_path):
    skip_unless(layers["subordinate-ids"]["on"], "subordinate ids for this user")
    tmp_path.chmod(0o755)
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "table.csv").touch(0o600)
    read = ["--ro", f"{data}:/data", "--", "cat", "/data/table.csv"]
    done = pctx("run", *read)
    assert done.returncode == 1 and "Permission denied" in done.stderr
    assert "data/table.csv is not for all to read, and the guest is not you" in done.stderr.splitlines()[-2]
    assert "chmod -R o+rX" in done.stderr.splitlines()[-1]
    assert "not for all" not in pctx("run", "-q", *read).stderr
    assert pctx("run", "--rw", *read[1:]).returncode == 0
    (data / "table.csv").chmod(0o644)
    assert pctx("run", *read).returncode == 0
    assert "not for all" not in pctx("run", *read[:2], "--", "false").stderr


CROWD = """
import os, sys, time
try:
    for _ in range(9):
        if os.fork() == 0: time.sleep(1000)
except BlockingIOError: sys.exit(int(sys.argv[1]))
"""


def test_a_guest_that_fails_for_want_of_processes_is_told_the_limit(pctx, report, layers, skip_unless, tmp_path):
    skip_unless(layers["cgroups"]["on"], "a host that lends cgroups, which count refused processes")
    command = ["--pids", "5", "--", "python3", "-c", CROWD]
    done = pctx("run", *command, "3")
    says = "pctx-sandbox: limit 5 (--pids) was reached: a process or thread more was refused once"
    assert done.returncode == 3 and done.stderr.splitlines()[-1] == says, done.stderr
    threads = "import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(0.1,)).start()"
    ended = pctx("run", "--pids", "5", "--", "python3", "-c", threads)  # all of them have ended when it has
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1] == says, ended.stderr
    for words in (["-q"], ["--report", str(tmp_path / "r.json")]):
        assert "was reached" not in pctx("run", *words, *command, "3").stderr
    assert "was reached" not in pctx("run", *command, "0").stderr, "it has not failed"
    assert report(*command, "3")["receipt"]["limits_reached"] == {"pids": 1}
    assert report("--", "false")["receipt"]["limits_reached"] == {}


RESULT = ["--changed", "--json", "--report", "--print-policy", "--quiet", "-q", "--die-with-parent"]


@pytest.mark.parametrize("option", RESULT)
def test_explain_refuses_what_only_a_run_has(pctx, option):
    line = [option, "x.json"] if option == "--report" else [option]
    says = f"'explain' has no option '{option}': it runs nothing"
    one_sentence_and_a_hint(pctx("explain", *line, "--", "true"), says, "run --print-policy")
    assert option not in re.findall(r"-[\w-]+", pctx("explain", "--help").stdout)
    assert option in re.findall(r"-[\w-]+", pctx("run", "--help").stdout)


def test_explain_may_stand_before_a_whole_line(pctx):
    explained = pctx("explain", "run", "--memory", "64M", "--", "true").stdout
    assert explained.startswith("command\n  true\n") and "64 MiB" in explained
    assert pctx("explain", "--", "run", "x").stdout.startswith("command\n  run x\n")


def test_explain_shows_what_a_terminal_changes(pctx):
    assert "TERM=" in pctx("explain", "--tty", "--", "true").stdout
    assert "TERM=" not in pctx("explain", "--", "true").stdout


def one_sentence_and_a_hint(done, says, hint, status=125):
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("pctx-sandbox: ") and says in first, done.stderr
    assert second.startswith("hint: ") and hint in second, done.stderr


def test_what_the_hints_say_does_work(pctx, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "f").write_text("lent\n")
    assert pctx("run", "-q", "--ro", "m:/data", "--", "ls", "-d", "/data", cwd=tmp_path).stdout == "/data\n"
    assert pctx("run", "-q", "--ro", "f:/etc/passwd", "--", "cat", "/etc/passwd", cwd=tmp_path).stdout == "lent\n"
    assert pctx("run", "-q", "--workdir", "/", "--", "pwd").stdout == "/\n"
