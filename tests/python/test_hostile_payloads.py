"""A hostile guest writes the payload. Every refusal has its control: elsewhere, the same does its harm or its work."""

import functools
import pickle
import pickletools
import random
import resource
import struct
import time

import hostile
import pytest
from hostile import TAG, literal, opened, payload, tagged
from pctx_sandbox import _native
from pctx_sandbox._results import decode
from pctx_sandbox.errors import SerializationError
from pctx_sandbox.guest import encode, tags

# The whole vocabulary of the decoder; all other opcodes of pickle must be refused.
OPCODES_OF_DATA = """
PROTO FRAME STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE
BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2
TUPLE3 EMPTY_DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET MARK POP POP_MARK MEMOIZE BINGET LONG_BINGET EXT1
REDUCE
"""
DATA_OPCODES = set(OPCODES_OF_DATA.split())
happened = []


def harm(*arguments):
    happened.append(arguments)
    return "harm"


class Reduce:
    def __reduce__(self):
        return harm, ("reduce",)


class Build:
    def __reduce__(self):
        return Build, (), {"x": 1}

    def __setstate__(self, state):
        harm("build")


class New:
    def __new__(cls, *arguments):
        harm("new")
        return super().__new__(cls)

    def __getnewargs__(self):
        return ("x",)


class NewEx(New):
    def __getnewargs_ex__(self):
        return ("x",), {}


def attack(value, protocol=5):
    return pickle.dumps(value, protocol=protocol)


NAME = __name__.encode()
ATTACKS = {
    "reduce": attack(Reduce()),
    "reduce, protocol 0": attack(Reduce(), 0),
    "build": attack(Build()),
    "newobj": attack(New.__new__(New)),
    "newobj_ex": attack(NewEx.__new__(NewEx)),
    "global": b"\x80\x05c" + NAME + b"\nharm\n(t" + b"R.",
    "stack_global": payload(hostile.text(__name__) + hostile.text("harm") + b"\x93)R"),
    "inst": b"(i" + NAME + b"\nharm\n.",
    "obj": b"\x80\x05(c" + NAME + b"\nharm\no.",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_pickle_that_executes_is_refused(name):
    happened.clear()
    pickle.loads(ATTACKS[name])
    assert happened, "the control: unpickling runs it"
    happened.clear()
    with pytest.raises(SerializationError, match="opcode|protocol|tag"):
        decode(ATTACKS[name])
    assert not happened


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: opcode.name)
def test_an_opcode_is_data_or_refused(opcode):
    """Each opcode with plenty of operands below and bytes behind it."""
    code = opcode.code.encode("latin-1")
    body = b"](K\x01K\x02" + code + b"\x00" * 16
    message = ""
    try:
        decode(hostile.HEAD + body)
    except SerializationError as error:
        message = str(error)
    assert (f"opcode 0x{code[0]:x} is not data" in message) == (opcode.name not in DATA_OPCODES)


def rich_payload():
    import numpy

    part = ["a", 2**80, 1.5, None, True, b"xy", bytearray(b"z"), {"k": (1, 2, 3, 4)}, {1, 2}, frozenset({3}), range(3)]
    return encode.encode([part, part, {"x": numpy.arange(5), "y": complex(1, 2)}]).payload


def test_a_payload_cut_anywhere_is_refused():
    whole = rich_payload()
    assert len(decode(whole)) == 3  # the control: whole it is a value
    for size in range(len(whole)):
        with pytest.raises(SerializationError):
            decode(whole[:size])


def test_bytes_after_the_value_are_refused():
    assert decode(payload(b"N")) is None
    with pytest.raises(SerializationError, match="1 bytes follow"):
        decode(payload(b"N") + b"N")


def test_any_change_of_a_byte_gives_a_value_or_a_refusal():
    whole = rich_payload()
    chance = random.Random(4)
    values = refusals = 0
    for _ in range(30_000):
        changed = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 5))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            decode(changed)
            values += 1
        except SerializationError:
            refusals += 1
    assert values > 100 and refusals > 1000


@pytest.mark.parametrize(
    "body",
    [
        b"X\xff\xff\xff\xff",
        b"B\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
        b"\x8d" + b"\xff" * 8,
        b"\x8e" + b"\xff" * 7 + b"\x7f",
        b"\x96" + b"\x00" * 7 + b"\x80",
    ],
)
def test_a_length_beyond_the_data_allocates_nothing(body):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SerializationError, match="ends too early"):
        opened(body + b"x" * 8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize("opcode", [b"]", b"}", b"\x8f", b"N", b")", b"("])
def test_small_opcodes_that_make_large_objects_meet_the_memory_limit(opcode):
    body = b"(" + opcode * 400_000 + b"t"
    if opcode != b"(":
        assert len(opened(body)) == 400_000  # the control: with room it is a value
    with pytest.raises(SerializationError, match="memory|mark|exactly"):
        opened(body, memory=1_000_000)


def test_counts_are_limited():
    body = b"(" + b"K\x01" * 1000 + b"t"
    assert len(opened(body, objects=1100)) == 1000
    with pytest.raises(SerializationError, match="more than 900 parts"):
        opened(body, objects=900)


def test_a_giant_integer_is_charged_before_it_is_made():
    body = hostile.number(1 << 8_000_000)
    assert opened(body) == 1 << 8_000_000
    with pytest.raises(SerializationError, match="memory"):
        opened(body, memory=1_000_000)


DEEP = {
    "tuples": b")" + b"\x85" * 5000,
    "lists": b"]" * 5000 + b"a" * 4999,
    "dicts": b"}" + b"N}" * 5000 + b"s" * 5000,
    "frozensets": b"(" * 5000 + b"\x91" * 5000,
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting_is_refused_and_shallow_is_not(name):
    assert opened(DEEP[name], depth=10_000) is not None
    with pytest.raises(SerializationError, match="deeper than 1000 levels"):
        opened(DEEP[name])


def test_depth_is_followed_through_the_memo():
    links = b"".join(b"0]\x94j" + struct.pack("<I", index) + b"a" for index in range(3000))
    assert opened(b"]\x94" + links, depth=10_000) is not None
    with pytest.raises(SerializationError, match="deeper than 1000 levels"):
        opened(b"]\x94" + links)


@pytest.mark.parametrize("index", [b"h\x00", b"h\xff", b"j\xff\xff\xff\xff", b"j\x01\x00\x00\x00"])
def test_recalling_what_was_never_remembered_is_refused(index):
    assert opened(b"]\x94h\x00a")[0] is not None
    with pytest.raises(SerializationError, match="never remembered"):
        opened(index if index != b"j\x01\x00\x00\x00" else b"]\x94" + index)


def test_nothing_is_remembered_twice():
    with pytest.raises(SerializationError, match="cannot be remembered"):
        opened(b"]\x94\x94")


def test_a_container_is_changed_only_where_it_was_made():
    assert opened(b"]\x94K\x01a") == [1]
    # pickle itself lets a remembered list be filled after a builder has seen it.
    late = payload(b"]\x94h\x00K\x01a\x86")
    assert pickle.loads(late)[0] == [1]
    with pytest.raises(SerializationError, match="without an open list"):
        decode(late)


@pytest.mark.parametrize(
    "body", [b"R", b"NR", b"N)R", b"]N)R", TAG + b")R", TAG + TAG + b"R", TAG + b"NR", TAG + literal(("x",)) + b"R"]
)
def test_only_a_tag_with_fields_can_be_closed(body):
    with pytest.raises(SerializationError):
        opened(body)
    assert opened(tagged(tags.COMPLEX, 1.0, 2.0)[0]) == 1 + 2j


@pytest.mark.parametrize(
    "body",
    [TAG, TAG + b"\x85", b"]" + TAG + b"a", TAG + b"\x94", b"}N" + TAG + b"s", b"(" + TAG + b"t", b"(" + TAG + b"\x91"],
)
def test_a_tag_without_fields_is_no_value(body):
    with pytest.raises(SerializationError):
        opened(body)


@pytest.mark.parametrize("code", [0, 1, 239, 241, 255])
def test_other_extension_codes_are_refused(code):
    with pytest.raises(SerializationError, match="not ours"):
        opened(b"\x82" + bytes([code]))


@pytest.mark.parametrize("number", [0, -1, 22, 31, 99, 10**30, 2**63])
def test_an_unknown_tag_is_refused(number):
    with pytest.raises(SerializationError, match="not known|no number"):
        opened(tagged(number)[0])


@pytest.mark.parametrize("key", [b"]", b"}", b"\x8f", literal(([b"]"],)), tagged(tags.SLICE, 1, 2, 3)[0]])
def test_what_is_no_plain_data_is_no_key(key):
    assert opened(b"}" + literal((1, "x")) + b"Ns") == {(1, "x"): None}
    for body in (b"}" + key + b"Ns", b"\x8f(" + key + b"\x90", b"(" + key + b"\x91"):
        with pytest.raises(SerializationError, match="plain data"):
            opened(body)


def test_a_tuple_that_hashes_for_ever_is_refused():
    shared = b")\x94" + b"".join(b"0h" + bytes([index]) + b"h" + bytes([index]) + b"\x86\x94" for index in range(60))
    value = opened(shared)
    start = time.perf_counter()
    small = functools.reduce(lambda part, _: (part, part), range(20), ())
    hash(small)
    assert time.perf_counter() - start > 0.001 and value  # the control: each level doubles the time
    with pytest.raises(SerializationError, match="parts"):
        opened(b"}" + shared + b"Ns")


def test_keys_that_collide_meet_the_time_limit():
    step = 2**61 - 1  # every multiple hashes to the same number
    body = b"}(" + b"".join(hostile.number(step * index) + b"N" for index in range(1, 60_000)) + b"u"
    start = time.perf_counter()
    with pytest.raises(SerializationError, match="time limit"):
        opened(body, seconds=0.2)
    assert time.perf_counter() - start < 3
    assert (
        len(opened(b"}(" + b"".join(hostile.number(index) + b"N" for index in range(60_000)) + b"u", seconds=5))
        == 60_000
    )


def test_a_payload_over_its_limit_is_refused_unread():
    with pytest.raises(SerializationError, match="more than the limit"):
        opened(b"N", payload=2)


def test_the_two_sides_agree_on_their_numbers():
    assert (_native.TAG_CODE, _native.RECORD_TAG) == (tags.TAG_CODE, tags.RECORD)
    numbers = [
        value for name, value in vars(tags).items() if name.isupper() and isinstance(value, int) and value < 0xF0
    ]
    assert len(numbers) == len(set(numbers))


def test_the_decoder_takes_bytes_only():
    with pytest.raises(TypeError, match="bytes or bytearray"):
        _native.decode(memoryview(b"N."), None, None, set(), 10, 10, 1000, 1.0)
