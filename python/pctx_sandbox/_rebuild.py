"""The host's side of building tagged values: the guest is hostile, so everything has a limit and a buffer one owner."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ._opaque import Opaque
from .guest import plain, records, tags
from .guest.rebuild import build
from .guest.tags import Context, Fields, NotData, expect

LEVELS = 4
CHARGES_PER_LOOK = 4096


class HostContext(Context):
    """`types` are the caller's classes that may come back, by key; `buffers` what travelled beside the payload."""

    def __init__(self, types: Mapping[str, type], buffers: Sequence[memoryview], memory: int, seconds: float) -> None:
        super().__init__(types)
        self.key_types.update(plain.KEY_TYPES)
        self._buffers = buffers
        self._taken: set[int] = set()
        # What lies in buffers was paid for by the guest. It is charged again at each level that could copy or repeat
        # it: array, column, table.
        self._memory = memory + LEVELS * sum(buffer.nbytes for buffer in buffers)

        self._deadline = time.monotonic() + seconds
        self._charges = 0

    def charge(self, size: int) -> None:
        self._memory -= size
        self._charges += 1
        if self._charges % CHARGES_PER_LOOK == 0 and time.monotonic() > self._deadline:
            raise NotData("decoding took longer than its time limit")
        if self._memory < 0:
            raise NotData("the value would take more memory than its limit")

    def take(self, field: Any) -> Any:
        if type(field) is bytes:
            self.charge(len(field))
            return bytearray(field)
        return self._take_once(field)

    def take_frozen(self, field: Any) -> Any:
        return field if type(field) is bytes else self._take_once(field).toreadonly()

    def _take_once(self, index: Any) -> memoryview:
        # With two owners, one could be an array that the caller writes to, the other a table whose offsets lie in the
        # same bytes and were checked before: the caller's own write would then lead Arrow out of its memory.
        expect(type(index) is int and 0 <= index < len(self._buffers), "a buffer is missing")
        expect(index not in self._taken, "a buffer belongs to two values")
        self._taken.add(index)
        buffer: memoryview = self._buffers[index]
        return buffer

    def build(self, fields: Fields) -> Any:
        return self._build_opaque(*fields[1:]) if fields[0] == tags.OPAQUE else build(self, fields)

    def fill(self, record: object, values: Fields) -> None:
        records.fill_record(record, values)

    def _build_opaque(self, field: Any = None, label: Any = None, *more: Any) -> Opaque:
        expect(not more and type(label) is str, "an opaque value is malformed")
        data = self.take_frozen(field)
        self.charge(len(data))
        return Opaque(bytes(data), label[:200])
