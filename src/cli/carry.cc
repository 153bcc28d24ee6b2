// The two ends of a stream between callers and a Broker on another machine.
#include <csignal>

#include "backend/carried.h"
#include "cli/verbs.h"

namespace pctx::cli {

void add_carry(CLI::App& app, const Words& words, int& status) {
  CLI::App* verb = app.add_subcommand("carry", "Carry callers to the Broker of another machine, over a stream");
  auto socket = std::make_shared<std::string>();
  verb->add_option("--listen", *socket, "Serve callers at this socket; COMMAND leads to the other end")
      ->type_name("PATH");
  verb->footer(
      "Without options: the end at the Broker, on standard input and output. With --listen PATH -- COMMAND...: the "
      "end\n"
      "at the callers; COMMAND is, or leads to, 'pctx-sandbox carry' over there, as 'ssh HOST pctx-sandbox carry' "
      "does.");
  verb->callback([socket, &words, &status] {
    if (socket->empty() != words.command.empty()) {
      status = complain(usage_error("--listen and a command belong together",
                                    "pctx-sandbox carry --listen PATH -- ssh HOST pctx-sandbox carry"));
      return;
    }
    const auto carried = socket->empty()
                             ? backend::carry_there(PCTX_VERSION)
                             : backend::carry_here({.folder = "", .socket = *socket}, {.command = words.command});
    status = carried ? 0 : complain(carried.error());
  });
}

}  // namespace pctx::cli
