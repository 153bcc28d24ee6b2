"""Equality that looks at types, at NaN and at the sign of zero."""

import math
import struct


def same(left, right):
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, set | frozenset):
        return len(left) == len(right) and all(any(same(a, b) for b in right) for a in left)
    if hasattr(left, "tzinfo") and left.tzinfo is not None:
        return left.replace(tzinfo=None) == right.replace(tzinfo=None) and str(left.tzinfo) == str(right.tzinfo)
    if hasattr(left, "is_snan"):
        return str(left) == str(right)
    return left == right
