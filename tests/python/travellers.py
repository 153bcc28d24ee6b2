"""Classes that the tests send from one process to another."""

import collections
import dataclasses
import enum
import functools
import typing

import attrs
import pydantic

ran = []


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


Pair = collections.namedtuple("Pair", "left right")


class Place(typing.NamedTuple):
    x: float
    y: float = 0.0


@dataclasses.dataclass
class Point:
    x: object
    y: object = None

    def __post_init__(self):
        ran.append("post_init")

    def __setattr__(self, name, value):
        ran.append("setattr")
        object.__setattr__(self, name, value)

    def __hash__(self):
        ran.append("hash")
        return 1

    @functools.cached_property
    def size(self):
        return 5


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: "Frozen | None" = None


@dataclasses.dataclass
class Outer:
    points: list[Point]
    color: Color


@attrs.define
class Shape:
    sides: int
    parts: list = attrs.field(factory=list)


class Account(pydantic.BaseModel):
    name: str
    balance: int = pydantic.Field(ge=0, alias="Balance")
    owner: "Account | None" = None


class Numbers(pydantic.RootModel[list[int]]):
    pass


@dataclasses.dataclass
class Trap:
    """A field whose name is a property: setting it would run the caller's code."""

    value: int = 0


Trap.value = property(lambda self: 1, lambda self, value: ran.append("property"))


class Angry(dict):
    pass
