"""Names for one file alone, in an anonymous namespace, are nobody else's in that namespace.

Builds from scratch compile many files as one (CMakePresets.json). A second `kLimit` does not compile there; a second
`describe()` with other parameters does, and a call may then mean the other file's.
"""

import re
from collections import defaultdict

import project

NAMESPACE = re.compile(r"(?:inline )?namespace ?([\w:]*) \{")
TYPE = r"(?:struct|class|enum class|union) (?:\[\[.*?\]\] )?(\w+)"
CONSTANT = r"(?:constexpr|constinit|const|static|thread_local) [^(]*?\b(\w+)(?:\[.*?\])?(?: =|\{|;)"
FUNCTION = r"[\w:<>,&*\[\] ]*[ &*>](\w+)\("
DECLARED = re.compile(f"{TYPE}|{CONSTANT}|{FUNCTION}")
# An alias may stand in several files: if they differ, the compiler says so.


def declared(text):
    """Pairs of a namespace and a name that stands in it, with whether it is anonymous. As clang-format writes them: in
    the first column."""
    open_ones = []
    for line in text.splitlines():
        if found := NAMESPACE.match(line):
            open_ones.append(found[1])
        elif line.startswith("}  // namespace"):
            open_ones.pop()
        elif line and (line[0].isalpha() or line[0] == "[") and (found := DECLARED.match(line)):
            name = next(filter(None, found.groups()))
            yield "::".join(filter(None, open_ones)), name, "" in open_ones


def clashes(files):
    """`files` is pairs of a path and a text."""
    hidden, seen = defaultdict(set), defaultdict(set)
    for path, text in files:
        for namespace, name, anonymous in declared(text):
            if anonymous:
                hidden[namespace, name].add(str(path))
            elif path.suffix == ".h":
                seen[namespace, name].add(str(path))
    for key, paths in sorted(hidden.items()):
        if len(all_paths := paths | seen[key]) > 1 and not all(path.endswith(".h") for path in all_paths):
            yield f"{'::'.join(key)}: {', '.join(sorted(all_paths))}"


def compiled_together(of_tests):
    """The tests are a program of their own; so is the box's first process."""
    for path in project.files("src/*.h", "src/*.cc"):
        if path.suffix == ".h" or (path.stem.endswith("_test") == of_tests and path.name != "init.cc"):
            yield path, project.text(path)


def test_no_two_files_have_the_same_name_for_themselves():
    assert sum(1 for _, text in compiled_together(False) for _ in declared(text)) > 1000
    assert list(clashes(compiled_together(of_tests=False))) == []
    assert list(clashes(compiled_together(of_tests=True))) == []


HIDDEN = "namespace pctx {\nnamespace {\n\n%s\n\n}  // namespace\n}  // namespace pctx\n"
OPEN = "namespace pctx {\n\n%s\n\n}  // namespace pctx\n"
DESCRIBE, DESCRIBE_TOO = HIDDEN % "Denial describe(int call) {", HIDDEN % "std::string describe(const Plan& plan);"


def found_in(**texts):
    return list(clashes((project.Path(name.replace("_", ".")), text) for name, text in texts.items()))


def test_the_check_sees_names_of_two_files():
    assert found_in(a_cc=DESCRIBE, b_cc=DESCRIBE_TOO)
    assert found_in(a_cc=HIDDEN % "constexpr int kMost = 3;", b_cc=HIDDEN % "constexpr std::array<int, 2> kMost{1, 2};")
    assert found_in(a_cc=HIDDEN % "struct Account {", b_h=OPEN % "struct Account {")


def test_the_check_accepts_what_is_one_files():
    assert not found_in(a_cc=DESCRIBE + DESCRIBE_TOO)
    assert not found_in(a_cc=DESCRIBE, b_cc=HIDDEN.replace("pctx", "pctx::net") % "void describe(int call) {")
    assert not found_in(a_cc=OPEN % "void run() {", b_h=OPEN % "void run();")
