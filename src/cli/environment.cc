#include "cli/environment.h"

#include <unistd.h>

#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "base/print.h"
#include "base/printable.h"
#include "box/terminal.h"

namespace pctx::cli {
namespace {

struct Shown {
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::string earlier;  // steps that ended before a second had passed
  bool open = false;    // a line without its end is on the terminal
};

}  // namespace

env::Progress show_progress() {
  if (::isatty(STDERR_FILENO) != 1) return {};
  return [shown = std::make_shared<Shown>()](std::string_view step, Millis passed, bool done) {
    const double seconds = static_cast<double>(passed.count()) / 1000;
    if (done) shown->earlier += fmt::format("{:<28}{:>6.1f} s\n", step, seconds);
    if (std::chrono::steady_clock::now() - shown->started < Millis{1000}) return;
    if (std::exchange(shown->open, !done)) print_error("\r\033[K");
    print_error("{}", std::exchange(shown->earlier, ""));
    if (!done) print_error("{:<28}{:>6.0f} s", step, seconds);
  };
}

void explain_failure(const env::Ensured& ensured, const std::vector<std::string>& requirements) {
  print_error("pctx-sandbox: the Environment for {} cannot be built: {}\n",
              printable_path(fmt::format("{}", fmt::join(requirements, ", "))), ensured.why);
  TerminalFilter filter;
  const std::string words = filter.feed(ensured.words);
  print_error("{}{}", words, filter.finish());
}

void warn_about_source() {
  print_error(
      "pctx-sandbox: WARNING: --allow-source: a package without a wheel runs its own code while it is built, in a "
      "box of its own from which the indexes can be reached\n");
}

}  // namespace pctx::cli
