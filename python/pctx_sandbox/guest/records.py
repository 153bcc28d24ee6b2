"""Values of the caller's own classes: Enum members, dataclasses, named tuples, attrs and pydantic models.

They come back only as types that the caller allowed, found by key in the caller's own table, and are built without
running their code: no __init__, no __post_init__, no __setattr__ of theirs. Only pydantic models run, since checking
is what they are for.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import operator
import types
from collections.abc import Collection
from typing import Any

from . import tags
from .tags import Context, Fields, NotData, charge_expanded, expect


def key_of(kind: type) -> str:
    """What names a class in a payload; it is looked up in a table of the caller's, never imported."""
    return f"{kind.__module__}:{kind.__qualname__}"


def family_of(kind: type) -> str | None:
    """Which of the five families a class belongs to, or None."""
    if issubclass(kind, enum.Enum):
        return "Enum"
    if "__pydantic_validator__" in dir(kind):
        return "pydantic model"
    if dataclasses.is_dataclass(kind):
        return "dataclass"
    if hasattr(kind, "__attrs_attrs__"):
        return "attrs class"
    if issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return "named tuple"
    return None


def field_names(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(attribute.name for attribute in getattr(kind, "__attrs_attrs__", ()))


PLAIN_FORM = {
    "Enum": "its .value",
    "pydantic model": "its .model_dump()",
    "dataclass": "dataclasses.asdict(...) of it",
    "attrs class": "attrs.asdict(...) of it",
    "named tuple": "tuple(...) or ._asdict() of it",
}


def describe(value: object, allowed: Collection[str]) -> tuple[Fields, tuple[Any, ...] | None] | None:
    """The fields of a value and, for a record, the values that fill it; None if it is of no known family."""
    kind = type(value)
    family = family_of(kind)
    if family is None:
        return None
    key = key_of(kind)
    if key not in allowed:
        raise NotData(
            f"is a {family} that the caller did not ask for; name {kind.__qualname__} in the return annotation, "
            f"or return {PLAIN_FORM[family]}"
        )
    if isinstance(value, enum.Enum):
        return (tags.ENUM, key, _member_names(value)), None
    if family == "pydantic model":
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return (tags.PYDANTIC, key, {**vars(value), **extra}), None
    if family == "named tuple":
        return (tags.NAMEDTUPLE, key, tuple(value)), None  # type: ignore[arg-type]
    names = field_names(kind)
    _nothing_else(value, names)
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise NotData(f"has no value for its field {missing[0]!r}; set it before returning")
    return (tags.RECORD, key), tuple(getattr(value, name) for name in names)


def _nothing_else(value: object, names: tuple[str, ...]) -> None:
    """Attributes beside the fields would be lost; cached properties can be computed again."""
    for name in getattr(value, "__dict__", ()):
        declared = inspect.getattr_static(type(value), name, None)
        if name not in names and not isinstance(declared, functools.cached_property):
            raise NotData(f"has an attribute {name!r} that is no field; make it a field or remove it")


def _member_names(value: enum.Enum) -> tuple[str, ...]:
    kind: Any = type(value)
    if value._name_ in kind.__members__:
        return (value._name_,)
    if isinstance(value, enum.Flag):
        parts = [member for member in kind if member in value]
        if functools.reduce(operator.or_, parts, kind(0)) == value:
            return tuple(str(member._name_) for member in parts)
    raise NotData("is an Enum member without a name; return its .value")


def _allowed(context: Context, key: Any, *families: str) -> type:
    kind = context.types.get(key) if type(key) is str else None
    if kind is None or family_of(kind) not in families:
        shown = key[:200] if type(key) is str else type(key).__name__
        raise NotData(
            f"a value of class {shown!r} came back, which the caller did not ask for; name the class in the "
            "return annotation, or return plain data"
        )
    # It would run when the value goes, with attributes of the guest's choice: a path to remove, say.
    if any("__del__" in vars(base) for base in kind.__mro__):
        raise NotData(f"{kind.__qualname__} has a __del__, which would run here; return {PLAIN_FORM[families[0]]}")
    return kind


def _allow_as_key(context: Context, kind: type) -> None:
    """Instances may be hashed if hash and equality are Python's own."""
    for method in ("__hash__", "__eq__"):
        owner = next(base for base in kind.__mro__ if method in vars(base))
        if owner.__module__ not in ("builtins", "enum"):
            return
    context.key_types.add(kind)


def build_enum(context: Context, key: Any, names: Any) -> enum.Enum:
    kind = _allowed(context, key, "Enum")
    assert issubclass(kind, enum.Enum)
    expect(type(names) is tuple and all(type(name) is str for name in names), "an Enum member's names are expected")
    known = kind.__members__
    expect(all(name in known for name in names), f"{kind.__qualname__} has no such member")
    _allow_as_key(context, kind)
    if len(names) == 1:
        return known[names[0]]
    expect(issubclass(kind, enum.Flag) and len(names) <= 4096, "an Enum member has one name")
    return functools.reduce(operator.or_, (known[name] for name in names), kind(0))


def build_namedtuple(context: Context, key: Any, values: Any) -> Any:
    kind: Any = _allowed(context, key, "named tuple")
    expect(type(values) is tuple and len(values) == len(kind._fields), f"{kind.__qualname__} has other fields")
    context.charge(8 * len(values))
    _allow_as_key(context, kind)
    return tuple.__new__(kind, values)


def build_record(context: Context, key: Any) -> object:
    kind = _allowed(context, key, "dataclass", "attrs class")
    try:
        return object.__new__(kind)
    except TypeError:
        raise NotData(f"{kind.__qualname__} derives from a builtin type; return it as plain data") from None


def fill_record(record: object, values: tuple[Any, ...]) -> None:
    kind = type(record)
    names = field_names(kind)
    expect(len(values) == len(names), f"{kind.__qualname__} has {len(names)} fields, not {len(values)}")
    for name, value in zip(names, values, strict=True):
        declared = inspect.getattr_static(kind, name, None)
        # A property or other descriptor in a field's place would run the caller's code.
        if hasattr(type(declared), "__set__") and not isinstance(declared, types.MemberDescriptorType):
            raise NotData(f"{kind.__qualname__}.{name} is computed by a descriptor; return plain data")
        object.__setattr__(record, name, value)


def build_pydantic(context: Context, key: Any, values: Any) -> Any:
    kind: Any = _allowed(context, key, "pydantic model")
    expect(type(values) is dict and all(type(name) is str for name in values), "a model's fields are expected")
    charge_expanded(context, values)
    try:
        return _validate(context, kind, values)
    except NotData:
        raise
    except Exception as error:  # the model's validators are the caller's code and raise what they like
        raise NotData(f"{kind.__qualname__} did not accept what came back: {error}") from error


def _validate(context: Context, kind: Any, values: dict[str, Any]) -> Any:
    if not hasattr(kind, "model_validate"):  # a dataclass made by pydantic
        return context.library("pydantic", "a pydantic model").TypeAdapter(kind).validate_python(values)
    if getattr(kind, "__pydantic_root_model__", False):
        return kind.model_validate(values.get("root"))
    # The fields travel by name; a model that reads aliases gets them under those.
    named = {}
    for name, value in values.items():
        field = kind.model_fields.get(name)
        alias = getattr(field, "validation_alias", None) or getattr(field, "alias", None)
        named[alias if isinstance(alias, str) else name] = value
    return kind.model_validate(named)


BUILDERS: dict[int, Any] = {
    tags.ENUM: build_enum,
    tags.NAMEDTUPLE: build_namedtuple,
    tags.RECORD: build_record,
    tags.PYDANTIC: build_pydantic,
}
