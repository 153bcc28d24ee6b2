"""What travels with a function, what does not, and which name an error gives to what may not."""

import collections
import dataclasses
import enum
import logging
import math
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from os import environ

import neighbours
import pytest
from neighbours import Colour, Point, Shape
from pctx_sandbox import SerializationError, sandbox

pytestmark = pytest.mark.usefixtures("broker")

FACTOR = 2
TABLE = {"a": 1}
ENVIRONMENT = dict(os.environ)
CONNECTION = sqlite3.connect(":memory:")
LOCK = threading.Lock()
LOG = logging.getLogger("shipped")
PATTERN = re.compile("a+")


def helper(x):
    return x * FACTOR


@sandbox
def uses_globals(x):
    return helper(x) + TABLE["a"] + math.floor(0.5)


def test_globals_and_helpers_travel():
    assert uses_globals(3) == 7


def test_a_changed_global_is_noticed(monkeypatch):
    assert uses_globals(3) == 7
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert uses_globals(3) == 16
    monkeypatch.setitem(TABLE, "a", 100)
    assert uses_globals(3) == 115
    monkeypatch.setitem(globals(), "helper", lambda x: 0)
    assert uses_globals(3) == 100
    monkeypatch.undo()
    assert uses_globals(3) == 7


def test_changes_that_compare_equal_are_noticed(monkeypatch):
    values = [1]

    @sandbox
    def kinds():
        return [type(value).__name__ for value in values]

    assert kinds() == ["int"]
    values[0] = True
    assert kinds() == ["bool"]
    values[0] = 1.0
    assert kinds() == ["float"]


def test_changed_closures_defaults_and_code_are_noticed():
    step = 1

    def function(x, plus=0, *, times=1):
        return (x + step + plus) * times

    wrapped = sandbox(function)
    assert wrapped(1) == 2
    step = 5
    assert wrapped(1) == 6
    function.__defaults__ = (10,)
    assert wrapped(1) == 16
    function.__kwdefaults__["times"] = 2
    assert wrapped(1) == 32
    function.__code__ = (lambda x, plus=0, *, times=1: (x, step)[0]).__code__
    assert wrapped(1) == 1


def test_a_mutable_object_is_sent_as_it_is_now():
    class Counter:
        count = 0

    counter = Counter()

    @sandbox
    def read():
        return counter.count, Counter.count

    assert read() == (0, 0)
    counter.count = 3
    Counter.count = 4
    assert read() == (3, 4)


def test_a_call_changes_nothing_outside():
    @sandbox
    def change():
        TABLE["b"] = 2
        neighbours.FACTOR = 9
        return len(TABLE)

    assert change() == 2
    assert TABLE == {"a": 1}
    assert neighbours.FACTOR == 3


def test_own_modules_travel_by_value():
    @sandbox
    def calls(x):
        import sys

        return neighbours.scale(x), Shape(3).describe(), neighbours.triple(x), "neighbours" in sys.modules

    assert calls(2) == (6, "3 sides", 6, False)


def test_of_an_own_module_only_what_is_named_travels():
    function = sandbox(lambda x: neighbours.scale(x))
    call, _ = function._prepared._encode((1,), {})
    assert b"scale" in b"".join(call.parts)
    assert b"never sent" not in b"".join(call.parts)
    named = sandbox(lambda: neighbours.SECRET_KEY)
    assert named() == "never sent"  # the control: what is named does travel


def test_nothing_is_registered_for_the_whole_process():
    import cloudpickle

    uses_globals(1)
    assert cloudpickle.list_registry_pickle_by_value() == set()
    assert b"FACTOR" not in cloudpickle.dumps(neighbours.scale)


def test_instances_and_classes_of_own_modules_keep_their_identity():
    @sandbox
    def check(shape):
        return isinstance(shape, Shape), shape.describe()

    assert check(Shape(4)) == (True, "4 sides")


def test_functions_as_arguments_share_their_globals():
    def remember(x):
        global REMEMBERED
        REMEMBERED = x

    def recall():
        return REMEMBERED

    @sandbox
    def both(first, second):
        first(5)
        return second()

    assert both(remember, recall) == 5


def test_results_of_classes_that_travelled_or_are_announced():
    @sandbox
    def move(point: Point) -> Point:
        return Point(point.x + 1, point.y)

    @sandbox
    def paint():
        return {"colour": Colour.BLUE}

    assert move(Point(1, 2)) == Point(2, 2)
    assert paint() == {"colour": Colour.BLUE}


def test_annotations_do_not_travel():
    class Elsewhere:
        def __reduce__(self):
            raise RuntimeError("this was pickled")

    @sandbox
    def annotated(x: Elsewhere()) -> "NotEvenDefined":  # noqa: F821
        def inner(y: int) -> int:
            return y

        return inner(x)

    assert annotated(1) == 1


def test_standard_things_travel():
    @sandbox
    def use():
        LOG.debug("not shown")
        counted = collections.Counter("aab")
        return PATTERN.match("aa").group(), counted["a"], dataclasses.is_dataclass(Point), enum.Enum.__name__

    assert use() == ("aa", 2, True, "Enum")


def open_file():
    return open(__file__)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (open_file, "open file"),
        (lambda: socket.socketpair()[0], "socket"),
        (threading.Lock, "lock"),
        (threading.RLock, "lock"),
        (threading.Event, "threads of this process"),
        (lambda: sqlite3.connect(":memory:"), "pass its rows"),
        (lambda: (x for x in "ab"), "list"),
        (lambda: subprocess.Popen(["true"]), "process of this program"),
        (lambda: os.environ, "environment"),
        (lambda: dict(os.environ), "copy of this process's environment"),
        (lambda: {**os.environ, "X": "1"}, "copy of this process's environment"),
        (sys._getframe, "frame"),
    ],
)
def test_what_must_not_travel_is_named(make, words):
    value = make()

    @sandbox
    def takes(first, thing=None):
        return 1

    @sandbox
    def encloses():
        return value

    with pytest.raises(SerializationError, match=words) as caught:
        takes(0, value)
    assert "'thing'" in str(caught.value)
    with pytest.raises(SerializationError, match=words) as caught:
        encloses()
    assert "'value'" in str(caught.value)
    if not isinstance(value, dict | os._Environ):
        with pytest.raises(SerializationError, match=words) as caught:
            takes(0, {"deep": [value]})
        assert "'thing'" in str(caught.value)
    assert takes(0, "data") == 1  # the control
    if hasattr(value, "close"):
        value.close()
    if hasattr(value, "wait") and hasattr(value, "pid"):
        value.wait()


def uses_environment():
    return ENVIRONMENT["PATH"]


def uses_lock():
    with LOCK:
        return CONNECTION


def test_globals_are_named_also_behind_helpers():
    with pytest.raises(SerializationError, match="global variable 'ENVIRONMENT' that uses_environment"):
        sandbox(lambda: uses_environment())()
    with pytest.raises(SerializationError, match=r"global variable '(LOCK|CONNECTION)' that uses_lock"):
        sandbox(lambda: uses_lock())()
    with pytest.raises(SerializationError, match="global variable 'environ'"):
        sandbox(lambda: environ["PATH"])()


def test_a_few_chosen_variables_may_be_passed():
    chosen = {name: os.environ[name] for name in list(os.environ)[:2]}
    assert sandbox(lambda values: len(values))(chosen) == 2


def test_the_guest_has_its_own_environment():
    assert sandbox(lambda: type(os.environ).__name__)() == "_Environ"


def test_shipped_lists_what_would_travel():
    things = {thing.name: thing for thing in uses_globals.shipped()}
    assert (things["uses_globals"].kind, things["uses_globals"].how) == ("function", "by value")
    assert things["uses_globals"].size > things["helper"].size > things["FACTOR"].size > 0
    assert (things["math"].how, things["math"].size) == ("by name", 0)
    assert things["TABLE"].kind == "dict"


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    package = tmp_path / "ownpackage"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from pctx_sandbox import sandbox\n@sandbox\ndef doubled(x):\n    return x * 2\n"
    )
    (package / "sub" / "__init__.py").write_text("")
    (package / "sub" / "deep.py").write_text("from .. import doubled\nVALUE = doubled(21)\n")
    (package / "data.txt").write_text("contents")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith("ownpackage")]:
        del sys.modules[name]


def test_included_packages_can_be_imported_inside(own_package):
    def body():
        import os.path

        import ownpackage.sub.deep

        folder = os.path.dirname(ownpackage.__file__)
        try:
            open(os.path.join(folder, "new.py"), "w").close()
            writable = os.getuid() != 0
        except OSError:
            writable = False
        return ownpackage.sub.deep.VALUE, open(os.path.join(folder, "data.txt")).read(), writable

    assert sandbox(include=["ownpackage"])(body)() == (42, "contents", False)
    with pytest.raises(ModuleNotFoundError, match="ownpackage"):  # the control
        sandbox(body)()


def test_an_included_package_that_changes_is_sent_anew(own_package):
    @sandbox(include=["ownpackage"])
    def read():
        from ownpackage.sub import deep

        return deep.VALUE

    assert read() == 42
    (own_package / "sub" / "deep.py").write_text("VALUE = 'changed'\n")
    assert read() == "changed"
    files = [thing.name for thing in read.shipped() if thing.how == "included"]
    assert files == sorted(files)
    assert "ownpackage/data.txt" in files


def test_a_missing_include_is_an_error():
    with pytest.raises(SerializationError, match="cannot import 'nosuchpackage'"):
        sandbox(include=["nosuchpackage"])(lambda: 1)()


def test_a_missing_module_names_the_entry_to_add():
    @sandbox
    def imports():
        import iniconfig

        return iniconfig

    with pytest.raises(ModuleNotFoundError) as caught:
        with_module_hidden(imports)()
    assert "add 'iniconfig' to dependencies" in str(caught.value)


def with_module_hidden(function):
    """The loopback Worker shares the tests' site-packages; a box would not."""

    @sandbox
    def hidden():
        import sys

        sys.modules["iniconfig"] = None
        return function()

    return hidden
