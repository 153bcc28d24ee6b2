"""The documents are true: every command in them runs, every link leads somewhere, every option is described.

A block that cannot run here says so in a comment on the line above it: `<!-- needs: fedora -->`, `needs: root` or
`needs: podman` in the same way, `<!-- runs-in: make test-all -->`. `<!-- check: output -->` compares the output of a
console block; `...` in an expected line stands for anything, a line `...` for any number of lines. `<!-- cwd: tree -->`
runs a block in the folder of the project instead of an empty one.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import documents
import podman_host
import project
import pytest

BLOCKS = documents.all_blocks()
BY_PAGE = {page: [b for b in BLOCKS if b.page == page] for page in sorted({b.page for b in BLOCKS})}
SEPARATOR = "\x01"
# Said on hosts without cgroups for this user; the documents show the output of hosts that have them.
HOST_NOTICE = re.compile(r"^pctx-sandbox: limits bind without cgroups .*\n", re.MULTILINE)


def reason_not_to_run(block):
    """Why this block is left out here, or None. What `needs: root` asks for may well be there."""
    if "runs-in" in block.marks:
        return f"runs in {block.marks['runs-in']}"
    need = block.marks.get("needs")
    if need is None or (need == "root" and os.geteuid() == 0):
        return None
    if need == "podman" and podman_host.trouble() is None:
        return None
    return f"needs {need}"


def run_block(block, folder, env):
    """Runs the commands of a block in one shell. Returns (command, expected, output, exit status) for each."""
    lines = []
    for command, _ in block.commands():
        # The status travels out by the separator line and back by the subshell, so that `echo $?` shows the guest's.
        lines += [command, "pctx_status=$?", f"printf '\\n{SEPARATOR}%s\\n' $pctx_status", "(exit $pctx_status)"]
    strict = "set -e\n" if block.language == "bash" else ""
    script = folder / ".block.sh"
    where = project.TREE if block.marks.get("cwd") == "tree" else folder
    script.write_text(strict + "\n".join(lines) + "\n")
    command = ["bash", str(script)]
    done = subprocess.run(
        command,
        cwd=where,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    script.unlink()
    pieces = re.split(rf"\n{SEPARATOR}(\d+)\n", done.stdout)
    results = []
    for number, (command, expected) in enumerate(block.commands()):
        output = pieces[2 * number] if 2 * number < len(pieces) else ""
        status = int(pieces[2 * number + 1]) if 2 * number + 1 < len(pieces) else done.returncode or 1
        results.append((command, expected, HOST_NOTICE.sub("", output), status))
    return results


def matches(expected, output):
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(piece) for piece in line.rstrip().split("...")) + r"[ \t]*\n"
    return re.fullmatch(pattern, output.strip("\n") + "\n" if output.strip("\n") else "") is not None


def shows_status(command):
    return command.strip() == "echo $?"


@pytest.fixture(scope="session")
def shell_env(sandbox_bin, tmp_path_factory):
    """As a reader's shell: `pctx-sandbox` is on the PATH, and the home directory is empty."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "pctx-sandbox").symlink_to(sandbox_bin)
    home = tmp_path_factory.mktemp("home")
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(home), "LC_ALL": "C.UTF-8"}


@pytest.mark.parametrize("page", BY_PAGE)
def test_every_command_runs(page, shell_env, tmp_path):
    """Blocks of a page run in order in one empty folder, as a reader would type them."""
    problems = []
    for block in BY_PAGE[page]:
        if reason_not_to_run(block):
            continue
        results = run_block(block, tmp_path, shell_env)
        for number, (command, expected, output, status) in enumerate(results):
            said_so = number + 1 < len(results) and shows_status(results[number + 1][0])
            if status != 0 and not said_so:
                problems.append(f"{block.where}: `{command.strip()}` exited with {status}:\n{output}")
            if block.marks.get("check") == "output" and not matches(expected, output):
                shown = "\n".join(expected)
                problems.append(f"{block.where}: `{command.strip()}` printed\n{output}\ninstead of\n{shown}")
    assert not problems, "\n".join(problems)


def test_marked_blocks_are_counted(capsys):
    left_out = [f"{block.where}: {reason_not_to_run(block)}" for block in BLOCKS if reason_not_to_run(block)]
    with capsys.disabled():
        print(f"\ndocuments: {len(BLOCKS) - len(left_out)} blocks of commands run, {len(left_out)} are marked:")
        for line in left_out:
            print(f"  {line}")
    assert len(left_out) < len(BLOCKS) / 2, "most commands in the documents are never run"


def test_every_page_is_linked_from_another():
    links = set()
    for page in documents.pages():
        for target in re.findall(r"\]\(([^)#\s]+)", documents.outside_fences(project.text(page))):
            links.add(os.path.normpath(page.parent / target))
    orphans = [str(page) for page in documents.pages() if str(page) not in links and str(page) != "README.md"]
    assert orphans == []


@pytest.mark.parametrize("page", documents.pages(), ids=str)
def test_relative_links_resolve(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", documents.outside_fences(project.text(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (project.TREE / page.parent / path).resolve() if path else project.TREE / page
        if not file.exists() or (anchor and anchor not in documents.heading_anchors(file.read_text())):
            broken.append(target)
    assert broken == []


# --- the checks above, checked ---

PAGE = """
<!-- needs: fedora -->
```bash
false
```

```console
$ echo one
one
$ false
$ echo $?
1
```
"""


def test_a_mark_belongs_to_the_block_right_below_it():
    marked, plain = documents.blocks("page.md", PAGE)
    assert reason_not_to_run(marked) == "needs fedora"
    assert reason_not_to_run(plain) is None


def test_a_wrong_output_and_a_hidden_failure_are_seen(tmp_path):
    _, block = documents.blocks("page.md", PAGE)
    results = run_block(block, tmp_path, dict(os.environ))
    assert [status for *_, status in results] == [0, 1, 0]
    assert matches(["one"], results[0][2]) and not matches(["two"], results[0][2])
    assert matches(["1"], results[2][2])
    assert matches(["o...e"], results[0][2]) and matches(["..."], "a\nb\n") and not matches([], "a\n")


def test_bash_is_there_to_run_them():
    assert shutil.which("bash") and Path("/proc").is_dir()
