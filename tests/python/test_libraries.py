"""numpy, pandas, Arrow, polars and images come back with their dtypes, as the caller's own libraries build them."""

import datetime
import decimal
import io
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.extra import numpy as arrays
from pctx_sandbox._results import decode
from pctx_sandbox.errors import SerializationError
from pctx_sandbox.guest.encode import encode

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pl = pytest.importorskip("polars")

DTYPES = (
    arrays.integer_dtypes(endianness="?")
    | arrays.unsigned_integer_dtypes(endianness="?")
    | arrays.floating_dtypes(endianness="?")
    | arrays.complex_number_dtypes(endianness="?")
    | arrays.boolean_dtypes()
    | arrays.byte_string_dtypes(min_len=1)
    | arrays.unicode_string_dtypes(min_len=1)
    | arrays.datetime64_dtypes()
    | arrays.timedelta64_dtypes()
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))
def test_an_array_comes_back_the_same(array):
    """In one process: on the way to another, numpy's own pickle would change the byte order."""
    for value in (array, array.T, array[::2] if array.ndim else array):
        encoded = encode(value)
        result = decode(encoded.payload, encoded.buffers)
        assert result.dtype == value.dtype and result.shape == value.shape and result.flags.writeable
        assert result.tobytes() == value.tobytes()


ARRAYS = [
    np.zeros((300, 400)),
    np.asfortranarray(np.arange(20_000.0).reshape(100, 200)),
    np.array([(1, 2.5, [1, 2])], dtype=[("a", "<i4"), ("b", ">f8"), ("c", "u1", (2,))]),
    np.array([((1, 2), 3)], dtype=[("in", [("x", "i1"), ("y", "i8")]), ("z", "i4")]),
    np.zeros(2, dtype=np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    np.array([1, "x", None, [2], {"k": 1}], dtype=object),
    np.array([[1, None], ["a", 2]], dtype=object),
    np.array("2020-01-01", dtype="M8[25s]"),
    np.array([], dtype="U5"),
    np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    np.arange(10, dtype="f2"),
    np.array(5.5),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_special_arrays_come_back_the_same(through_a_box, array):
    result = through_a_box(array)
    assert type(result) is type(array) and result.dtype == array.dtype and result.shape == array.shape
    plain = array.dtype.hasobject
    assert result.tolist() == array.tolist() if plain else result.tobytes() == array.tobytes()
    assert result.flags.writeable


@pytest.mark.parametrize(
    "scalar",
    [
        *(
            np.int8(-1),
            np.float64(1.5),
            np.float32("nan"),
            np.bool_(True),
            np.str_("é"),
            np.bytes_(b"x"),
            np.complex64(1j),
        ),
        *(np.datetime64("2020-01-01T00", "h"), np.timedelta64(5, "ms"), np.datetime64("NaT")),
    ],
    ids=lambda scalar: str(scalar.dtype),
)
def test_scalars_keep_their_dtype_and_may_be_keys(through_a_box, scalar):
    result = through_a_box([scalar, {scalar: 1}])
    assert type(result[0]) is type(scalar) and result[0].dtype == scalar.dtype
    assert result[0].tobytes() == scalar.tobytes() and len(result[1]) == 1


FRAME = pd.DataFrame(
    {
        "int": [1, 2, 3],
        "text": ["a", None, "c"],
        "zoned": pd.date_range("2020", periods=3, tz="Europe/Paris"),
        "fixed": pd.to_datetime(["2020"] * 3).tz_localize(datetime.timezone(datetime.timedelta(hours=2))),
        "seconds": np.array(["1500", "2020", "NaT"], dtype="M8[s]"),
        "category": pd.Categorical(["x", None, "y"], categories=["y", "x", "z"], ordered=True),
        "Int64": pd.array([1, None, 3], "Int64"),
        "Float32": pd.array([1.5, None, 3], "Float32"),
        "boolean": pd.array([True, None, False], "boolean"),
        "string": pd.array(["é", None, "\U0001f600"], "string"),
        "objects": pd.Series([1, "a", [1]], dtype=object),
        "interval": pd.interval_range(0, 3),
        "period": pd.period_range("2020", periods=3, freq="M"),
        "delta": pd.to_timedelta([1, 2, None], "s"),
        "arrow": pd.array([1, None, 2], dtype=pd.ArrowDtype(pa.int32())),
        "arrow text": pd.array(["a", None, "b"], dtype=pd.ArrowDtype(pa.string())),
    }
)
FRAMES = {
    "all dtypes": FRAME,
    "sliced": FRAME.iloc[1:],
    "one dtype": pd.DataFrame(np.arange(40_000.0).reshape(10_000, 4), columns=list("abcd")),
    "multiindex": FRAME.set_index(["int", "text"])[["Int64"]],
    "columns of two levels": pd.DataFrame(
        [[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["x", None])
    ),
    "dates": pd.DataFrame({"a": [1, 2]}, index=pd.date_range("2020", periods=2, freq="D", name="day")),
    "same name twice": pd.DataFrame([[1, "x"]], columns=["a", "a"]),
    "empty": pd.DataFrame(),
    "no rows": FRAME.iloc[:0],
    "no columns": pd.DataFrame(index=[1, 2]),
    "labels of many kinds": pd.DataFrame([[1, 2, 3]], columns=[1, "a", ("t", 2)]),
    "categories as index": FRAME.set_index("category")[["int"]],
    "periods as index": FRAME.set_index("period")[["int"]],
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_comes_back_with_its_dtypes(through_a_box, name):
    frame = FRAMES[name]
    result = through_a_box(frame)
    pd.testing.assert_frame_equal(result, frame, check_freq=True, check_column_type=True)
    assert list(result.dtypes) == list(frame.dtypes) and type(result.index) is type(frame.index)


def test_a_frame_that_came_back_can_be_written_to(through_a_box):
    result = through_a_box(FRAMES["one dtype"])
    result.loc[0, "a"] = 7.5
    result["new"] = 1
    assert result.loc[0, "a"] == 7.5
    array = through_a_box(np.zeros(100_000))
    array[5] = 1
    assert array.sum() == 1


@pytest.mark.parametrize("column", FRAME.columns)
def test_a_series_and_its_array_come_back(through_a_box, column):
    series = FRAME[column].rename(("a", 1))
    series.attrs["unit"] = "m"
    result = through_a_box(series)
    pd.testing.assert_series_equal(result, series)
    assert result.attrs == {"unit": "m"}


def test_pandas_scalars_come_back(through_a_box):
    values = [pd.Timestamp("2020-05-05 01:02:03.123456789"), pd.Timestamp("2020", tz="America/New_York")]
    values += [pd.Timedelta("1s"), pd.Period("2020-01", "M"), pd.Interval(0, 1.5, closed="both")]
    results = through_a_box([*values, pd.NaT, pd.NA, {values[0]: 1}])
    assert results[: len(values)] == values and [type(value) for value in values] == list(map(type, results[:5]))
    assert results[5] is pd.NaT and results[6] is pd.NA and results[7] == {values[0]: 1}


TABLE = pa.table(
    {
        "int": pa.array([1, None, 3], pa.int16()),
        "text": ["x", "", None],
        "large": pa.array(["x", None, "é"], pa.large_string()),
        "bytes": [b"x", None, b""],
        "list": [[1], [], None],
        "nested": [[["a"], []], None, [[None]]],
        "large list": pa.array([[1], None, []], pa.large_list(pa.int8())),
        "fixed list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        "struct": [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}],
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
        "stamp": pa.array([1, None, 3], pa.timestamp("us", "Europe/Berlin")),
        "time": pa.array([1, None, 3], pa.time64("ns")),
        "date": pa.array([1, None, 3], pa.date32()),
        "duration": pa.array([1, None, 3], pa.duration("s")),
        "decimal": pa.array([decimal.Decimal("1.20"), None, decimal.Decimal("-3")]),
        "bool": [True, False, None],
        "null": pa.nulls(3),
        "half": pa.array(np.arange(3, dtype="f2")),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    }
).replace_schema_metadata({"origin": "test"})


@pytest.mark.parametrize("name", TABLE.column_names)
def test_an_arrow_column_comes_back_whole_and_sliced(through_a_box, name):
    for part in (TABLE[name], TABLE[name].chunk(0), TABLE[name].slice(1, 1), TABLE[name].slice(1, 2).chunk(0)):
        result = through_a_box(part)
        assert result.equals(part) and result.type == part.type
        result.validate(full=True)


def test_arrow_tables_and_batches_come_back(through_a_box):
    many = pa.concat_tables([TABLE, TABLE.slice(1)])
    assert through_a_box(many).equals(many, check_metadata=True)
    batch = TABLE.to_batches()[0]
    assert through_a_box(batch).equals(batch)
    assert through_a_box(pa.table({})).num_columns == 0


def test_a_slice_of_a_large_table_sends_only_itself(encoder):
    large = pa.table({"a": np.arange(1_000_000)}).slice(10, 5)
    payload, buffers = encoder.encode(large["a"].chunk(0))
    assert len(payload) + sum(buffer.nbytes for buffer in buffers) < 5000


POLARS = pl.DataFrame(
    {
        "int": [1, None, 3],
        "float": [1.5, float("nan"), None],
        "text": ["x", None, "é"],
        "bytes": [b"x", None, b""],
        "bool": [True, None, False],
        "date": [datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1)],
        "stamp": [datetime.datetime(2020, 1, 1), None, datetime.datetime(1970, 1, 1, 0, 0, 1)],
        "time": [datetime.time(1, 2), None, datetime.time(3)],
        "duration": [datetime.timedelta(1), None, datetime.timedelta(0, 1)],
        "list": [[1], [], None],
        "struct": [{"x": 1, "y": "q"}] * 3,
        "decimal": [decimal.Decimal("1.2"), None, decimal.Decimal("3.4")],
        "category": pl.Series(["a", "b", None], dtype=pl.Categorical),
        "enum": pl.Series(["a", "b", None], dtype=pl.Enum(["b", "a"])),
        "array": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int8, 2)),
        "null": [None, None, None],
    }
).with_columns(pl.col("stamp").dt.replace_time_zone("Europe/Berlin").alias("zoned"))


@pytest.mark.parametrize("name", POLARS.columns)
def test_a_polars_column_comes_back(through_a_box, name):
    result = through_a_box(POLARS[name])
    assert result.equals(POLARS[name]) and result.name == name and result.dtype == POLARS[name].dtype


def test_a_polars_frame_comes_back(through_a_box):
    result = through_a_box(POLARS)
    assert result.equals(POLARS) and result.schema == POLARS.schema


def test_figures_and_images_come_back_as_images(through_a_box):
    from matplotlib.figure import Figure
    from pctx_sandbox.guest.images import Image
    from PIL import Image as pil

    figure = Figure()
    figure.subplots().plot([1, 2])
    for value in (figure, pil.new("RGB", (2, 3), "red"), pil.new("CMYK", (2, 3)), pil.new("F", (2, 3))):
        result = through_a_box({"plot": value})["plot"]
        assert type(result) is Image
        assert pil.open(io.BytesIO(result.data)).size == result.to_pil().size
    png = through_a_box(figure)
    assert png._repr_png_() == png._repr_mimebundle_()["image/png"] == png.data
    assert through_a_box(png) == png


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (np.ma.array([1, 2], mask=[0, 1]), "filled"),
        (np.asarray([[1]]).view(np.matrix), "numpy.asarray"),
        (pd.Series([0, 0, 1], dtype="Sparse[int]"), "astype"),
        (pa.scalar(1), "as_py"),
        (pc.run_end_encode(pa.array([1, 1])), "cast"),
        (pd.DataFrame({"a": [1]}).groupby("a"), "aggregate"),
        (pl.DataFrame({"a": [1]}).lazy(), "collect"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_does_not_travel_says_what_to_return(value, advice):
    with pytest.raises(ValueError, match=advice):
        encode({"x": value})


@pytest.mark.parametrize("library", ["numpy", "pandas", "pyarrow", "polars"])
def test_a_library_the_caller_lacks_is_named_with_both_ways_out(encoder, monkeypatch, library):
    value = {"numpy": np.arange(3), "pandas": pd.NaT, "pyarrow": pa.array([1]), "polars": POLARS}[library]
    payload, buffers = encoder.encode(value)
    decode(payload, buffers)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        SerializationError, match=rf"(?s){library} is not installed here.*install {library}.*plain data"
    ):
        decode(payload, buffers)
