"""Reads the fenced blocks of the documents: what each is, what it needs, and which commands it holds."""

import dataclasses
import re

import project

MARK = re.compile(r"<!--\s*(needs|runs-in|check|cwd):\s*(.+?)\s*-->")
PATTERNS = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/**/*.md")


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def where(self):
        return f"{self.page}:{self.line}"

    def commands(self):
        """(command, expected output lines) pairs. A bash block is one command without expectations."""
        if self.language == "bash":
            return [(self.text, [])]
        found = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1] = (found[-1][0] + "\n" + line[2:], [])
            elif found:
                found[-1][1].append(line)
            else:
                raise ValueError(f"{self.where}: a console block starts with a line `$ command`")
        return found


def pages():
    return project.files(*PATTERNS)


def blocks(page, text):
    """The bash and console blocks of one page, in order. A mark is a comment on the line right above the fence."""
    marks, block = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(\w*)\s*$", line)
        if block is None and fence:
            block = Block(str(page), number, fence.group(1), "", marks)
            marks = {}
        elif block is not None and fence:
            if block.language in ("bash", "console"):
                yield block
            block = None
        elif block is not None:
            block.text += line + "\n"
        else:
            marks = marks | dict(MARK.findall(line)) if MARK.search(line) else {}


def all_blocks():
    return [block for page in pages() for block in blocks(page, project.text(page))]


def outside_fences(text):
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", text, flags=re.DOTALL | re.MULTILINE)


def heading_anchors(text):
    """The anchors that a forge gives to the headings of a page."""
    for heading in re.findall(r"^#+\s+(.+?)\s*$", outside_fences(text), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
