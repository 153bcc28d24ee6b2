"""A module of the caller's own, as tests of shipping need one: functions, a class, settings that nobody may see."""

import enum
import os
from dataclasses import dataclass

from pctx_sandbox import sandbox

FACTOR = 3
SECRET_KEY = "never sent"
open_file = None


def scale(x):
    return x * FACTOR


@sandbox
def triple(x):
    return scale(x)


class Shape:
    def __init__(self, sides):
        self.sides = sides

    def describe(self):
        return f"{self.sides} sides"


@dataclass
class Point:
    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def environment():
    """Variables for a program that imports the package of this tree."""
    import pctx_sandbox

    paths = [os.path.dirname(path) for path in pctx_sandbox.__path__[:1]] + [os.path.dirname(__file__)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error::ResourceWarning"}
