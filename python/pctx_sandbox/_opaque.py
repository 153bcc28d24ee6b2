"""A sealed handle to a value that stays code: fitted models, live objects. The host never opens it."""

from __future__ import annotations

import os
from pathlib import Path

# How a saved handle begins; what follows is the label's length (2 bytes), the label and the sealed bytes.
MAGIC = b"pctx-opaque\x001"


class Opaque:
    """What a function with `returns="opaque"` gave: bytes that only another sandboxed call unpacks.

    Pass it as an argument and the function there gets the value itself. `save` and `load` keep it in a file.
    """

    __slots__ = ("_data", "label")

    def __init__(self, data: bytes, label: str = "") -> None:
        if type(data) is not bytes or type(label) is not str:
            raise TypeError("Opaque takes the sealed bytes and a label")
        self._data = data
        self.label = "".join(letter if letter.isprintable() else "?" for letter in label)

    def __bytes__(self) -> bytes:
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the handle to a file."""
        label = self.label.encode("utf-8", "replace")[:65535]
        Path(path).write_bytes(MAGIC + len(label).to_bytes(2, "little") + label + self._data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Opaque:
        """Reads a handle that `save` wrote."""
        raw = Path(path).read_bytes()
        start = len(MAGIC) + 2
        size = int.from_bytes(raw[len(MAGIC) : start], "little")
        if not raw.startswith(MAGIC) or len(raw) < start + size:
            raise ValueError(f"{os.fspath(path)} is no saved Opaque value")
        return cls(raw[start + size :], raw[start : start + size].decode("utf-8", "replace"))

    def __eq__(self, other: object) -> bool:
        return self._data == other._data if isinstance(other, Opaque) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._data)

    def __reduce__(self) -> tuple[type[Opaque], tuple[bytes, str]]:
        # Bytes again: unpickling a handle does not open it.
        return Opaque, (self._data, self.label)

    def __repr__(self) -> str:
        return f"<Opaque {self.label or 'value'}, {len(self._data)} bytes>"
