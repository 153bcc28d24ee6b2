#include "pool/inspector.h"

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "pool/inspect.h"

namespace pctx {
namespace {

constexpr Millis kInspectionPatience{10'000};

// "WORKER INIT ZYGOTE WORKDIR"; the answer is empty, or what is wrong, a newline, and what to do.
std::string inspect_for_broker(const wire::Packet& order) {
  pid_t worker = 0, init = 0, zygote = 0;
  int end = 0;
  if (std::sscanf(order.text.c_str(), "%d %d %d %n", &worker, &init, &zygote, &end) != 3 || end == 0)
    return "an order to inspect a Worker was cut off\ntry again";
  std::vector<int> given;
  for (const Fd& fd : order.fds) given.push_back(fd.get());
  const auto trusted = inspect_worker(worker, init, zygote, given, order.text.substr(static_cast<std::size_t>(end)));
  return trusted ? "" : fmt::format("{}\n{}", trusted.error().what, trusted.error().hint);
}

}  // namespace

Inspector::Inspector(sys::Loop& loop) : errands_(loop, {"pctx-inspector", inspect_for_broker, kInspectionPatience}) {}

Errands::Ticket Inspector::inspect(const Suspect& suspect, std::function<void(const Result<void>&)> done) {
  const std::string order = fmt::format("{} {} {} {}", suspect.worker, suspect.init, suspect.zygote, suspect.workdir);
  return errands_.ask(order, suspect.given, [done = std::move(done)](const std::optional<std::string>& answer) {
    if (!answer)
      return done(unavailable("a Worker was not lent: it could not be looked at in time",
                              "report the package that it imports, if you trust it"));
    if (answer->empty()) return done({});
    const std::size_t end = answer->find('\n');
    done(unavailable(answer->substr(0, end), answer->substr(end + 1)));
  });
}

}  // namespace pctx
