// Runs while the engine is built: writes the source file of ready_filter() to standard output.
#include <fmt/format.h>

#include "plan/ready_filters.h"

int main() {  // NOLINT(bugprone-exception-escape): a build that fails here says so
  using namespace pctx;
  std::string programs, table;
  for (std::size_t number = 0; number < kFilterVariants; ++number) {
    const auto program = compile_filter(default_filter(kHostArch, filter_variant(number)));
    if (!program) {
      fmt::print(stderr, "{}\n", program.error().sentence());
      return 1;
    }
    programs += fmt::format("constexpr sock_filter kProgram{}[] = {{\n", number);
    for (const sock_filter& line : *program)
      programs += fmt::format("    {{{:#x}, {}, {}, {:#x}}},\n", line.code, line.jt, line.jf, line.k);
    programs += "};\n";
    table += fmt::format("    kProgram{},\n", number);
  }
  fmt::print(
      "// Written by plan/filters/write.cc.\n"
      "#include \"plan/ready_filters.h\"\n\n"
      "namespace pctx {{\nnamespace {{\n\n{}\n"
      "constexpr std::span<const sock_filter> kPrograms[kFilterVariants] = {{\n{}}};\n\n"
      "}}  // namespace\n\n"
      "std::span<const sock_filter> ready_filter(const FilterOptions& options) {{\n"
      "  return kPrograms[variant_number(options)];\n}}\n\n}}  // namespace pctx\n",
      programs, table);
}
