// Words for people. Unlike fmt::print, one that takes nothing (a full disk, a reader that has gone) ends nobody: what
// is to be done besides talking is done all the same.
#pragma once

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace pctx {

template <typename... Args>
void print_error(fmt::format_string<Args...> text, Args&&... args) {
  const std::string words = fmt::format(text, std::forward<Args>(args)...);
  (void)std::fwrite(words.data(), 1, words.size(), stderr);
}

// Why standard output took something no longer, or 0. Whoever leaves the program looks: what was asked for is not
// there.
inline int& print_failure() noexcept {
  static int code = 0;
  return code;
}

inline void flush() noexcept {
  if (std::fflush(stdout) != 0 && print_failure() == 0) print_failure() = errno;
}

template <typename... Args>
void print_out(fmt::format_string<Args...> text, Args&&... args) {
  const std::string words = fmt::format(text, std::forward<Args>(args)...);
  if (std::fwrite(words.data(), 1, words.size(), stdout) != words.size() && print_failure() == 0)
    print_failure() = errno;
}

}  // namespace pctx
