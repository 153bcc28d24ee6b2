// Words for people on stderr. Unlike fmt::print, one that takes nothing (a full disk) ends nobody: what is to be done
// besides talking is done all the same.
#pragma once

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

}  // namespace pctx
