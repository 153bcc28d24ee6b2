"""Pictures: matplotlib figures and PIL images travel as encoded bytes and come back as an Image."""

from __future__ import annotations

import io
import sys
from typing import Any

from . import tags
from .tags import Context, Fields, NotData, Put, expect

# Raster formats only, each with how it begins: an SVG can hold scripts, which a notebook would run.
MAGIC = {
    "png": (b"\x89PNG\r\n\x1a\n",),
    "jpeg": (b"\xff\xd8\xff",),
    "gif": (b"GIF87a", b"GIF89a"),
    "webp": (b"RIFF",),
    "tiff": (b"II*\x00", b"MM\x00*"),
}
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class Image:
    """A picture that came out of a box: its bytes and their format. It shows itself in a notebook."""

    __slots__ = ("data", "format")

    def __init__(self, data: bytes, format: str = "png") -> None:
        if format not in MAGIC or not data.startswith(MAGIC[format]):
            raise ValueError(f"these bytes are no {format} image; known formats: {', '.join(MAGIC)}")
        self.data = bytes(data)
        self.format = format

    def save(self, path: Any) -> None:
        """Writes the bytes to a file."""
        with open(path, "wb") as file:
            file.write(self.data)

    def to_pil(self) -> Any:
        """The picture as a PIL image; needs pillow. PIL decodes the guest's bytes in this process."""
        from PIL import Image as pil_image

        return pil_image.open(io.BytesIO(self.data), formats=[self.format])

    def _repr_png_(self) -> bytes | None:
        return self.data if self.format == "png" else None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, bytes]:
        return {f"image/{self.format}": self.data}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Image):
            return NotImplemented
        return (self.data, self.format) == (other.data, other.format)

    def __hash__(self) -> int:
        return hash((self.data, self.format))

    def __repr__(self) -> str:
        return f"Image({len(self.data)} bytes, {self.format!r})"

    def __reduce__(self) -> tuple[type[Image], tuple[bytes, str]]:
        return Image, (self.data, self.format)


def describe(value: Any, put: Put) -> Fields | None:
    if type(value) is Image:
        return tags.IMAGE, value.format, put(memoryview(value.data))
    figure: Any = sys.modules.get("matplotlib.figure")
    pil: Any = sys.modules.get("PIL.Image")
    if figure is not None and isinstance(value, figure.Figure):
        file = io.BytesIO()
        value.savefig(file, format="png")
        return tags.IMAGE, "png", put(file.getbuffer())
    if pil is not None and isinstance(value, pil.Image):
        file = io.BytesIO()
        name = "png" if value.mode in PNG_MODES else "tiff"  # CMYK, floats, ...: nothing is converted away
        try:
            value.save(file, format=name)
        except (OSError, ValueError) as error:
            raise NotData(
                f"is an image of mode {value.mode} that cannot be saved: {error}; convert it to RGB"
            ) from None
        return tags.IMAGE, name, put(file.getbuffer())
    return None


def build_image(context: Context, format: Any, field: Any) -> Image:
    expect(type(format) is str and format in MAGIC, "an image's format is not known")
    data = bytes(context.take_frozen(field))
    expect(data.startswith(MAGIC[format]), f"an image's bytes are no {format}")
    return Image(data, format)


BUILDERS: dict[int, Any] = {tags.IMAGE: build_image}
