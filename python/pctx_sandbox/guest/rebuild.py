"""Builds tagged values: the one table from a tag's number to its constructor, shared by both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import arrays, arrow, frames, images, plain, polars_frames, records
from .tags import Context, Fields, NotData

BUILDERS: dict[int, Callable[..., Any]] = {
    **plain.BUILDERS,
    **records.BUILDERS,
    **images.BUILDERS,
    **arrays.BUILDERS,
    **frames.BUILDERS,
    **arrow.BUILDERS,
    **polars_frames.BUILDERS,
}


def build(context: Context, fields: Fields) -> Any:
    """The value of a tag. Whatever is wrong with the fields, NotData is what the caller sees."""
    number = fields[0] if fields else None
    builder = BUILDERS.get(number) if type(number) is int else None
    if builder is None:
        raise NotData(f"tag {str(number)[:20]} is not known")
    if not context.key_types:
        context.key_types.update(plain.KEY_TYPES)
    try:
        return builder(context, *fields[1:])
    except (NotData, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a library's own check, a wrong number of fields; a panic of polars is no Exception
        name = builder.__name__.removeprefix("build_").replace("_", " ")
        raise NotData(f"the fields of a {name} are malformed: {type(error).__name__}: {str(error)[:200]}") from None
