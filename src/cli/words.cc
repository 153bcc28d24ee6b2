#include <fmt/format.h>

#include "base/print.h"
#include "base/printable.h"
#include "cli/verbs.h"
#include "sys/diagnose.h"

namespace pctx::cli {

bool Words::wants(std::string_view verb) const {
  for (std::string_view asked : {"run", "explain"})
    if (!options.empty() && options[0] == asked) return verb == asked;
  return true;
}

// Names in it may be a guest's: of files that it made, and that a loop of the caller's gives us back.
void say(const std::string& line) { print_error("pctx-sandbox: {}\n", printable_line(line)); }

void say(const Error& error) {
  say(error.what);
  if (!error.hint.empty()) print_error("hint: {}\n", printable_line(error.hint));
}

int complain(const Error& error) {
  say(error.kind == ErrorKind::os ? with_next_step(error) : error);
  switch (error.kind) {
    case ErrorKind::not_found:
      return 127;
    case ErrorKind::not_runnable:
      return 126;
    default:
      return kFailed;
  }
}

}  // namespace pctx::cli
