#include "cli/no_interpreter.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/printable.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx::cli {
namespace {

constexpr std::size_t kHead = 4096;      // linkers put what we look for right behind the headers
constexpr std::size_t kMostLine = 256;   // of a #! line: the kernel reads no more
constexpr int kMostInterpreters = 5;     // one of the other: the kernel follows no more
constexpr std::size_t kMostShown = 200;  // of a name

template <class Header, class Segment>
std::string loader(std::string_view head) {
  Header header{};
  if (head.size() < sizeof header) return "";
  std::memcpy(&header, head.data(), sizeof header);
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Segment segment{};
    const std::uint64_t at = std::uint64_t{header.e_phoff} + i * sizeof segment;
    if (at > head.size() || head.size() - at < sizeof segment) return "";
    std::memcpy(&segment, head.data() + at, sizeof segment);
    if (segment.p_type != PT_INTERP) continue;
    if (segment.p_offset > head.size()) return "";
    const std::string_view name = head.substr(segment.p_offset, segment.p_filesz);
    return std::string{name.substr(0, name.find('\0'))};
  }
  return "";
}

// Of a file that a guest may have made: no link on the way, and only an ordinary one.
std::string read_head(const std::string& path) {
  const Fd found{abi::openat2(AT_FDCWD, path.c_str(), {O_PATH | O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS})};
  const Fd file = found ? sys::open_regular(fmt::format("/proc/self/fd/{}", found.get())) : Fd{};
  std::array<char, kHead> head;
  const ssize_t got = file ? ::pread(file.get(), head.data(), head.size(), 0) : 0;
  return {head.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

std::string interpreter_in(const Plan& plan, const std::string& path) {
  const std::string here = host_place(plan, path);
  return here.empty() ? std::string{} : interpreter_named(read_head(here));
}

std::vector<std::string> looked_for_at(const std::string& word, const Plan& plan) {
  if (word.starts_with('/')) return {word};
  if (word.find('/') != std::string::npos) return {sys::join(plan.workdir, word)};
  std::vector<std::string> places;
  for (const std::string_view folder : sys::split(plan.path, ':')) places.push_back(sys::join(folder, word));
  return places;
}

}  // namespace

std::string interpreter_named(std::string_view head) {
  if (head.starts_with("#!")) {
    std::string_view line = head.substr(0, kMostLine);
    line = sys::trimmed(line.substr(2, line.find('\n') - 2));
    return std::string{line.substr(0, line.find_first_of(" \t"))};
  }
  if (head.size() < EI_NIDENT || !head.starts_with(std::string_view{ELFMAG, SELFMAG})) return "";
  return head[EI_CLASS] == ELFCLASS64 ? loader<Elf64_Ehdr, Elf64_Phdr>(head) : loader<Elf32_Ehdr, Elf32_Phdr>(head);
}

Error with_interpreter(Error error, const std::string& word, const Plan& plan) {
  if (error.kind != ErrorKind::not_found) return error;
  std::string missing;
  for (const std::string& place : looked_for_at(word, plan)) {
    missing = interpreter_in(plan, place);
    if (!missing.empty()) break;
  }
  if (missing.empty()) return error;
  for (int each = 1; each < kMostInterpreters; ++each) {
    std::string next = missing.starts_with('/') ? interpreter_in(plan, missing) : std::string{};
    if (next.empty()) break;
    missing = std::move(next);
  }
  const std::string shown = printable_path(std::string_view{missing}.substr(0, kMostShown));
  error.what = fmt::format("{}: its interpreter {} is not in the box", printable_path(word), shown);
  error.hint = "lend it with --ro DIR, or a virtualenv with --venv DIR";
  if (missing.ends_with('\r')) {
    error.what = fmt::format("{}: its #! line ends with a carriage return", printable_path(word));
    error.hint = "write it with the line ends of this system, for example with: sed -i 's/\\r$//' FILE";
  }
  return error;
}

}  // namespace pctx::cli
