// The decoder of results on any bytes, in a real interpreter with the host's own builders: never a crash, a value or
// one of the refusals, never both. Python allocates with malloc here, so that AddressSanitizer sees every object.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "data/decoder.h"

namespace {

// A record of the caller's, an Enum and a named tuple, so that every family of builders that needs no library is
// reached.
constexpr const char* kPrepare = R"python(
import collections, dataclasses, enum, sys
sys.path.insert(0, PCTX_PYTHON_DIR)
from pctx_sandbox._rebuild import HostContext
from pctx_sandbox.guest.tags import NotData

@dataclasses.dataclass
class R:
    a: object
    b: object

class E(enum.Flag):
    A = 1
    B = 2

N = collections.namedtuple("N", "a b")
EXPECTED = NotData, TypeError, OverflowError, RecursionError, UnicodeError

class Refused(ValueError):
    pass

def context():
    buffers = [memoryview(bytearray(64)) for _ in range(3)]
    return HostContext({"m:R": R, "m:E": E, "m:N": N}, buffers, 1 << 24, 5)
)python";

PyObject* names = nullptr;

PyObject* named(const char* name) { return PyDict_GetItemString(names, name); }

void prepare() {
  setenv("PYTHONMALLOC", "malloc", 1);
  Py_InitializeEx(0);
  names = PyModule_GetDict(PyImport_AddModule("__main__"));
  PyDict_SetItemString(names, "PCTX_PYTHON_DIR", PyUnicode_FromString(PCTX_PYTHON_DIR));
  PyObject* code = Py_CompileString(kPrepare, "prepare", Py_file_input);
  if (code == nullptr || PyEval_EvalCode(code, names, names) == nullptr) {
    PyErr_Print();
    std::abort();
  }
}

}  // namespace

// The interpreter keeps what it once made; leaks of the decoder are counted by a test in tests/python instead.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (names == nullptr) prepare();
  PyObject* context = PyObject_CallNoArgs(named("context"));
  PyObject* build = PyObject_GetAttrString(context, "build");
  PyObject* fill = PyObject_GetAttrString(context, "fill");
  PyObject* key_types = PyObject_GetAttrString(context, "key_types");
  const pctx::data::Limits limits{.depth = 200, .objects = 200'000, .memory = 1 << 24, .seconds = 5};
  const std::string_view payload{reinterpret_cast<const char*>(data), size};
  PyObject* value = pctx::data::Decoder(payload, limits, {build, fill, key_types, named("Refused")}).run();
  PyObject* error = PyErr_Occurred();
  if ((value == nullptr) == (error == nullptr)) std::abort();
  if (error != nullptr) {
    const bool expected =
        PyErr_ExceptionMatches(named("Refused")) != 0 || PyErr_ExceptionMatches(named("EXPECTED")) != 0;
    if (!expected) {
      PyErr_Print();
      std::abort();
    }
    PyErr_Clear();
  }
  for (PyObject* part : {value, key_types, fill, build, context}) Py_XDECREF(part);
  return 0;
}
