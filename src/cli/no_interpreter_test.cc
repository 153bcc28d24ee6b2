#include "cli/no_interpreter.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>

namespace pctx::cli {
namespace {

std::string program(std::string_view loader, std::uint64_t segments_at = sizeof(Elf64_Ehdr)) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_phoff = segments_at;
  header.e_phnum = 1;
  Elf64_Phdr segment{};
  segment.p_type = PT_INTERP;
  segment.p_offset = sizeof header + sizeof segment;
  segment.p_filesz = loader.size() + 1;
  std::string head(sizeof header + sizeof segment, '\0');
  std::memcpy(head.data(), &header, sizeof header);
  std::memcpy(head.data() + sizeof header, &segment, sizeof segment);
  return head.append(loader).append(1, '\0');
}

TEST(NoInterpreter, is_the_first_word_of_the_line) {
  EXPECT_EQ(interpreter_named("#!/bin/sh\necho"), "/bin/sh");
  EXPECT_EQ(interpreter_named("#! \t/usr/bin/env python3 -u\n"), "/usr/bin/env");
  EXPECT_EQ(interpreter_named("#!/bin/sh\r\necho"), "/bin/sh\r");
  EXPECT_EQ(interpreter_named("#!/bin/sh"), "/bin/sh");
  for (const std::string_view none : {"", "#", "#!", "#!\n/bin/sh", "# /bin/sh", "echo"})
    EXPECT_EQ(interpreter_named(none), "");
}

TEST(NoInterpreter, of_a_program_is_the_loader_of_its_libraries) {
  EXPECT_EQ(interpreter_named(program("/lib/ld-musl-x86_64.so.1")), "/lib/ld-musl-x86_64.so.1");
  EXPECT_EQ(interpreter_named(program("/lib/ld", 1 << 20)), "");
  EXPECT_EQ(interpreter_named(program("/lib/ld", ~std::uint64_t{0})), "");
  const std::string whole = program("/lib/ld");
  for (std::size_t size = 0; size < sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr); ++size)
    EXPECT_EQ(interpreter_named(std::string_view{whole}.substr(0, size)), "") << size;
}

}  // namespace
}  // namespace pctx::cli
