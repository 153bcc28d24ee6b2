// Turns what a guest sent into Python values, without running anything. The bytes are a subset of pickle's (opcodes.h),
// so that the guest encodes at the speed of its C pickler; the meaning is ours. The decoder is a loop over a stack,
// never recursive, and every allocation is charged to a budget before it is made.
//
// Why a value can be trusted to be what it looks like, whatever the bytes were:
//  - a container is changed only in the stack slot in which it was made, so once it lies in another value, or was
//  handed to
//    the builder of a tagged value, nothing after it can change it (a check would otherwise be worth nothing later);
//  - what a dict key or set element is made of is looked at before it is hashed: plain data only, so no method of the
//    caller's classes runs, and nested tuples are counted as often as the hash would visit them.
#pragma once

#define PY_SSIZE_T_CLEAN  // NOLINT(readability-identifier-naming): the name is CPython's
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/cursor.h"
#include "data/growing.h"
#include "data/opcodes.h"

namespace pctx::data {

struct Limits {
  std::uint32_t depth = 1000;
  std::uint64_t objects = 10'000'000;
  std::uint64_t memory = std::uint64_t{1} << 30;
  double seconds = 10;
};

// What the host's own code contributes; all borrowed for the time of one decode.
struct Host {
  PyObject* build;      // build(fields: tuple) -> value of a tag; fields[0] is the tag's number
  PyObject* fill;       // fill(record, values): completes what build made for kRecordTag
  PyObject* key_types;  // set of further types that may be hashed
  PyObject* refused;    // the exception class for bytes that are not data
};

class Decoder {
 public:
  Decoder(std::string_view payload, const Limits& limits, const Host& host);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // A new reference, or nullptr with a Python exception set.
  PyObject* run();

 private:
  enum class Kind : std::uint8_t { closed, list, dict, set, record, tag };
  static constexpr std::uint32_t kNoMemo = 0xffffffff;

  struct Slot {
    PyObject* value;  // owned; nullptr for Kind::tag
    std::uint32_t depth;
    std::uint32_t memo;
    Kind kind;
  };
  struct Remembered {
    PyObject* value;  // owned
    std::uint32_t depth;
  };

  bool step(Op op, bool& done);
  bool step_container(Op op);
  // Sets the exception and returns false; the format is that of PyUnicode_FromFormat.
  template <class... Arguments>
  bool refuse(const char* format, Arguments... arguments) {
    return refuse_with(PyUnicode_FromFormat(format, arguments...));
  }
  bool refuse_with(PyObject* what);
  bool truncated() { return refuse("the data ends too early"); }
  bool out_of_memory() { return PyErr_NoMemory(), false; }
  bool charge(std::uint64_t bytes);
  bool in_time();

  bool push(PyObject* value, std::uint32_t depth = 0, Kind kind = Kind::closed);
  bool push_new(PyObject* value, Kind kind);
  bool push_int(std::string_view bytes);
  bool push_text(std::string_view bytes);
  bool push_bytes(std::string_view bytes, bool writable);
  bool push_counted_text(bool read, std::string_view bytes) { return read ? push_text(bytes) : truncated(); }
  bool push_counted_bytes(bool read, std::string_view bytes) { return read ? push_bytes(bytes, false) : truncated(); }

  bool take_mark(std::size_t& from);
  std::size_t floor() const noexcept { return marks_.empty() ? 0 : marks_.back(); }
  bool needs(std::size_t count) { return stack_.size() - floor() >= count || refuse("an operand is missing"); }
  bool drop_to(std::size_t from);
  bool children_depth(std::size_t from, std::uint32_t& depth);
  bool deepen(Slot& slot, std::uint32_t depth);

  bool make_tuple(std::size_t from);
  bool append_from(std::size_t from);
  bool set_items_from(std::size_t from);
  bool add_items_from(std::size_t from);
  bool make_frozen_set(std::size_t from);
  bool memoize();
  bool recall(std::uint64_t index);
  bool close_tag();
  bool fill_record(std::size_t from);
  bool hashable(PyObject* key);
  bool hashable_slow(PyObject* key);

  Cursor cursor_;
  Limits limits_;
  Host host_;
  std::uint64_t objects_ = 0;
  std::uint64_t memory_ = 0;
  std::size_t open_records_ = 0;
  double deadline_;  // seconds of the monotonic clock
  Growing<Slot> stack_;
  Growing<std::size_t> marks_;
  Growing<Remembered> memo_;
  Growing<PyObject*> to_visit_;
};

}  // namespace pctx::data
