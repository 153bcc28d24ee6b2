#include <fmt/format.h>

#include "base/print.h"
#include "cli/verbs.h"
#include "sys/diagnose.h"

namespace pctx::cli {

bool Words::wants(std::string_view verb) const {
  for (std::string_view asked : {"run", "explain"})
    if (!options.empty() && options[0] == asked) return verb == asked;
  return true;
}

void say(const std::string& line) { print_error("pctx-sandbox: {}\n", line); }

int complain(const Error& error) {
  say((error.kind == ErrorKind::os ? with_next_step(error) : error).sentence());
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
