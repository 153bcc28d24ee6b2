"""What goes through the encoder in one process and the decoder in another comes back the same."""

import collections
import datetime
import decimal
import fractions
import pathlib
import types
import uuid
import zoneinfo

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sameness import same

ZONES = st.sampled_from(
    [None, datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=-3, minutes=7))]
    + [zoneinfo.ZoneInfo(key) for key in ("Europe/Berlin", "America/New_York", "UTC", "Etc/GMT+5")]
)
TEXTS = st.text(st.characters(codec=None, categories=None)) | st.text("\ud800\udfffaé€\U0001f600\x00")
NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats() | st.complex_numbers() | st.booleans()
HASHABLE = st.recursive(
    st.one_of(
        st.none(),
        NUMBERS.filter(lambda number: number == number),
        TEXTS,
        st.binary(max_size=300),
        st.dates(),
        st.datetimes(timezones=ZONES),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.fractions(),
        st.uuids(),
        st.builds(pathlib.PurePosixPath, st.text("ab/.", min_size=1)),
        st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 4)),
    ),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
LEAVES = st.one_of(
    HASHABLE,
    NUMBERS,
    st.decimals(),
    st.times(timezones=ZONES),
    st.binary().map(bytearray),
    st.builds(slice, st.none() | st.integers(), st.none() | st.integers()),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(HASHABLE, inner),
        st.sets(HASHABLE),
        st.frozensets(HASHABLE),
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES)
@example([2**63, -(2**63), 2**64, -(2**2040), 2**3000, -1, 255, 256, 65535, 65536, 2**31, -(2**31)])
@example([0.0, -0.0, float("nan"), float("inf"), complex(-0.0, float("nan"))])
@example([decimal.Decimal("sNaN"), decimal.Decimal("-0E+5"), decimal.Decimal("1E+999999")])
@example(["x" * 255, "x" * 256, "é" * 40000, b"y" * 255, b"y" * 70000, bytearray(b"z" * 70000)])
@example([list(range(3000)), {number: str(number) for number in range(3000)}, set(range(3000))])
def test_a_value_comes_back_the_same(through_a_box, value):
    assert same(through_a_box(value), value)


def test_identity_inside_a_result_is_kept(through_a_box):
    part = [1]
    result = through_a_box({"a": part, "b": [part, part], "c": (part,)})
    assert result["a"] is result["b"][0] is result["b"][1] is result["c"][0]


def test_cycles_are_kept(through_a_box):
    ring: list = [1]
    ring.append({"ring": ring})
    result = through_a_box(ring)
    assert result[1]["ring"] is result
    knot: tuple = ([],)
    knot[0].append(knot)  # a tuple that contains itself: pickle takes back what it wrote and starts again
    result = through_a_box([knot, knot])
    assert result[0][0][0] is result[0] is result[1]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.deque([1, [2]], maxlen=5), [1, [2]]),
    ],
)
def test_containers_with_a_habit_come_back_plain(through_a_box, value, plain):
    result = through_a_box([value, value])
    assert same(result[0], plain) and result[0] is result[1]


def test_a_cycle_through_a_deque_is_kept(through_a_box):
    ring = collections.deque()
    ring.append({"ring": ring})
    result = through_a_box(ring)
    assert result[0]["ring"] is result


class Text(str):
    pass


class Ledger(dict):
    pass


@pytest.mark.parametrize(
    ("value", "place", "advice"),
    [
        ({"model": [0, 1, 2, object()]}, "result['model'][3] (object)", "opaque"),
        ([Text("x")], "result[0] (test_plain_values.Text)", "return str(...)"),
        ({"a": Ledger(b=1)}, "result['a'] (test_plain_values.Ledger)", "return dict(...)"),
        ((len,), "result[0] (builtin_function_or_method)", "call it"),
        ({1: int}, "result[1] (type)", "__name__"),
        ([[ValueError("x")]], "result[0][0] (ValueError)", "str(...)"),
        ({"x": types.SimpleNamespace(a=1)}, "result['x'] (types.SimpleNamespace)", "return the numbers"),
    ],
)
def test_what_is_not_data_is_named_with_its_place_and_a_way_out(through_a_box, value, place, advice):
    with pytest.raises(ValueError) as refusal:
        through_a_box(value)
    assert place in str(refusal.value) and advice in str(refusal.value)


def test_a_value_nested_too_deeply_is_refused_by_the_encoder(through_a_box):
    import functools

    import pctx_sandbox.guest.encode as guest

    deep = functools.reduce(lambda inner, _: [inner], range(100_000), [])
    with pytest.raises(ValueError, match="nested too deeply"):
        guest.encode(deep)
    assert through_a_box(functools.reduce(lambda inner, _: [inner], range(300), [])) is not None


def test_every_plain_builder_is_reached():
    """The control of the differential test: each tag of the standard library is one of its examples' kinds."""
    from pctx_sandbox.guest import plain, tags

    kinds = [1j, range(1), slice(1), datetime.date.min, datetime.time(), datetime.datetime.min, datetime.timedelta()]
    kinds += [
        datetime.timezone.utc,
        zoneinfo.ZoneInfo("UTC"),
        decimal.Decimal(1),
        fractions.Fraction(1),
        uuid.UUID(int=1),
    ]
    kinds += [pathlib.PurePosixPath("a")]
    assert {plain.describe(kind)[0] for kind in kinds} == set(plain.BUILDERS)
    assert tags.RECORD not in plain.BUILDERS
