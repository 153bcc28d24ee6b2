#include "data/decoder.h"

#include <algorithm>
#include <ctime>

namespace pctx::data {
namespace {

// What CPython 3.10 to 3.14 take on 64-bit machines, header of the collector included, rounded up.
constexpr std::uint64_t kScalarBytes = 72;  // with its place on the stack, in the middle of the stack's growth
constexpr std::uint64_t kTextBytes = 80;
constexpr std::uint64_t kContainerBytes = 96;
constexpr std::uint64_t kSetBytes = 240;
constexpr std::uint64_t kTagBytes = 512;
constexpr std::uint64_t kStepsPerLook = 1024;

// Not std::chrono's clock, which lives in the C++ runtime (growing.h says why there is none).
double seconds_now() {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// How many bytes the text takes when decoded: CPython stores 1, 2 or 4 per character, by the widest one.
std::uint64_t text_bytes(std::string_view bytes) {
  unsigned char widest = 0;
  for (const char byte : bytes) widest = std::max(widest, static_cast<unsigned char>(byte));
  const std::uint64_t width = widest >= 0xf0 ? 4 : widest >= 0xc4 ? 2 : 1;
  return kTextBytes + width * bytes.size();
}

}  // namespace

Decoder::Decoder(std::string_view payload, const Limits& limits, const Host& host)
    : cursor_(payload), limits_(limits), host_(host), deadline_(seconds_now() + std::clamp(limits.seconds, 0.0, 1e9)) {}

Decoder::~Decoder() {
  for (const Slot& slot : stack_) Py_XDECREF(slot.value);
  for (const Remembered& entry : memo_) Py_DECREF(entry.value);
}

bool Decoder::refuse_with(PyObject* what) {
  if (what == nullptr) return false;
  PyErr_Format(host_.refused, "at byte %zu: %U", cursor_.position(), what);
  Py_DECREF(what);
  return false;
}

bool Decoder::charge(std::uint64_t bytes) {
  memory_ += bytes;  // each charge is at most a few times the payload, so the sum cannot wrap
  if (memory_ > limits_.memory) return refuse("the value would take more than %llu bytes of memory", limits_.memory);
  if (++objects_ > limits_.objects) return refuse("the value has more than %llu parts", limits_.objects);
  return true;
}

// Keys whose hashes collide make one insertion as slow as the container is long: the guest gets time, not trust.
bool Decoder::in_time() {
  if (PyErr_CheckSignals() != 0) return false;
  return seconds_now() < deadline_ || refuse("decoding took longer than its time limit");
}

PyObject* Decoder::run() {
  bool done = false;
  for (std::uint64_t steps = 1; !done; ++steps) {
    Op op{};
    if (!cursor_.read(op)) return truncated(), nullptr;
    if (!step(op, done)) return nullptr;
    if (steps % kStepsPerLook == 0 && !in_time()) return nullptr;
  }
  if (stack_.size() != 1 || !marks_.empty() || stack_[0].kind == Kind::tag) {
    return refuse("the data is not exactly one value"), nullptr;
  }
  if (open_records_ != 0) return refuse("a record was left without its fields"), nullptr;
  if (cursor_.left() != 0) return refuse("%zu bytes follow the value", cursor_.left()), nullptr;
  PyObject* value = stack_[0].value;
  stack_.clear();
  return value;
}

bool Decoder::step(Op op, bool& done) {
  std::string_view bytes;
  switch (op) {
    case Op::proto: {
      std::uint8_t version = 0;
      if (!cursor_.read(version)) return truncated();
      return (version == 5 && cursor_.position() == 2) || refuse("protocol 5 is expected, once and first");
    }
    case Op::frame: {
      std::uint64_t length = 0;  // a hint for readers of streams
      return cursor_.read(length) ? true : truncated();
    }
    case Op::stop:
      done = true;
      return true;
    case Op::none:
      return Py_INCREF(Py_None), push(Py_None);
    case Op::new_true:
      return Py_INCREF(Py_True), push(Py_True);
    case Op::new_false:
      return Py_INCREF(Py_False), push(Py_False);
    case Op::bin_int: {
      std::int32_t value = 0;
      return cursor_.read(value) ? push(PyLong_FromLong(value)) : truncated();
    }
    case Op::bin_int1: {
      std::uint8_t value = 0;
      return cursor_.read(value) ? push(PyLong_FromLong(value)) : truncated();
    }
    case Op::bin_int2: {
      std::uint16_t value = 0;
      return cursor_.read(value) ? push(PyLong_FromLong(value)) : truncated();
    }
    case Op::long1:
      return cursor_.read_counted<std::uint8_t>(bytes) ? push_int(bytes) : truncated();
    case Op::long4:
      return cursor_.read_counted<std::uint32_t>(bytes) ? push_int(bytes) : truncated();
    case Op::bin_float: {
      double value = 0;
      return cursor_.read_double(value) ? push(PyFloat_FromDouble(value)) : truncated();
    }
    case Op::short_bin_unicode:
      return push_counted_text(cursor_.read_counted<std::uint8_t>(bytes), bytes);
    case Op::bin_unicode:
      return push_counted_text(cursor_.read_counted<std::uint32_t>(bytes), bytes);
    case Op::bin_unicode8:
      return push_counted_text(cursor_.read_counted<std::uint64_t>(bytes), bytes);
    case Op::short_bin_bytes:
      return push_counted_bytes(cursor_.read_counted<std::uint8_t>(bytes), bytes);
    case Op::bin_bytes:
      return push_counted_bytes(cursor_.read_counted<std::uint32_t>(bytes), bytes);
    case Op::bin_bytes8:
      return push_counted_bytes(cursor_.read_counted<std::uint64_t>(bytes), bytes);
    case Op::bytearray8:
      return cursor_.read_counted<std::uint64_t>(bytes) ? push_bytes(bytes, true) : truncated();
    default:
      return step_container(op);
  }
}

bool Decoder::step_container(Op op) {
  std::size_t from = 0;
  switch (op) {
    case Op::empty_list:
      return charge(kContainerBytes) && push_new(PyList_New(0), Kind::list);
    case Op::empty_dict:
      return charge(kContainerBytes) && push_new(PyDict_New(), Kind::dict);
    case Op::empty_set:
      return charge(kSetBytes) && push_new(PySet_New(nullptr), Kind::set);
    case Op::empty_tuple:
      return push(PyTuple_New(0), 1);
    case Op::tuple:
      return take_mark(from) && make_tuple(from);
    case Op::tuple1:
      return needs(1) && make_tuple(stack_.size() - 1);
    case Op::tuple2:
      return needs(2) && make_tuple(stack_.size() - 2);
    case Op::tuple3:
      return needs(3) && make_tuple(stack_.size() - 3);
    case Op::append:
      return needs(2) && append_from(stack_.size() - 1);
    case Op::appends:
      return take_mark(from) && append_from(from);
    case Op::set_item:
      return needs(3) && set_items_from(stack_.size() - 2);
    case Op::set_items:
      return take_mark(from) && set_items_from(from);
    case Op::add_items:
      return take_mark(from) && add_items_from(from);
    case Op::frozen_set:
      return take_mark(from) && make_frozen_set(from);
    case Op::mark:
      if (!charge(sizeof(std::size_t))) return false;
      return marks_.push_back(stack_.size()) || out_of_memory();
    case Op::pop:
      return needs(1) && drop_to(stack_.size() - 1);
    case Op::pop_mark:
      return take_mark(from) && drop_to(from);
    case Op::memoize:
      return memoize();
    case Op::bin_get: {
      std::uint8_t index = 0;
      return cursor_.read(index) ? recall(index) : truncated();
    }
    case Op::long_bin_get: {
      std::uint32_t index = 0;
      return cursor_.read(index) ? recall(index) : truncated();
    }
    case Op::ext1: {
      std::uint8_t code = 0;
      if (!cursor_.read(code)) return truncated();
      if (code != kTagCode) return refuse("extension code %d is not ours", static_cast<int>(code));
      if (!charge(kTagBytes)) return false;
      return stack_.push_back({nullptr, 0, kNoMemo, Kind::tag}) || out_of_memory();
    }
    case Op::reduce:
      return close_tag();
    default:
      return refuse("opcode 0x%x is not data", static_cast<int>(op));
  }
}

// Takes the reference, also when it fails; a null value means that an exception is set.
bool Decoder::push(PyObject* value, std::uint32_t depth, Kind kind) {
  if (value == nullptr) return false;
  if (!stack_.push_back({value, depth, kNoMemo, kind})) return Py_DECREF(value), out_of_memory();
  return charge(kScalarBytes);
}

bool Decoder::push_new(PyObject* value, Kind kind) { return push(value, 1, kind); }

bool Decoder::push_int(std::string_view bytes) {
  if (bytes.size() <= sizeof(std::int64_t)) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
    if (negative && bytes.size() < sizeof(bits)) bits |= ~std::uint64_t{0} << (8 * bytes.size());
    return push(PyLong_FromLongLong(static_cast<std::int64_t>(bits)));
  }
  if (!charge(2 * bytes.size())) return false;
  // The stable ABI of 3.10 has no call for it; int.from_bytes is linear and runs no code of the guest's.
  PyObject* raw = PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  PyObject* from_bytes = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyLong_Type), "from_bytes");
  PyObject* arguments = raw != nullptr ? Py_BuildValue("(Os)", raw, "little") : nullptr;
  PyObject* keywords = Py_BuildValue("{s:O}", "signed", Py_True);
  PyObject* value = nullptr;
  if (from_bytes != nullptr && arguments != nullptr && keywords != nullptr) {
    value = PyObject_Call(from_bytes, arguments, keywords);
  }
  Py_XDECREF(keywords);
  Py_XDECREF(arguments);
  Py_XDECREF(from_bytes);
  Py_XDECREF(raw);
  return push(value);
}

bool Decoder::push_text(std::string_view bytes) {
  if (!charge(text_bytes(bytes))) return false;
  PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogatepass");
  if (text == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
    PyErr_Clear();
    return refuse("a text is not UTF-8");
  }
  return push(text);
}

bool Decoder::push_bytes(std::string_view bytes, bool writable) {
  if (!charge(kTextBytes + bytes.size())) return false;
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  return push(writable ? PyByteArray_FromStringAndSize(bytes.data(), size)
                       : PyBytes_FromStringAndSize(bytes.data(), size));
}

bool Decoder::take_mark(std::size_t& from) {
  if (marks_.empty()) return refuse("a mark is missing");
  from = marks_.back();
  marks_.pop_back();
  return true;
}

bool Decoder::drop_to(std::size_t from) {
  while (stack_.size() > from) {
    PyObject* value = stack_.back().value;
    stack_.pop_back();
    Py_XDECREF(value);
  }
  return true;
}

// The depth of a container around everything from `from` on; a tag that was never closed is no value.
bool Decoder::children_depth(std::size_t from, std::uint32_t& depth) {
  depth = 0;
  for (std::size_t i = from; i < stack_.size(); ++i) {
    if (stack_[i].kind == Kind::tag) return refuse("a tag has no fields");
    depth = std::max(depth, stack_[i].depth);
  }
  ++depth;
  return depth <= limits_.depth || refuse("the value is nested deeper than %u levels", limits_.depth);
}

bool Decoder::deepen(Slot& slot, std::uint32_t depth) {
  slot.depth = std::max(slot.depth, depth);
  if (slot.memo != kNoMemo) memo_[slot.memo].depth = slot.depth;
  return true;
}

}  // namespace pctx::data
