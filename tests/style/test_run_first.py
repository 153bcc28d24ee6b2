"""src/cli/run_first.ld names functions of the program, or it puts nothing side by side and nobody notices."""

import re
import subprocess

import project

LISTED = re.compile(r"\*\(\.text\.(_Z\w[\w.]*)\)")


def test_most_functions_that_come_first_are_in_the_program(sandbox_bin):
    listed = set(LISTED.findall(project.text("src/cli/run_first.ld")))
    assert len(listed) > 100
    symbols = {line.split()[-1] for line in subprocess.check_output(["nm", sandbox_bin], text=True).splitlines()}
    gone = listed - symbols
    # Another compiler inlines others.
    assert len(gone) < len(listed) / 2, f"run scripts/order_text.py; not in {sandbox_bin}: {sorted(gone)[:9]}"


def test_they_come_first(sandbox_bin):
    headers = subprocess.check_output(["readelf", "--wide", "--sections", sandbox_bin], text=True)
    size = {words[0]: int(words[4], 16) for words in re.findall(r"(\.text\S*) +(\S+) +(\S+) +(\S+) +(\S+)", headers)}
    assert next(iter(size)) == ".text.run_first" and 100_000 < size[".text.run_first"] < size[".text"]
