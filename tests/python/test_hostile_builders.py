"""A hostile guest writes the fields of tagged values. What fits is built, as a control; what does not is refused."""

import dataclasses
import gc
import os
import struct
import sys
import time

import pytest
import travellers
from hostile import TAG, literal, opened, payload, tagged, tags, text
from pctx_sandbox._results import decode
from pctx_sandbox.errors import SerializationError
from pctx_sandbox.guest.encode import encode
from pctx_sandbox.guest.records import key_of

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")


def array(dtype="<i8", shape=(2,), order="C", raw=bytes(16), record=False):
    return tagged(tags.NP_ARRAY, dtype, shape, order, raw, record)


def refused(fields, reason=None, **limits):
    started = time.perf_counter()
    with pytest.raises(SerializationError, match=reason):
        opened(b"".join(fields), **limits)
    assert time.perf_counter() - started < 20


def test_an_array_is_its_bytes():
    assert opened(array()[0]).tolist() == [0, 0]
    assert opened(array(shape=(0, 5), raw=b"")[0]).shape == (0, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"dtype": dtype}
            for dtype in ("|O", "|O8", "O", "object", "<i16", "<f3", "i8", "<i8,<i8", "float", "<U0", "T", "")
        ),
        *(
            {"dtype": dtype}
            for dtype in (5, None, (), ("struct",), ("array", "<i8", (3,)), ("other", 1), ("array", "|O", (1,)))
        ),
        {"dtype": ("struct", 16, False, (("a", "|O", 0), ("b", "<i8", 8)))},
        {"dtype": ("struct", 8, False, (("a", "<i8", 4),))},
        {"dtype": ("struct", 8, False, (("a", "<i8", -8),))},
        {"dtype": ("struct", 2**40, False, (("a", "<i8", 0),))},
        {"dtype": ("struct", 0, False, ())},
        {"dtype": ("struct", 8, False, ((5, "<i8", 0),))},
        {"dtype": ("array", "<i8", (2**40, 2**40))},
        {"dtype": "<U999999999"},
        *(
            {"shape": shape}
            for shape in ((3,), (1,), (-2,), (-1, -2), (2, 1.0), (2**62, 2**62), (0, 2**63), (True, 2), 2, None)
        ),
        {"shape": (1,) * 33},
        {"shape": (0, 2**61), "raw": b""},
        {"order": "A"},
        {"order": None},
        *({"raw": raw} for raw in (b"", bytes(15), bytes(17), "text", None, 0, -1, 2**70, 1.0)),
        {"record": 1},
    ],
    ids=str,
)
def test_an_array_that_is_not_its_bytes_is_refused(wrong):
    refused(array(**wrong))


def test_bytes_are_never_taken_for_pointers():
    # The control: numpy itself would not refuse this address in a record.
    assert np.dtype([("a", "O")]).hasobject
    refused(array(dtype=("struct", 16, False, (("a", ("array", "|O8", (2,)), 0),))), "malformed")


def test_a_description_that_holds_itself_a_thousandfold_meets_its_limit():
    """Thirty mentions on each of seven levels: twenty thousand million, in a few kilobytes."""
    inner = text("<i8") + b"\x94"
    for level in range(7):
        fields = (
            b"(" + b"".join(b"(" + text(f"f{part}") + b"h" + bytes([level]) + b"K\x00t" for part in range(30)) + b"t"
        )
        inner += b"0(" + text("struct") + b"K\x08\x89" + fields + b"t\x94"
    body = b"(" + inner + b"0" + TAG + b"(K\x20h\x07(K\x01tX\x01\x00\x00\x00CC\x08" + bytes(8) + b"\x89tRt"
    refused([body], "memory|time", seconds=2)


def test_one_buffer_has_one_owner():
    """Else a write to the array changes the offsets of a table that was validated before."""
    whole = bytes(100_000)
    views = [memoryview(bytearray(whole))]
    mine = array(shape=(12_500,), raw=0)
    assert opened(mine[0], views).shape == (12_500,)
    both = b"(" + mine[0] + tagged(tags.ARROW_ARRAY, "uint8", 100_000, (None, 0), ())[0] + b"t"
    with pytest.raises(SerializationError, match="two values"):
        opened(both, views)
    again = TAG + literal((tags.NP_ARRAY, "<i8", (12_500,), "C", 0, False)) + b"\x94R" + TAG + b"h\x00R"
    with pytest.raises(SerializationError, match="two values"):
        opened(b"(" + again + b"t", views)


def test_arrow_data_cannot_be_written_through_its_buffer():
    views = [memoryview(bytearray(100_000))]
    result = opened(tagged(tags.ARROW_ARRAY, "uint8", 100_000, (None, 0), ())[0], views)
    assert not result.buffers()[1].is_mutable


OFFSETS = struct.pack("<iii", 0, 1, 2)


def arrow(kind="string", length=2, buffers=(None, OFFSETS, b"ab"), children=()):
    return tagged(tags.ARROW_ARRAY, kind, length, buffers, children)


INTS = tagged(tags.ARROW_ARRAY, "int64", 2, (None, bytes(16)), ())
FIELD = ("item", "int64", True, {})


def test_arrow_arrays_are_their_buffers():
    assert opened(arrow()[0]).to_pylist() == ["a", "b"]
    assert opened(arrow(("list", FIELD), 2, (None, OFFSETS), (INTS,))[0]).to_pylist() == [[0], [0]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"buffers": (None, struct.pack("<iii", 0, 1, 3), b"ab")},
        {"buffers": (None, struct.pack("<iii", 0, 2, 1), b"ab")},
        {"buffers": (None, struct.pack("<iii", -1, 1, 2), b"ab")},
        {"buffers": (None, struct.pack("<iii", 0, 1, 2**30), b"ab")},
        {"buffers": (None, OFFSETS[:8], b"ab")},
        {"buffers": (None, OFFSETS, None)},
        {"buffers": (None, None, b"ab")},
        {"buffers": (b"", OFFSETS, b"ab")},
        {"buffers": (None, OFFSETS, b"\xff\xfe")},
        {"buffers": (None, OFFSETS)},
        {"buffers": (None, OFFSETS, b"ab", b"")},
        {"buffers": ()},
        {"buffers": None},
        {"length": 3},
        {"length": -1},
        {"length": 2**47},
        {"length": 2**62},
        {"length": None},
        {"children": (INTS,)},
        {"kind": "large_string"},
        {"kind": "string_view"},
        {"kind": "extension<x>"},
        {"kind": "__class__"},
        {"kind": ("list", FIELD), "buffers": (None, struct.pack("<iii", 0, 1, 3)), "children": (INTS,)},
        {"kind": ("list", FIELD), "buffers": (None, OFFSETS), "children": ()},
        {"kind": ("list", ("item", "int32", True, {})), "buffers": (None, OFFSETS), "children": (INTS,)},
        {
            "kind": ("list", ("item", "int64", True, {b"ARROW:extension:name": b"x"})),
            "buffers": (None, OFFSETS),
            "children": (INTS,),
        },
        {"kind": ("struct", (FIELD,)), "length": 3, "buffers": (None,), "children": (INTS,)},
        {"kind": ("fixed_list", FIELD, 2), "length": 2, "buffers": (None,), "children": (INTS,)},
        {"kind": ("fixed_list", FIELD, -1), "length": 2, "buffers": (None,), "children": (INTS,)},
        {"kind": ("map", FIELD, FIELD, False), "buffers": (None, OFFSETS), "children": (INTS,)},
        {"kind": ("dictionary", "int64", "int64", False), "buffers": (), "children": (INTS, "x")},
        {"kind": ("dictionary", "string", "int64", False), "buffers": (), "children": (INTS, INTS)},
        {"kind": ("timestamp", "us", "../../etc/passwd"), "buffers": (None, bytes(16))},
        {"kind": ("decimal", 128, 39, 0), "buffers": (None, bytes(32))},
        {"kind": "null", "length": 2**40, "buffers": (None,)},
        {"kind": ("struct", ()), "length": 2**40, "buffers": (None,)},
    ],
    ids=str,
)
def test_arrow_arrays_that_are_not_their_buffers_are_refused(wrong):
    refused(arrow(**wrong))


def test_a_dictionary_index_that_points_outside_is_refused():
    indices = tagged(tags.ARROW_ARRAY, "int64", 1, (None, (5).to_bytes(8, "little")), ())
    kind = ("dictionary", "int64", "int64", False)
    assert opened(arrow(kind, 2, (), (INTS, INTS))[0]).to_pylist() == [0, 0]
    refused(arrow(kind, 1, (), (indices, INTS)))


def test_one_chunk_repeated_is_charged_each_time():
    chunk = tagged(tags.ARROW_ARRAY, "uint8", 60_000, (None, bytes(60_000)), ())[0]
    body = (
        TAG + b"(" + literal(tags.ARROW_CHUNKED) + text("uint8") + b"(" + chunk + b"\x94" + b"h\x00" * 50_000 + b"ttR"
    )
    refused([body], "memory")


def repeated(fields, times):
    """The same fields, remembered once and built again and again: five bytes each."""
    return b"(" + TAG + literal(fields) + b"\x94R" + (TAG + b"h\x00R") * times + b"t"


@pytest.mark.parametrize(
    "fields",
    [
        (tags.NP_ARRAY, "|u1", (1_000_000,), "C", bytes(1_000_000), False),
        (tags.NP_OBJECTS, (100_000,), (None,) * 100_000),
        (tags.DECIMAL, "1" * 1_000_000),
        (tags.OPAQUE, bytes(1_000_000), "x"),
        (tags.PATH, "PurePosixPath", "a/" * 2000),
        (tags.POLARS_SERIES, "x", "Null", (None,) * 100_000, None),
        (tags.PD_ARRAY, "string", "NA", ("x" * 1000,) * 1000),
    ],
    ids=lambda fields: fields[0],
)
def test_the_same_fields_built_many_times_meet_the_memory_limit(fields):
    assert len(opened(repeated(fields, 2))) == 3
    refused([repeated(fields, 50_000)], "memory", memory=64 << 20)


def test_building_meets_the_time_limit():
    """Looked at for every tag: a thousand builders that take a while are a long time between two looks."""
    slow = (tags.NP_OBJECTS, (300_000,), (None,) * 300_000)
    body = repeated(slow, 100_000)
    started = time.perf_counter()
    refused([body], "time limit", seconds=0.3, memory=1 << 40)
    assert time.perf_counter() - started < 2


def shared(levels, width=10):
    """Lists that hold each other: levels * width items to send, width ** levels to write out."""
    return b"]\x94" + b"".join(b"0](" + (b"h" + bytes([level])) * width + b"e\x94" for level in range(levels))


def nested(kind, levels):
    for _ in range(levels):
        kind = ("List", kind)
    return kind


def test_values_that_a_library_would_write_out_in_full_are_charged_in_full():
    assert opened(shared(3, 2)) is not None
    kind = nested("Int8", 12)
    body = TAG + b"(" + literal(tags.POLARS_SERIES) + text("x") + literal(kind) + b"(" + shared(12) + b"tNtR"
    refused([body], "memory|time", seconds=2)
    fields = b"}" + text("name") + shared(12) + b"s"
    body = TAG + b"(" + literal(tags.PYDANTIC) + text(key_of(travellers.Account)) + fields + b"tR"
    refused([body], "memory|time", types={key_of(travellers.Account): travellers.Account}, seconds=2)


def test_room_that_is_only_announced_is_charged():
    refused(tagged(tags.POLARS_SERIES, "x", ("Array", "Int8", 2**31 - 1), (None,), None), "memory")
    big = tagged(tags.PD_RANGE, 0, 2**40, 1, None)
    assert len(opened(big[0])) == 2**40  # the control: a range itself is three numbers
    refused(tagged(tags.PD_ARRAY, "interval", big, big, "left"), "memory")
    empty = array("<f8", (0, 2**31 - 1), raw=b"")
    columns = tagged(tags.PD_RANGE, 0, 2**31 - 1, 1, None)
    rows = tagged(tags.PD_RANGE, 0, 0, 1, None)
    refused(tagged(tags.PD_FRAME, empty, rows, columns, {}), "memory")
    refused(tagged(tags.PD_MULTIINDEX, (big,), (array(),), (None,)), "memory")


RANGE2 = tagged(tags.PD_RANGE, 0, 2, 1, None)


@pytest.mark.parametrize(
    "fields",
    [
        (tags.PD_SERIES, array(), tagged(tags.PD_RANGE, 0, 3, 1, None), None, {}),
        (tags.PD_SERIES, (1, 2), RANGE2, None, {}),
        (tags.PD_SERIES, array(), (1, 2), None, {}),
        (tags.PD_SERIES, array(), RANGE2, [b"]"], {}),
        (tags.PD_SERIES, array(), RANGE2, None, None),
        (tags.PD_FRAME, (array(),), RANGE2, RANGE2, {}),
        (tags.PD_FRAME, array(), RANGE2, RANGE2, {}),
        (tags.PD_FRAME, (array(), 5), RANGE2, RANGE2, {}),
        (tags.PD_RANGE, 0, 2**80, 1, None),
        (tags.PD_RANGE, 0, 5, 0, None),
        (tags.PD_MULTIINDEX, (RANGE2,), (array(raw=b"\xff" * 7 + b"\x7f" + bytes(8)),), (None,)),
        (tags.PD_MULTIINDEX, (RANGE2,), (), (None,)),
        (tags.PD_ARRAY, "categorical", array(raw=(9).to_bytes(8, "little") * 2), RANGE2, False),
        (tags.PD_ARRAY, "masked", "Int64", array(), array()),
        (tags.PD_ARRAY, "masked", "Int32", array(), array("|b1", (2,), raw=bytes(2))),
        (tags.PD_ARRAY, "masked", "object", array(), array("|b1", (2,), raw=bytes(2))),
        (tags.PD_ARRAY, "period", array(), "import os"),
        (tags.PD_ARRAY, "string", "NA", (1, 2)),
        (tags.PD_ARRAY, "arrow", array()),
        (tags.PD_ARRAY, "__class__"),
        (tags.PD_ARRAY, "datetime", array()),
        (tags.PD_ARRAY, "datetimetz", array("<M8[ns]"), "../UTC"),
        (tags.PD_TIMES, array("<M8[ns]"), "os.system('x')", None),
        (tags.PD_SCALAR, "Timestamp", "2020", None),
        (tags.PD_SCALAR, "eval", "1"),
        (tags.PD_INDEX, tagged(tags.NP_OBJECTS, (1,), ([b"]"],)), None),
        (tags.POLARS_SERIES, "x", "String", array(), None),
        (tags.POLARS_SERIES, "x", "Object", (1,), None),
        (tags.POLARS_SERIES, "x", "Int64", array(), array()),
        (tags.POLARS_SERIES, "x", "Int64", ("a",), None),
        (tags.POLARS_SERIES, "x", "col", (1,), None),
        (tags.POLARS_FRAME, (tagged(tags.POLARS_SERIES, "x", "Int64", (1,), None),) * 2, 1),
        (tags.POLARS_FRAME, (), 5),
        (tags.IMAGE, "png", b"<svg onload='x'>"),
        (tags.IMAGE, "svg", b"<svg onload='x'>"),
        (tags.OPAQUE, b"x"),
        (tags.OPAQUE, b"x", 5),
        (tags.OPAQUE, "x", "y"),
        (tags.ZONEINFO, "../../../../etc/passwd"),
        (tags.ZONEINFO, "/etc/localtime"),
        (tags.ZONEINFO, "os/path"),
        (tags.ZONEINFO, ""),
        (tags.SLICE, tagged(tags.SLICE, 1, 2, 3), 1, 1),
        (tags.SLICE, (1, 2), 1, 1),
        (tags.FRACTION, 1, 0),
        (tags.FRACTION, 1, -1),
        (tags.FRACTION, 1 << 200_000, 3),
        (tags.DECIMAL, "1E" + "9" * 30 + "x"),
        (tags.PATH, "Path", "/"),
        (tags.PATH, "PosixPath", "/" * 5000),
        (tags.UUID, -1, "safe"),
        (tags.UUID, 1 << 128, "safe"),
        (tags.RANGE, 1, 2, 0),
        (tags.RANGE, 1.0, 2, 1),
        (tags.DATE, 0),
        (tags.DATE, 10**12),
        (tags.DATETIME, 2020, 1, 1, 0, 0, 0, 0, "UTC", 0),
        (tags.DATETIME, 2020, 13, 1, 0, 0, 0, 0, None, 0),
        (tags.TIMEDELTA, 10**12, 0, 0),
        (tags.TIMEZONE, None, None),
        (tags.COMPLEX, "1", "2"),
        (tags.COMPLEX,),
        (tags.COMPLEX, 1.0, 2.0, 3.0),
        (tags.NP_SCALAR, ("array", "<i8", (1,)), bytes(8)),
        (tags.NP_SCALAR, "<i8", bytes(7)),
        (tags.NP_OBJECTS, (2,), (1,)),
        (tags.ARROW_TABLE, (("a", "int64", True, {}),), (), 0),
        (tags.ARROW_TABLE, ((), {}), (), 5),
        (tags.ARROW_BATCH, ((FIELD,), {}), (INTS,), 3),
        (tags.ARROW_CHUNKED, "int32", (INTS,)),
    ],
    ids=lambda fields: f"tag {fields[0]}",
)
def test_fields_that_do_not_fit_are_refused(fields):
    refused(tagged(*fields))


@dataclasses.dataclass
class Cleaner:
    path: str

    def __del__(self):
        travellers.ran.append(self.path)


def test_a_class_that_acts_when_it_goes_is_refused():
    travellers.ran.clear()
    Cleaner("mine")
    assert travellers.ran == ["mine"]  # the control
    travellers.ran.clear()
    body = tagged(tags.RECORD, key_of(Cleaner))[0] + b"N" + literal(("/etc/passwd",)) + b"s"
    with pytest.raises(SerializationError, match="__del__"):
        opened(body, types={key_of(Cleaner): Cleaner})
    assert travellers.ran == []


def test_messages_hold_no_control_characters():
    name = "\x1b]0;owned\x07\r"
    twice = (tagged(tags.POLARS_SERIES, name, "Int64", (1,), None),) * 2
    with pytest.raises(pl.exceptions.DuplicateError, match="\x1b"):  # the control: polars repeats the name as it is
        pl.DataFrame([pl.Series(name, [1])] * 2)
    with pytest.raises(SerializationError, match="owned") as refusal:
        opened(tagged(tags.POLARS_FRAME, twice, 1)[0])
    assert not {"\x1b", "\x07", "\r"} & set(str(refusal.value))


def test_refusals_leak_nothing():
    good = encode([{"a": [1, (2, 3)], "b": {4.5, b"x"}}, np.arange(3)]).payload
    cut = [good[:size] for size in range(len(good))]
    record = payload(tagged(tags.RECORD, key_of(travellers.Point))[0] + b"\x94N(h\x00NtsK\x01")
    types = {key_of(travellers.Point): travellers.Point}

    def round_of_all():
        for body in [*cut, record]:
            with pytest.raises(SerializationError):
                decode(body, types=types)
        decode(good)
        gc.collect()
        return sys.getallocatedblocks()

    round_of_all()
    before = round_of_all()
    for _ in range(5):
        after = round_of_all()
    assert after - before < 200


def test_no_file_is_opened_by_a_path_or_an_image_that_came_back(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    assert str(opened(tagged(tags.PATH, "PosixPath", "/etc/passwd")[0])) == "/etc/passwd"
    assert set(os.listdir("/proc/self/fd")) == before
