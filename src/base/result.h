// The one error convention: a function that can fail returns Result<T>. An Error means that *we* failed; how the
// guest ended is an Outcome (box/outcome.h). The two are never mixed.
#pragma once

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace pctx {

// What the caller may do about it; the command line turns each into an exit code.
enum class ErrorKind {
  usage,         // the input is wrong; nothing was tried
  unavailable,   // this host cannot do what is asked; `hint` names the fix
  os,            // a system call failed where it should not have
  not_found,     // the command is not in the box
  not_runnable,  // the command is there and cannot be run
};

struct Error {
  ErrorKind kind = ErrorKind::os;
  std::string what;  // one sentence: the cause
  std::string hint;  // the next step; what the caller can mend always has one
  int code = 0;      // errno, where one is the cause

  // "cause; hint: next step", the way every message of ours reads.
  std::string sentence() const { return hint.empty() ? what : what + "\nhint: " + hint; }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const noexcept { return !error_; }
  explicit operator bool() const noexcept { return has_value(); }
  void operator*() const noexcept {}
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

Error os_error(std::string what, int code = errno);
Error usage_error(std::string what, std::string hint);
Error unavailable(std::string what, std::string hint);

// The same error, said of `name`: an option, a key, a file.
Error named(std::string_view name, Error error);
template <class T>
Result<T> named(std::string_view name, Result<T> value) {
  if (value) return value;
  return named(name, std::move(value).error());
}

// Evaluates to the value, or returns the error from the enclosing function.
#define PCTX_TRY(expr)                     \
  __extension__({                          \
    auto r_ = (expr);                      \
    if (!r_) return std::move(r_).error(); \
    *std::move(r_);                        \
  })

}  // namespace pctx
