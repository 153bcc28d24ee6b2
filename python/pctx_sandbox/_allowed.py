"""Which of the caller's classes may come back: those in the return annotation, and those they are made of."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

from .guest import records


def allowed_types(function: Callable[..., Any]) -> dict[str, type]:
    """The classes named by a function's return annotation, with the classes of their fields, by key."""
    try:
        annotation = typing.get_type_hints(function).get("return")
    except Exception:  # a name that only exists for type checkers: then nothing is allowed by annotation
        annotation = getattr(function, "__annotations__", {}).get("return")
    return classes_in(annotation)


def classes_in(annotation: Any) -> dict[str, type]:
    """The Enums, dataclasses, named tuples, attrs and pydantic classes that an annotation names."""
    found: dict[str, type] = {}
    seen: list[Any] = []
    waiting = [annotation]
    while waiting:
        part = waiting.pop()
        if any(part is other for other in seen):
            continue
        seen.append(part)
        waiting.extend(typing.get_args(part))
        if isinstance(part, type) and records.family_of(part) is not None:
            found[records.key_of(part)] = part
            waiting.extend(_field_annotations(part))
    return found


def _field_annotations(kind: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(kind).values())
    except Exception:  # annotations that cannot be evaluated here name nothing
        plain = [field.type for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        return [hint for hint in plain if not isinstance(hint, str)]
