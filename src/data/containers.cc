// The opcodes that put values into other values: tuples, lists, dicts, sets, the memo and tagged values.
#include "data/decoder.h"

namespace pctx::data {
namespace {

constexpr std::uint64_t kItemBytes = 12;    // one slot, with the growth of a list
constexpr std::uint64_t kEntryBytes = 104;  // an entry of a dict or set in the worst moment of its growth
constexpr std::uint64_t kTupleBytes = 64;
constexpr std::size_t kKeysPerLook = 512;  // even, since a dict's loop takes two

}  // namespace

bool Decoder::make_tuple(std::size_t from) {
  std::uint32_t depth = 0;
  const std::size_t count = stack_.size() - from;
  if (!children_depth(from, depth) || !charge(kTupleBytes + sizeof(PyObject*) * count)) return false;
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(count));
  if (tuple == nullptr) return false;
  for (std::size_t i = 0; i < count; ++i) {
    PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), stack_[from + i].value);  // takes the reference
  }
  stack_.shrink(from);
  return push(tuple, depth);
}

bool Decoder::append_from(std::size_t from) {
  std::uint32_t depth = 0;
  if (from == floor() || stack_[from - 1].kind != Kind::list) return refuse("items without an open list");
  if (!children_depth(from, depth) || !charge(kItemBytes * (stack_.size() - from))) return false;
  Slot& list = stack_[from - 1];
  for (std::size_t i = from; i < stack_.size(); ++i) {
    if (PyList_Append(list.value, stack_[i].value) != 0) return false;
  }
  return deepen(list, depth) && drop_to(from);
}

bool Decoder::set_items_from(std::size_t from) {
  std::uint32_t depth = 0;
  const std::size_t count = stack_.size() - from;
  if (from == floor() || count % 2 != 0) return refuse("items without an open dict");
  if (!children_depth(from, depth)) return false;
  Slot& target = stack_[from - 1];
  if (target.kind == Kind::record) return fill_record(from);
  if (target.kind != Kind::dict) return refuse("items without an open dict");
  if (!charge(kEntryBytes * (count / 2))) return false;
  for (std::size_t i = from; i < stack_.size(); i += 2) {
    if (!hashable(stack_[i].value)) return false;
    if (PyDict_SetItem(target.value, stack_[i].value, stack_[i + 1].value) != 0) return false;
    if ((i - from) % kKeysPerLook == 0 && !in_time()) return false;
  }
  return deepen(target, depth) && drop_to(from);
}

bool Decoder::add_items_from(std::size_t from) {
  std::uint32_t depth = 0;
  if (from == floor() || stack_[from - 1].kind != Kind::set) return refuse("items without an open set");
  if (!children_depth(from, depth) || !charge(kEntryBytes * (stack_.size() - from))) return false;
  Slot& set = stack_[from - 1];
  for (std::size_t i = from; i < stack_.size(); ++i) {
    if (!hashable(stack_[i].value)) return false;
    if (PySet_Add(set.value, stack_[i].value) != 0) return false;
    if ((i - from) % kKeysPerLook == 0 && !in_time()) return false;
  }
  return deepen(set, depth) && drop_to(from);
}

bool Decoder::make_frozen_set(std::size_t from) {
  std::uint32_t depth = 0;
  if (!children_depth(from, depth) || !charge(2 * kEntryBytes + kEntryBytes * (stack_.size() - from))) return false;
  PyObject* set = PyFrozenSet_New(nullptr);
  if (set == nullptr) return false;
  for (std::size_t i = from; i < stack_.size(); ++i) {
    // PySet_Add fills a frozenset that nobody else holds yet.
    const bool added = hashable(stack_[i].value) && PySet_Add(set, stack_[i].value) == 0;
    if (!added || ((i - from) % kKeysPerLook == 0 && !in_time())) return Py_DECREF(set), false;
  }
  return drop_to(from) && push(set, depth);
}

bool Decoder::memoize() {
  if (!needs(1)) return false;
  Slot& top = stack_.back();
  // A pickler remembers each object once, right after making it; so the depth in the memo has one place to follow.
  if (top.kind == Kind::tag || top.memo != kNoMemo) return refuse("this cannot be remembered");
  if (!charge(sizeof(Remembered))) return false;
  top.memo = static_cast<std::uint32_t>(memo_.size());
  if (top.memo == kNoMemo) return refuse("too many values to remember");
  if (!memo_.push_back({top.value, top.depth})) return out_of_memory();
  Py_INCREF(top.value);
  return true;
}

bool Decoder::recall(std::uint64_t index) {
  if (index >= memo_.size()) return refuse("value %llu was never remembered", index);
  const Remembered& entry = memo_[index];
  if (!charge(sizeof(Slot))) return false;
  if (!stack_.push_back({entry.value, entry.depth, static_cast<std::uint32_t>(index), Kind::closed})) {
    return out_of_memory();
  }
  Py_INCREF(entry.value);
  return true;
}

bool Decoder::close_tag() {
  if (!needs(2)) return false;
  const Slot fields = stack_.back();
  if (stack_[stack_.size() - 2].kind != Kind::tag || fields.kind == Kind::tag || !PyTuple_CheckExact(fields.value)) {
    return refuse("fields without a tag");
  }
  PyObject* number = PyTuple_Size(fields.value) > 0 ? PyTuple_GetItem(fields.value, 0) : nullptr;
  if (number == nullptr || !PyLong_CheckExact(number)) return refuse("a tag has no number");
  const long tag = PyLong_AsLong(number);
  if (tag == -1 && PyErr_Occurred() != nullptr) return PyErr_Clear(), refuse("a tag has no number");
  const std::uint32_t depth = fields.depth + 1;
  if (depth > limits_.depth) return refuse("the value is nested deeper than %u levels", limits_.depth);
  if (tag == kDictTag || tag == kListTag) {
    drop_to(stack_.size() - 2);
    return tag == kDictTag ? push(PyDict_New(), 1, Kind::dict) : push(PyList_New(0), 1, Kind::list);
  }
  if (!in_time()) return false;  // for each one: a builder may take long, and five bytes repeat it
  PyObject* value = PyObject_CallFunctionObjArgs(host_.build, fields.value, nullptr);
  if (value == nullptr) return false;
  drop_to(stack_.size() - 2);
  if (tag != kRecordTag) return push(value, depth);
  ++open_records_;
  return push(value, depth, Kind::record);
}

// None and the values: the one pair that completes a record.
bool Decoder::fill_record(std::size_t from) {
  if (stack_.size() - from != 2 || stack_[from].value != Py_None || !PyTuple_CheckExact(stack_[from + 1].value)) {
    return refuse("a record is filled by one tuple");
  }
  Slot& record = stack_[from - 1];
  PyObject* nothing = PyObject_CallFunctionObjArgs(host_.fill, record.value, stack_[from + 1].value, nullptr);
  if (nothing == nullptr) return false;
  Py_DECREF(nothing);
  --open_records_;
  record.kind = Kind::closed;
  return deepen(record, stack_[from + 1].depth + 1) && drop_to(from);
}

bool Decoder::hashable(PyObject* key) {
  if (PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBytes_CheckExact(key) || PyFloat_CheckExact(key) ||
      key == Py_None || PyBool_Check(key)) {
    return true;
  }
  return hashable_slow(key);
}

// CPython hashes tuples by recursion without a guard and without a cache: a deep one overflows the C stack, and thirty
// levels of (x, x) take minutes. So each part counts as often as the hash would visit it.
bool Decoder::hashable_slow(PyObject* key) {
  to_visit_.clear();
  if (!to_visit_.push_back(key)) return out_of_memory();
  while (!to_visit_.empty()) {
    PyObject* part = to_visit_.back();
    to_visit_.pop_back();
    if (++objects_ > limits_.objects) return refuse("the value has more than %llu parts", limits_.objects);
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(part));
    const bool named = !PyTuple_CheckExact(part) && !PyUnicode_CheckExact(part) && !PyLong_CheckExact(part) &&
                       !PyBytes_CheckExact(part) && !PyFloat_CheckExact(part) && !PyBool_Check(part) &&
                       part != Py_None && !Py_IS_TYPE(part, &PyFrozenSet_Type);
    if (named) {
      const int listed = PySet_Contains(host_.key_types, type);
      if (listed < 0) return false;
      if (listed == 0) return refuse("a dict key or set element of type %S is not plain data", type);
    }
    if (!PyTuple_Check(part)) continue;  // a frozenset keeps the hashes of its elements, which were looked at before
    const Py_ssize_t size = PyTuple_Size(part);
    if (static_cast<std::uint64_t>(size) > limits_.objects - objects_) {
      return refuse("the value has more than %llu parts", limits_.objects);
    }
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!to_visit_.push_back(PyTuple_GetItem(part, i))) return out_of_memory();
    }
  }
  return true;
}

}  // namespace pctx::data
