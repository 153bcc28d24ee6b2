// The opcodes of pickle protocol 5 that are data. What is not listed is refused: there is no GLOBAL, STACK_GLOBAL,
// INST, OBJ, NEWOBJ, NEWOBJ_EX, BUILD, PERSID, BINPERSID, EXT2, EXT4, PUT, DUP, NEXT_BUFFER or text-mode opcode to get
// wrong.
#pragma once

#include <cstdint>

namespace pctx::data {

enum class Op : std::uint8_t {
  proto = 0x80,
  frame = 0x95,
  stop = '.',

  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  long1 = 0x8a,
  long4 = 0x8b,
  bin_float = 'G',
  short_bin_unicode = 0x8c,
  bin_unicode = 'X',
  bin_unicode8 = 0x8d,
  short_bin_bytes = 'C',
  bin_bytes = 'B',
  bin_bytes8 = 0x8e,
  bytearray8 = 0x96,

  empty_list = ']',
  append = 'a',
  appends = 'e',
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_dict = '}',
  set_item = 's',
  set_items = 'u',
  empty_set = 0x8f,
  add_items = 0x90,
  frozen_set = 0x91,

  mark = '(',
  pop = '0',
  pop_mark = '1',
  memoize = 0x94,
  bin_get = 'h',
  long_bin_get = 'j',

  ext1 = 0x82,   // with kTagCode: opens a tagged value
  reduce = 'R',  // closes it; only a tag can lie below its fields, so nothing is ever called by a name of the guest's
};

// The one extension code the guest's encoder registers (240 to 255 are for private use).
inline constexpr std::uint8_t kTagCode = 0xf0;
// The tag whose value is made first and filled later, by one SETITEM, so that it may contain itself.
inline constexpr long kRecordTag = 1;
// Subclasses of dict and list in the standard library, which come back as the plain container.
inline constexpr long kDictTag = 20;
inline constexpr long kListTag = 21;

}  // namespace pctx::data
