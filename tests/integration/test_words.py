"""A line that cannot be read: one sentence that names the word, the next step, exit status 125, and nothing has run."""

import pytest

MISTAKES = [
    # the line, what the sentence says, what the hint says
    ([], "no verb is given", "pctx-sandbox help"),
    (["--", "true"], "no verb is given", "pctx-sandbox run -- CMD"),
    (["runn", "--", "true"], "there is no verb 'runn'", "did you mean 'run'?"),
    (["frobnicate"], "there is no verb 'frobnicate'", "the verbs are run, explain, "),
    (["help", "frobnicate"], "there is no verb 'frobnicate'", "the verbs are run, explain, "),
    (["help", "env", "bild"], "there is no verb 'bild' of 'env'", "did you mean 'build'?"),
    (["env"], "'env' needs a verb of its own: build, ", "pctx-sandbox env --help"),
    (["env", "bild"], "there is no verb 'bild' of 'env'", "did you mean 'build'?"),
    (["--memory", "1G", "run", "--", "true"], "no option '--memory' before the verb", "pctx-sandbox run --memory"),
    (["run", "--memry", "1G", "--", "true"], "'run' has no option '--memry'", "did you mean '--memory'?"),
    (["run", "--memry=1G", "--", "true"], "'run' has no option '--memry'", "did you mean '--memory'?"),
    (["run", "-x", "--", "true"], "'run' has no option '-x'", "pctx-sandbox run --help"),
    (["explain", "--jsn", "--", "true"], "'explain' has no option '--jsn'", "did you mean '--json'?"),
    (["doctor", "extra"], "'doctor' takes no word 'extra'", "pctx-sandbox doctor --help"),
    (["run", "--mnt", "a", "--mnt", "b", "--", "true"], "--mnt was given twice", "leave one of them out"),
    (["run", "--memory", "--", "true"], "--memory needs a SIZE, such as 512M", "pctx-sandbox run --help"),
    (["run", "--env", "--", "true"], "--env needs a NAME=VALUE, such as LANG=C.UTF-8", "pctx-sandbox run --help"),
    (["run", "--env", "A=1", "--env"], "--env needs a NAME=VALUE", "pctx-sandbox run --help"),
    (["completions"], "'completions' needs a SHELL", "pctx-sandbox completions --help"),
    (["completions", "tcsh"], "there is no SHELL 'tcsh'", "bash,fish,zsh"),
    (["env", "show"], "'env show' needs a KEY", "pctx-sandbox env show --help"),
    (["serve", "--idle", "soon"], "--idle: 'soon' is not a number", "pctx-sandbox serve --help"),
    (["serve", "--max-workers", "0"], "--max-workers: '0' is not a whole number above 0", "pctx-sandbox serve --help"),
    (["serve", "--memory-budget", "x"], "--memory-budget: 'x' is not a size", "for example 512M"),
]

# In a folder with the folder `m` and the file `f`.
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
    (["--seccomp", "nosuch", "--", "true"], "--seccomp: cannot open nosuch: No such file", "check the spelling"),
    (["--policy", "nosuch", "--", "true"], "--policy: cannot open nosuch: No such file", "check the spelling"),
    (["nosuch.py"], "the script nosuch.py cannot be read: No such file", "pctx-sandbox run -- nosuch.py"),
]


@pytest.mark.parametrize(("line", "says", "hint"), MISTAKES, ids=[" ".join(line) for line, _, _ in MISTAKES])
def test_a_mistake_is_named_with_what_to_do(pctx, line, says, hint):
    one_sentence_and_a_hint(pctx(*line), says, hint)


@pytest.mark.parametrize(("line", "says", "hint"), PATHS, ids=[" ".join(line) for line, _, _ in PATHS])
def test_a_path_that_will_not_do_is_named_with_what_to_do(pctx, tmp_path, line, says, hint):
    (tmp_path / "m").mkdir()
    (tmp_path / "f").touch()
    one_sentence_and_a_hint(pctx("run", "-q", *line, cwd=tmp_path), says, hint)


def one_sentence_and_a_hint(done, says, hint):
    assert (done.returncode, done.stdout) == (125, ""), done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("pctx-sandbox: ") and says in first, done.stderr
    assert second.startswith("hint: ") and hint in second, done.stderr


def test_what_the_hints_say_does_work(pctx, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "f").write_text("lent\n")
    assert pctx("run", "-q", "--ro", "m:/data", "--", "ls", "-d", "/data", cwd=tmp_path).stdout == "/data\n"
    assert pctx("run", "-q", "--ro", "f:/etc/passwd", "--", "cat", "/etc/passwd", cwd=tmp_path).stdout == "lent\n"
    assert pctx("run", "-q", "--workdir", "/", "--", "pwd").stdout == "/\n"
