// pctx_sandbox._native: decode(), on the stable ABI, so that one build serves every CPython from 3.10 on.
#include "data/decoder.h"

namespace {

struct State {
  PyObject* refused;
};

// The bytes of a bytes or bytearray object. `guard` keeps a bytearray from being resized meanwhile.
bool view_of(PyObject* payload, std::string_view& bytes, PyObject*& guard) {
  if (PyBytes_CheckExact(payload)) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(payload, &data, &size) != 0) return false;
    bytes = {data, static_cast<std::size_t>(size)};
    Py_INCREF(payload);
    guard = payload;
    return true;
  }
  if (PyByteArray_CheckExact(payload)) {
    guard = PyMemoryView_FromObject(payload);
    if (guard == nullptr) return false;
    bytes = {PyByteArray_AsString(payload), static_cast<std::size_t>(PyByteArray_Size(payload))};
    return true;
  }
  // The stable ABI knows the buffer protocol from 3.11 on only.
  PyErr_SetString(PyExc_TypeError, "decode() takes bytes or bytearray; copy other buffers with bytes()");
  return false;
}

PyObject* decode(PyObject* module, PyObject* arguments) {
  const auto* state = static_cast<const State*>(PyModule_GetState(module));
  PyObject* payload = nullptr;
  pctx::data::Host host{};
  unsigned int depth = 0;
  unsigned long long objects = 0;
  unsigned long long memory = 0;
  double seconds = 0;
  if (PyArg_ParseTuple(arguments, "OOOO!IKKd:decode", &payload, &host.build, &host.fill, &PySet_Type, &host.key_types,
                       &depth, &objects, &memory, &seconds) == 0) {
    return nullptr;
  }
  host.refused = state->refused;
  std::string_view bytes;
  PyObject* guard = nullptr;
  if (!view_of(payload, bytes, guard)) return nullptr;
  const pctx::data::Limits limits{.depth = depth, .objects = objects, .memory = memory, .seconds = seconds};
  PyObject* value = pctx::data::Decoder(bytes, limits, host).run();
  Py_DECREF(guard);
  return value;
}

PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS,
     "decode(payload, build, fill, key_types, depth, objects, memory, seconds)\n--\n\n"
     "The value that a guest encoded. Raises Refused for bytes that are not data or pass a limit."},
    {nullptr, nullptr, 0, nullptr},
};

int start(PyObject* module) {
  auto* state = static_cast<State*>(PyModule_GetState(module));
  state->refused = PyErr_NewExceptionWithDoc("pctx_sandbox._native.Refused",
                                             "The bytes are not data, or too much of it.", PyExc_ValueError, nullptr);
  if (state->refused == nullptr) return -1;
  Py_INCREF(state->refused);  // PyModule_AddObject takes one reference, the state keeps the other
  if (PyModule_AddObject(module, "Refused", state->refused) != 0) {
    Py_DECREF(state->refused);
    return -1;
  }
  if (PyModule_AddIntConstant(module, "TAG_CODE", pctx::data::kTagCode) != 0) return -1;
  return PyModule_AddIntConstant(module, "RECORD_TAG", pctx::data::kRecordTag);
}

int traverse(PyObject* module, visitproc visit, void* arg) {
  const auto* state = static_cast<const State*>(PyModule_GetState(module));
  if (state != nullptr) Py_VISIT(state->refused);
  return 0;
}

int clear(PyObject* module) {
  auto* state = static_cast<State*>(PyModule_GetState(module));
  if (state != nullptr) Py_CLEAR(state->refused);
  return 0;
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(start)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", nullptr, sizeof(State), methods, slots, traverse, clear, nullptr,
};

}  // namespace

// NOLINTNEXTLINE(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming)
PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
