from collections.abc import Callable
from typing import Any

TAG_CODE: int
RECORD_TAG: int

class Refused(ValueError): ...

def decode(
    payload: bytes | bytearray,
    build: Callable[[tuple[Any, ...]], object],
    fill: Callable[[Any, tuple[Any, ...]], None],
    key_types: set[type],
    depth: int,
    objects: int,
    memory: int,
    seconds: float,
    /,
) -> Any: ...
