"""Instances of the caller's classes come back as allowed types only, and without running their code."""

import pytest
import travellers
from hostile import literal, opened, tagged, tags
from pctx_sandbox._allowed import allowed_types, classes_in
from pctx_sandbox.errors import SerializationError
from pctx_sandbox.guest.records import key_of
from travellers import Account, Color, Frozen, Level, Numbers, Outer, Pair, Place, Point, Rights, Shape, Trap

VALUES = [
    (Color.RED, [Color]),
    ({Color.BLUE: [Color.RED]}, [Color]),
    (Level.HIGH, [Level]),
    ([Rights.READ, Rights.READ | Rights.RUN, Rights(0)], [Rights]),
    (Pair(1, [2]), [Pair]),
    ({Place(1.0, 2.0): Place(3.0)}, [Place]),
    (Point(1, Point("a")), [Point]),
    (Frozen(1, Frozen(2)), [Frozen]),
    (Outer([Point(1)], Color.RED), [Outer, Point, Color]),
    (Shape(3, [Shape(1)]), [Shape]),
    (Account(name="a", Balance=3, owner=Account(name="b", Balance=0)), [Account]),
    (Numbers([1, 2]), [Numbers]),
]


@pytest.mark.parametrize(("value", "classes"), VALUES, ids=lambda part: type(part).__name__)
def test_an_allowed_class_comes_back(through_a_box, value, classes):
    result = through_a_box(value, *classes)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(("value", "classes"), VALUES, ids=lambda part: type(part).__name__)
def test_a_class_that_was_not_allowed_is_refused_on_both_sides(encoder, value, classes):
    from pctx_sandbox._results import decode

    with pytest.raises(ValueError, match="did not ask for"):
        encoder.encode(value)
    payload, buffers = encoder.encode(value, [key_of(kind) for kind in classes])
    with pytest.raises(SerializationError, match="did not ask for"):
        decode(payload, buffers)


def test_building_a_dataclass_runs_none_of_its_code(through_a_box):
    travellers.ran.clear()
    Point(1, 2)
    assert travellers.ran == ["setattr", "setattr", "post_init"]  # the control
    travellers.ran.clear()
    assert through_a_box([Point(1, 2)], Point)[0].x == 1
    # Making the value above is all that ran here; the copy that came back ran nothing.
    assert travellers.ran == ["setattr", "setattr", "post_init"]


def test_a_dataclass_may_contain_itself(through_a_box):
    point = Point(1)
    point.y = [point]
    result = through_a_box(point, Point)
    assert result.y[0] is result


def test_attributes_beside_the_fields_are_not_lost_silently(through_a_box):
    point = Point(1)
    assert point.size == 5
    assert through_a_box(point, Point).x == 1  # a cached property can be computed again
    point.extra = 1
    with pytest.raises(ValueError, match="'extra'"):
        through_a_box(point, Point)


def types(*classes):
    return {key_of(kind): kind for kind in classes}


RECORD_OF_POINT = tagged(tags.RECORD, key_of(Point))[0]


def test_a_record_is_filled_once_and_completely():
    full = RECORD_OF_POINT + b"N" + literal((1, 2)) + b"s"
    assert opened(full, types=types(Point)).y == 2
    for body, reason in [
        (RECORD_OF_POINT, "without its fields"),
        (RECORD_OF_POINT + b"N" + literal((1,)) + b"s", "2 fields, not 1"),
        (full + b"N" + literal((1, 2)) + b"s", "open dict"),
        (RECORD_OF_POINT + b"K\x01" + literal((1, 2)) + b"s", "filled by one tuple"),
        (RECORD_OF_POINT + b"N]s", "filled by one tuple"),
        (b"]" + RECORD_OF_POINT + b"a", "without its fields"),
    ]:
        with pytest.raises(SerializationError, match=reason):
            opened(body, types=types(Point))


def test_a_record_is_no_key_since_its_hash_is_the_callers_code():
    travellers.ran.clear()
    record = RECORD_OF_POINT + b"N" + literal((1, 2)) + b"s"
    for key in (record, record + b"\x85"):
        with pytest.raises(SerializationError, match="plain data"):
            opened(b"}" + key + b"Ns", types=types(Point))
    pair = tagged(tags.NAMEDTUPLE, key_of(Pair), ([record], 1))[0]
    with pytest.raises(SerializationError, match="plain data"):
        opened(b"}" + pair + b"Ns", types=types(Point, Pair))
    assert travellers.ran == []
    hash(Point(1))
    assert "hash" in travellers.ran  # the control


def test_a_property_in_a_fields_place_does_not_run():
    travellers.ran.clear()
    with pytest.raises(SerializationError, match="descriptor"):
        opened(tagged(tags.RECORD, key_of(Trap))[0] + b"N" + literal((1,)) + b"s", types=types(Trap))
    assert travellers.ran == []


@pytest.mark.parametrize(
    "fields",
    [
        (tags.ENUM, key_of(Color), ("__class__",)),
        (tags.ENUM, key_of(Color), ("RED", "BLUE")),
        (tags.ENUM, key_of(Color), ()),
        (tags.ENUM, key_of(Color), "RED"),
        (tags.ENUM, key_of(Point), ("RED",)),
        (tags.ENUM, "os:system", ("RED",)),
        (tags.NAMEDTUPLE, key_of(Pair), (1,)),
        (tags.NAMEDTUPLE, key_of(Point), (1, 2)),
        (tags.RECORD, key_of(Color)),
        (tags.RECORD, key_of(Account)),
        (tags.RECORD, "builtins:object"),
        (tags.RECORD, 5),
        (tags.PYDANTIC, key_of(Account), {"name": "a", "balance": -1}),
        (tags.PYDANTIC, key_of(Account), {"name": "a", "balance": "x"}),
        (tags.PYDANTIC, key_of(Account), {"name": 5, "balance": 1}),
        (tags.PYDANTIC, key_of(Account), None),
    ],
)
def test_fields_that_do_not_fit_their_class_are_refused(fields):
    with pytest.raises(SerializationError):
        opened(tagged(*fields)[0], types=types(Color, Point, Pair, Account))


def test_pydantic_models_are_validated_by_the_callers_class():
    fields = {"name": "a", "balance": 1}
    assert opened(tagged(tags.PYDANTIC, key_of(Account), fields)[0], types=types(Account)).balance == 1
    with pytest.raises(SerializationError, match="did not accept"):
        opened(tagged(tags.PYDANTIC, key_of(Account), {**fields, "balance": -1})[0], types=types(Account))


def test_the_return_annotation_names_what_may_come_back():
    def function(x) -> dict[str, list[Outer] | None]: ...

    assert set(allowed_types(function).values()) == {Outer, Point, Color}
    assert classes_in(None) == classes_in(dict[str, int]) == {}
    assert set(classes_in(Account).values()) == {Account}
