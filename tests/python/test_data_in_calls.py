"""Values through whole calls: the data path in its frames, with and without large buffers."""

import os

import pytest
from pctx_sandbox import Opaque, SerializationError, sandbox

pytestmark = pytest.mark.usefixtures("broker")


# The loopback Worker shares the tests' packages; a box has those of its Environment.
REAL = os.environ.get("PCTX_TEST_BROKER") == "real"
NUMPY = ["numpy"] if REAL else None
PANDAS = ["pandas"] if REAL else None


@sandbox
def same(value):
    return value


def test_plain_values_come_back():
    value = {"a": [1, 2.5, None, True], "b": ("x", b"y"), 3: {1, 2}, "big": 10**50}
    assert same(value) == value


def test_shared_parts_and_cycles_stay_shared():
    inner = [1]
    outer = [inner, inner]
    outer.append(outer)
    back = same(outer)
    assert back[0] is back[1]
    assert back[2] is back


@pytest.mark.parametrize("size", [10, 100_000, 5_000_000])
def test_texts_and_bytes_of_every_size(size):
    assert same("x" * size) == "x" * size
    assert same([bytes(size)]) == [bytes(size)]


def test_arrays_travel_both_ways_and_stay_writable():
    np = pytest.importorskip("numpy")

    @sandbox(NUMPY)
    def add_one(array):
        array += 1
        return {"array": array, "sum": array.sum()}

    for size in (10, 1_000_000):
        given = np.arange(size, dtype="float64")
        back = add_one(given)
        assert back["array"].tolist()[-1] == size
        assert back["sum"] == given.sum() + size
        back["array"][0] = 7
        assert given[0] == 0


def test_frames_travel_both_ways():
    pd = pytest.importorskip("pandas")

    @sandbox(PANDAS)
    def describe(frame):
        return frame.assign(c=frame["a"] * 2)

    frame = pd.DataFrame({"a": range(20_000), "b": ["text"] * 20_000})
    pd.testing.assert_frame_equal(describe(frame), frame.assign(c=frame["a"] * 2))


def test_a_box_without_memfds_sends_its_buffers_itself():
    np = pytest.importorskip("numpy")

    @sandbox(NUMPY)
    def refused(size):
        import os

        import numpy

        def refuse(*_):
            raise OSError(38, "refused")

        os.memfd_create = refuse
        return [numpy.arange(size), numpy.ones(size)]

    first, second = refused(300_000)
    assert np.array_equal(first, np.arange(300_000))
    assert second.sum() == 300_000


def test_opaque_values_are_opened_only_in_boxes(tmp_path):
    @sandbox(returns="opaque")
    def make():
        return lambda x: x + 1

    @sandbox
    def use(function, x):
        return function(x)

    handle = make()
    assert isinstance(handle, Opaque)
    assert use(handle, 1) == 2
    handle.save(tmp_path / "saved")
    assert use(Opaque.load(tmp_path / "saved"), 2) == 3
    with pytest.raises(SerializationError):
        sandbox(make.plain_function())()


def test_a_large_result_is_refused_by_its_size():
    @sandbox
    def large():
        return ["x" * 1000] * 10, bytes(300 << 20)

    with pytest.raises(Exception, match=r"limit|memory"):
        large()
