// The two ends of a stream between callers and a Broker on another machine.
#include <csignal>

#include <CLI/CLI.hpp>

#include "backend/carried.h"
#include "backend/tether.h"
#include "cli/verbs.h"

namespace pctx::cli {

void add_carry(CLI::App& app, const Words& words, int& status) {
  CLI::App* verb = app.add_subcommand("carry", "Carry callers to the Broker of another machine, over a stream");
  struct Options {
    std::string listen, hold;
    bool inside = false;
  };
  const auto options = std::make_shared<Options>();
  verb->add_option("--listen", options->listen, "Serve callers at this socket; COMMAND leads to the other end")
      ->type_name("PATH");
  verb->add_flag("--inside", options->inside, "In a container, whose first process is the Broker: wait for it");
  verb->add_option("--hold", options->hold,
                   "Let one process connect to this socket, and end it when standard input ends")
      ->type_name("PATH");
  verb->footer(
      "Without options: the end at the Broker, on standard input and output. With --listen PATH -- COMMAND...: the "
      "end\n"
      "at the callers; COMMAND is, or leads to, 'pctx-sandbox carry' over there, as 'ssh HOST pctx-sandbox carry' "
      "does.");
  verb->callback([options, &words, &status] {
    if (options->listen.empty() != words.command.empty()) {
      status = complain(usage_error("--listen and a command belong together",
                                    "pctx-sandbox carry --listen PATH -- ssh HOST pctx-sandbox carry"));
      return;
    }
    const auto carried = !options->hold.empty()    ? backend::hold_by_a_string(options->hold)
                         : options->listen.empty() ? backend::carry_there(PCTX_VERSION, options->inside)
                                                   : backend::carry_here({.folder = "", .socket = options->listen},
                                                                         {.command = words.command});
    status = carried ? 0 : complain(carried.error());
  });
}

}  // namespace pctx::cli
