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


@pytest.mark.parametrize(("line", "says", "hint"), MISTAKES, ids=[" ".join(line) for line, _, _ in MISTAKES])
def test_a_mistake_is_named_with_what_to_do(pctx, line, says, hint):
    done = pctx(*line)
    assert (done.returncode, done.stdout) == (125, ""), done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("pctx-sandbox: ") and says in first, done.stderr
    assert second.startswith("hint: ") and hint in second, done.stderr
