// Small-file input and output with limits: /proc, /sys, cgroup files, policy files. Every reader takes the most bytes
// it may return.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace pctx::sys {

Result<Fd> open_at(int dir, const std::string& path, int flags, unsigned mode = 0);
Result<std::string> read_all(int fd, std::size_t limit);
Result<std::string> read_file(const std::string& path, std::size_t limit);
// As read_file, of a file that somebody named with `option`.
Result<std::string> read_named(const std::string& option, const std::string& path, std::size_t limit);
// A failure at a path that somebody named with `option`: a mistake of theirs, and what to do about it.
Error about_path(const std::string& option, Error error);
// The whole file, or nothing: for facts whose absence is an answer.
std::optional<std::string> try_read_file(const std::string& path, std::size_t limit = 65536,
                                         int dir = -100 /* AT_FDCWD */);
// Of what somebody else may have put there: empty unless it is an ordinary file. Only that is opened, since opening a
// FIFO or a device may do something. `flags`: 0, or O_NOFOLLOW.
Fd open_regular(const std::string& path, int flags = 0);
// One write, as kernel interfaces want it.
Result<void> write_at(int dir, const std::string& path, std::string_view text);
Result<void> write_all(int fd, std::string_view bytes);

struct Pipe {
  Fd read_end, write_end;
};
Result<Pipe> make_pipe(int flags = 0);  // O_CLOEXEC always
// Whoever has an end can open it by name, as /dev/stdout, whatever its uid; but for its own direction only, 0444 or
// 0222: who takes back what it wrote makes our reads find nothing.
Result<Pipe> make_guest_pipe(mode_t mode);

// Closes every descriptor but these, which are in ascending order. Allocates nothing.
void close_all_but(std::span<const int> kept) noexcept;

std::string join(std::string_view directory, std::string_view name);
// By their text: in the folder or in one below, and not the folder itself; or that, too.
bool is_inside(std::string_view path, std::string_view folder);
bool is_at_or_inside(std::string_view path, std::string_view folder);
// Without links; empty where there is nothing.
std::string resolved(const std::string& path);
// Whether the way to `path` passes through `folder`, which has no links itself: a link in there may lead it anywhere.
bool leads_through(const std::string& path, const std::string& folder);
std::vector<std::string_view> split(std::string_view text, char separator);
// Without the spaces and tabs around it.
std::string_view trimmed(std::string_view text);
// Whether the first line of `text` has `word` among its words: "cpu" is not "cpuset".
bool has_word(std::string_view text, std::string_view word);

}  // namespace pctx::sys
