// The two ends of a stream between callers and a Broker on another machine.
#include <csignal>
#include <memory>

#include "backend/carried.h"
#include "backend/tether.h"
#include "cli/verbs.h"

namespace pctx::cli {

void add_carry(Verb program, const Words& words, int& status) {
  const Verb verb = program.add("carry", "Carry callers to the Broker of another machine, over a stream");
  struct Options {
    std::string listen, hold;
    bool inside = false;
  };
  const auto options = std::make_shared<Options>();
  verb.option("--listen", options->listen,
              {.type = "PATH", .means = "Serve callers at this socket; COMMAND leads to the other end"});
  verb.flag("--inside", options->inside, "In a container, whose first process is the Broker: wait for it");
  verb.option("--hold", options->hold,
              {.type = "PATH", .means = "Let one process connect to this socket, and end it when standard input ends"});
  verb.footer(
      "Without options: the end at the Broker, on standard input and output. With --listen PATH -- COMMAND...: the "
      "end\n"
      "at the callers; COMMAND is, or leads to, 'pctx-sandbox carry' over there, as 'ssh HOST pctx-sandbox carry' "
      "does.");
  verb.act(status, [options, &words]() -> Result<int> {
    if (options->listen.empty() != words.command.empty())
      return usage_error("--listen and a command belong together",
                         "pctx-sandbox carry --listen PATH -- ssh HOST pctx-sandbox carry");
    if (!options->hold.empty())
      PCTX_TRY(backend::hold_by_a_string(options->hold));
    else if (options->listen.empty())
      PCTX_TRY(backend::carry_there(PCTX_VERSION, options->inside));
    else
      PCTX_TRY(backend::carry_here({.folder = "", .socket = options->listen}, {.command = words.command}));
    return 0;
  });
}

}  // namespace pctx::cli
