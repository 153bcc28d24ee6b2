"""Passes on what a function prints: through the caller's current streams, as it happens, bounded."""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Callable

CHUNK = 64 << 10
# What it costs a function to wake us up for nothing: only one that takes back what it printed can do that.
WAKE_UP = 64
LONGEST_MESSAGE = 2000
# Everything that a terminal acts on, except new line, tab and the carriage return of progress bars.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

Write = Callable[[str, str], None]


class OutputLimit(Exception):
    """The function printed more than it may."""


def escape(text: str) -> str:
    """Control characters as visible text, so that a box cannot move the cursor, set titles or answer queries."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def printable(text: str) -> str:
    """A message that may hold a guest's own text, made safe for a terminal and a log, and cut."""
    shown = "".join(
        letter if letter.isprintable() or letter == "\n" else f"\\x{ord(letter):02x}"
        for letter in text[:LONGEST_MESSAGE]
    )
    return shown if len(text) <= LONGEST_MESSAGE else shown + "..."


def write_through(name: str, text: str) -> None:
    """Writes to sys.stdout or sys.stderr as they are now: a notebook's cell, capsys, redirect_stdout."""
    stream = getattr(sys, name)
    if stream is None:
        return
    if stream.isatty() if hasattr(stream, "isatty") else False:
        text = escape(text)
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    if hasattr(stream, "flush"):
        stream.flush()


class Output:
    """The two streams of one call. Bytes become text as they arrive; half a character waits for its other half."""

    def __init__(self, limit: int, write: Write = write_through, keep: bool = False) -> None:
        self._left = limit
        self._write = write
        self._keep = keep
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._kept: dict[str, list[str]] = {}
        self.bytes = {"stdout": 0, "stderr": 0}  # that the function wrote, as far as we read

    def pump(self, name: str, fd: int) -> bool:
        """Takes what is there. False at the end of the stream; OutputLimit when the function printed too much."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            self._left -= WAKE_UP
            if self._left < 0:
                raise OutputLimit from None
            return True
        if not data:
            return False
        allowed = data[: self._left] if len(data) > self._left else data
        self._left -= len(data)
        self.bytes[name] += len(data)
        self._pass_on(name, allowed)
        if self._left < 0:
            raise OutputLimit
        return True

    def _pass_on(self, name: str, data: bytes, final: bool = False) -> None:
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final)
        if text:
            if self._keep:
                self._kept.setdefault(name, []).append(text)
            self._write(name, text)

    def finish(self) -> None:
        """Shows what was left of a character that never came to its end."""
        for name in list(self._decoders):
            self._pass_on(name, b"", final=True)
        self._decoders.clear()

    def text(self, name: str) -> str:
        return "".join(self._kept.get(name, ()))
