#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "backend/backend.h"
#include "base/print.h"
#include "box/box.h"
#include "cli/doctor_report.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "launch/facts.h"

namespace pctx::cli {
namespace {

// Nothing is proven by probes: a box is made, the way `run` makes it.
FirstBox try_a_box() {
  RunArguments arguments;
  arguments.command = {"true"};
  arguments.literal = true;
  auto prepared = prepare(arguments);
  if (!prepared) return {std::nullopt, std::move(prepared).error()};
  auto ending = run_box(prepared->plan, prepared->command, {.capture = true, .no_input = true});
  if (!ending) return {std::nullopt, std::move(ending).error()};
  return {*std::move(ending), std::nullopt};
}

bool wants_colour() {
  const char* never = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (never == nullptr || *never == '\0') && ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr &&
         std::string_view{terminal} != "dumb";
}

}  // namespace

void add_doctor(Verb program, const Words& words, int& status) {
  const Verb verb = program.add("doctor", "Say what this host can enforce, and how to close each gap");
  verb.footer(
      "Exit status: 0 if a box runs here with every required layer, 1 if not.\nIt changes nothing itself; Podman, if "
      "it is installed, is "
      "asked too, and makes its own folders and its pause process then.");
  auto json = std::make_shared<bool>(false);
  verb.flag("--json", *json, "Print the findings as one JSON object");
  verb.act(status, [json, &words]() -> Result<int> {
    enter_delegated_scope(words.all);  // what a run would do
    Diagnosis diagnosis;
    diagnosis.facts = gather_facts();
    diagnosis.user = gather_user_facts(diagnosis.facts);
    diagnosis.trial = try_a_box();
    // What the trial disproves counts for nothing: a systemd that could lend a cgroup, and did not.
    if (diagnosis.trial.ending && !diagnosis.trial.ending->receipt.layers[index(Layer::cgroups)].on)
      diagnosis.facts.host.cgroup.ask_systemd = false;
    for (const backend::Backend& each : backend::backends())
      diagnosis.backends.push_back({std::string{each.name}, std::string{each.means}, each.look()});
    // As `choose` would, with what was just found out.
    const auto standing_of = [&](std::string_view name) {
      for (const BackendReport& each : diagnosis.backends)
        if (each.name == name) return each.standing;
      return backend::Standing{};
    };
    const backend::Choice choice = backend::decide(standing_of("namespaces"), standing_of("podman"));
    diagnosis.chosen = choice.backend->name;
    diagnosis.chosen_because = choice.reason;
    if (*json)
      print_out("{}\n", report_json(diagnosis));
    else
      print_out("{}", report_text(diagnosis, wants_colour()));
    return is_ready(diagnosis) ? 0 : 1;
  });
}

}  // namespace pctx::cli
