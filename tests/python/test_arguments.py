"""Calls on their way in: code by cloudpickle, arrays and frames as data, sealed values opened in the box only."""

import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pctx_sandbox._arguments import dependency_for, encode_call, missing_library
from pctx_sandbox._buffers import map_buffers, pack
from pctx_sandbox._opaque import Opaque
from pctx_sandbox._results import decode
from pctx_sandbox.errors import SerializationError
from pctx_sandbox.guest import arguments, encode
from pctx_sandbox.guest.tags import MissingLibrary
from travellers import Account, Color, Point

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")


def into_a_box(call):
    encoded = encode_call(call)
    fd, table = pack(encoded.buffers)
    try:
        return arguments.loads(encoded.payload, map_buffers(fd, table))
    finally:
        os.close(fd)


def test_functions_travel_with_what_they_use():
    scale = 3

    def function(values):
        return [value * scale for value in values]

    loaded, values = into_a_box((function, [1, 2]))
    assert loaded(values) == [3, 6] and loaded is not function


@pytest.mark.parametrize(
    "value",
    [
        np.arange(5),
        np.zeros((200, 300)),
        np.asfortranarray(np.ones((200, 300))),
        np.float64(2),
        np.array([1, "x"], object),
    ],
    ids=str,
)
def test_arrays_arrive_writable(value):
    result = into_a_box({"data": value})["data"]
    assert result.dtype == value.dtype and (result == value).all()
    if value.ndim:
        result[...] = 0


def test_a_read_only_array_costs_no_second_copy_and_arrives_writable():
    value = np.zeros(100_000)
    value.flags.writeable = False
    result = into_a_box(value)
    result[0] = 1
    assert value[0] == 0


def test_what_a_call_mapped_goes_with_its_values():
    gc.collect()
    before = Path("/proc/self/maps").read_text().count("pctx-buffers")
    values = into_a_box([np.zeros(50_000), np.ones(50_000)])
    assert values[1].sum() == 50_000
    del values
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("pctx-buffers") == before


def test_frames_and_tables_arrive():
    frame = pd.DataFrame({"a": range(20_000), "b": "x", "c": pd.Timestamp("2020", tz="UTC")})
    table = pa.Table.from_pandas(frame)
    pd.testing.assert_frame_equal(into_a_box([frame])[0], frame)
    assert into_a_box(table).equals(table)


def test_a_call_names_no_module_of_numpy_or_pandas():
    """Private modules move between versions: numpy._core was numpy.core."""
    frame = pd.DataFrame({"a": [1.5], "b": ["x"], "c": [pd.Timestamp("2020")], "d": pd.Categorical(["x"])})
    call = {"frame": frame, "array": np.arange(3), "scalar": np.int64(1), "stamp": pd.Timestamp("2020")}
    assert b"pandas." in pickle.dumps(call) and b"numpy." in pickle.dumps(call)  # the control
    payload = encode_call(call).payload
    assert b"pandas" not in payload and b"numpy" not in payload


def test_other_classes_keep_their_own_out_of_band_buffers():
    class Blob:
        def __init__(self, data):
            self.data = data

        def __reduce_ex__(self, protocol):
            return Blob, (pickle.PickleBuffer(self.data),)

    call = [Blob(bytearray(b"x" * 100_000)), np.zeros(50_000), Blob(bytearray(b"y" * 10))]
    encoded = encode_call(call)
    assert len(encoded.buffers) == 2 and len(encoded.payload) < 10_000
    first, array, last = into_a_box(call)
    assert bytes(first.data) == b"x" * 100_000 and array.sum() == 0 and bytes(last.data) == b"y" * 10


def test_classes_that_travel_are_remembered():
    class Local:
        pass

    travelled = encode_call((Point(1), [Color.RED], Account, Local())).travelled
    assert set(travelled.values()) == {Point, Color, Account}


@pytest.mark.parametrize(
    ("value", "name", "advice"),
    [
        (os.environ, "call['x'][1] (os._Environ)", "single values"),
        (sys.__stderr__, "call['x'][1] (_io.TextIOWrapper)", "contents"),
        (threading.Lock(), "call['x'][1] (_thread.lock)", "lock"),
    ],
    ids=str,
)
def test_live_things_are_refused_with_their_place(value, name, advice):
    with pytest.raises(SerializationError) as refusal:
        encode_call({"x": [0, value]})
    assert name in str(refusal.value) and advice in str(refusal.value)


def test_a_live_thing_that_the_function_uses_is_refused():
    lock = threading.Lock()
    with pytest.raises(SerializationError, match=r"a variable of the function \(_thread.lock\)"):
        encode_call(lambda: lock)


def test_a_library_the_environment_lacks_names_the_entry_to_add(monkeypatch):
    encoded = encode_call(pd.Timestamp("2020"))
    assert arguments.loads(encoded.payload) == pd.Timestamp("2020")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibrary) as missing:
        arguments.loads(encoded.payload)
    error = missing_library(missing.value.library, missing.value.what)
    assert "add 'pandas' to dependencies=" in str(error)
    assert dependency_for("PIL") == "pillow" and dependency_for("no_such_module") == "no_such_module"


def test_a_sealed_value_is_opened_in_the_box_only():
    encoded = encode.encode_opaque({"model": 5}, lambda value, protocol: pickle.dumps(Trap(), protocol))
    handle = decode(encoded.payload)
    assert type(handle) is Opaque and handle.label == "dict" and not TRAPPED
    again = pickle.loads(pickle.dumps(handle))
    assert again == handle and not TRAPPED
    call = encode_call([handle])
    assert not TRAPPED
    assert arguments.loads(call.payload) == ["opened"]
    assert TRAPPED == [True]  # the control: what it holds does run where it is opened


TRAPPED: list[bool] = []


def spring():
    TRAPPED.append(True)
    return "opened"


class Trap:
    def __reduce__(self):
        return spring, ()


def test_a_large_sealed_value_travels_beside_the_payload():
    encoded = encode.encode_opaque(b"x" * 200_000, pickle.dumps)
    assert len(encoded.payload) < 200 and len(encoded.buffers) == 1
    handle = decode(encoded.payload, encoded.buffers)
    assert len(handle) > 200_000
    assert into_a_box(handle) == b"x" * 200_000


def test_a_handle_is_saved_and_loaded(tmp_path):
    handle = Opaque(b"sealed", "sklearn.Model\x1b[31m")
    assert handle.label == "sklearn.Model?[31m"
    handle.save(tmp_path / "model")
    loaded = Opaque.load(tmp_path / "model")
    assert loaded == handle and loaded.label == handle.label and bytes(loaded) == b"sealed"
    (tmp_path / "other").write_bytes(b"something")
    with pytest.raises(ValueError, match="no saved Opaque"):
        Opaque.load(tmp_path / "other")


BARE = """
import sys
sys.path.insert(0, sys.argv[1])
from guest.encode import encode  # the name it has inside a box, where the package around it is not
from guest import arguments
assert not {"numpy", "pandas", "pyarrow", "polars", "PIL", "matplotlib"} & set(sys.modules), sys.modules
sys.stdout.buffer.write(encode({"a": [1, 2.5], "d": range(3)}).payload)
"""


@pytest.mark.parametrize("flags", [["-I", "-S"], ["-I", "-S", "-O"]])
def test_the_guests_side_needs_the_standard_library_only(flags):
    source = Path(__file__).resolve().parent.parent.parent / "python" / "pctx_sandbox"
    done = subprocess.run([sys.executable, *flags, "-c", BARE, str(source)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert decode(done.stdout) == {"a": [1, 2.5], "d": range(3)}
