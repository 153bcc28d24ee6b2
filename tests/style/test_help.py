"""The command line explains itself, and its reference page names everything it offers."""

import re

import project
import pytest

# What the program must offer; whatever else it lists is checked as well.
VERBS = {"run", "env", "doctor", "explain", "setup", "help"}
OPTION = re.compile(r"^\s{2,}((?:-\w,\s?)?--[a-z][\w-]*)(.*)$")


def options_in(help_text):
    """{option: description} as `--help` prints them; a description may start on the following line."""
    found, last = {}, None
    for line in help_text.splitlines():
        match = OPTION.match(line)
        if match:
            last = re.search(r"--[a-z][\w-]*", match.group(1)).group(0)
            # What stands after two or more spaces is the description; before it come the value's name and defaults.
            found[last] = " ".join(re.split(r"\s{2,}", match.group(2).strip(" ,"))[1:]) or ""
            if not found[last] and re.search(r"\s{2,}\S", match.group(2)):
                found[last] = match.group(2).strip()
        elif last and line.startswith(" " * 8) and line.strip():
            found[last] += " " + line.strip()
        else:
            last = None
    return found


@pytest.fixture(scope="session")
def verbs(pctx):
    """{verb: its help text}, for all verbs that the program lists."""
    done = pctx("--help")
    assert done.returncode == 0, done.stderr
    listed = re.split(r"^subcommands:", done.stdout, flags=re.IGNORECASE | re.MULTILINE)[-1]
    names = re.findall(r"^  ([a-z-]+)\b", listed, re.MULTILINE)
    assert set(names) >= VERBS, done.stdout
    texts = {name: pctx(name, "--help").stdout for name in names}
    # Verbs of a verb, such as `env build`.
    for name, text in list(texts.items()):
        inner = re.split(r"^subcommands:", text, flags=re.IGNORECASE | re.MULTILINE)[1:]
        for word in re.findall(r"^  ([a-z-]+)\b", inner[0].split("\n\n")[0], re.MULTILINE) if inner else []:
            texts[f"{name} {word}"] = pctx(name, word, "--help").stdout
    return texts


def test_every_verb_has_help(verbs):
    for verb, text in verbs.items():
        assert len(text.splitlines()) >= 3, f"{verb} --help says nothing: {text!r}"


def test_help_is_a_verb_too(pctx, verbs):
    assert pctx("help").stdout == pctx("--help").stdout
    for verb, text in verbs.items():
        done = pctx("help", *verb.split())
        assert (done.returncode, done.stdout) == (0, text), verb


def test_usage_names_the_command_of_the_box(verbs):
    for verb in ("run", "explain"):
        assert f"Usage: pctx-sandbox {verb} [OPTIONS] [--] CMD [ARG...]\n" in verbs[verb]


def test_every_option_has_a_description(verbs):
    for verb, text in verbs.items():
        described = options_in(text)
        assert described or verb not in ("run", "explain"), f"{verb} --help lists no option:\n{text}"
        assert [name for name, words in described.items() if not words.strip()] == [], f"{verb} --help:\n{text}"


EVERYWHERE = {"--help", "--help-all", "--version"}


def section_of(page, verb):
    """The part of the page below the heading that names the verb, and the heading; empty if there is none."""
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        if verb.split()[0] in re.findall(r"`([a-z]+)", part.split("\n")[0]):
            return part
    return ""


def test_the_table_of_verbs_is_whole(verbs):
    table = project.text("docs/reference/cli.md").split("| option |")[0]
    rows = re.findall(r"^\| `([a-z]+)[^`]*` \| \S", table, re.MULTILINE)
    assert sorted(rows) == sorted(verb for verb in verbs if " " not in verb)


def test_the_section_of_each_verb_names_its_verbs_and_options(verbs):
    page = project.text("docs/reference/cli.md")
    missing = {}
    for verb, text in verbs.items():
        section = section_of(page, verb)
        names = {name for name in options_in(text) if f"`{name}" not in section} - EVERYWHERE
        if verb == "explain":  # its options are those of `run`, and not described twice
            names &= options_in(text).keys() - options_in(verbs["run"]).keys()
        if " " in verb and verb.split()[1] not in section.split("\n")[0]:
            names.add(verb)
        if names:
            missing[verb] = sorted(names)
    assert missing == {}
    assert [name for name in EVERYWHERE if f"`{name}`" not in page] == []


def test_the_reference_page_names_no_option_that_does_not_exist(verbs):
    existing = {name for text in verbs.values() for name in options_in(text)} | EVERYWHERE
    page = project.text("docs/reference/cli.md")
    assert sorted(set(re.findall(r"^\| `(--[a-z][\w-]*)", page, re.MULTILINE)) - existing) == []


def test_the_version_is_the_one_being_built(pctx):
    version = re.search(r"project\(pctx_sandbox VERSION ([\d.]+)", project.text("CMakeLists.txt")).group(1)
    done = pctx("--version")
    assert done.returncode == 0 and version in done.stdout


def test_the_policy_page_names_every_layer_and_key():
    page = project.text("docs/reference/policy.md")
    layers = re.findall(r'^\s*\{Layer::\w+, "([\w-]+)"', project.text("src/policy/layer.h"), re.MULTILINE)
    keys = re.findall(r'field\("([a-z_.]+)"', project.text("src/policy/json.cc"))
    assert layers and keys
    assert [name for name in (*layers, *keys) if f"`{name}`" not in page] == []


def test_the_report_page_names_every_key(pctx, tmp_path):
    done = pctx("run", "--json", "--mnt", tmp_path, "--changed", "--", "true")
    page = project.text("docs/reference/report.md")
    report = done.json()
    names = [*report, *report["outcome"], *report["receipt"], *report["receipt"]["usage"], *report["changed"]]
    assert [
        name for name in names if not re.search(rf"`(\w+\.)?{name}`", page) and name not in ("outcome", "receipt")
    ] == []
