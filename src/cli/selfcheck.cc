#include "cli/selfcheck.h"

#include <unistd.h>

#include <chrono>

#include <fmt/format.h>

#include "base/json.h"
#include "base/print.h"
#include "base/printable.h"
#include "cli/options.h"
#include "cli/verbs.h"

namespace pctx::cli {
namespace {

struct CheckArguments {
  RunArguments run;
  bool extra = false, verbose = false, json = false, open = false;
};

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::held:
      return "held";
    case Verdict::failed:
      return "FAILED";
    case Verdict::blind:
      break;
  }
  return "BLIND";
}

std::size_t count(const Checked& checked, Verdict verdict) {
  std::size_t number = 0;
  for (const Finding& finding : checked.findings) number += finding.verdict() == verdict ? 1 : 0;
  return number;
}

bool passed(const Checked& checked) {
  return !checked.error && !checked.findings.empty() && count(checked, Verdict::held) == checked.findings.size();
}

std::string findings_text(const Checked& checked, bool verbose) {
  std::string text;
  for (const Finding& finding : checked.findings) {
    const Verdict verdict = finding.verdict();
    text += fmt::format("{:<7} {:<18} {}: ", word(verdict), finding.name, finding.tried);
    if (verdict == Verdict::held)
      text += fmt::format("{} ({})\n", printable_path(finding.boxed.seen), finding.stopped_by);
    else if (verdict == Verdict::failed)
      text += fmt::format("{}; {} should have stopped it\n", printable_path(finding.boxed.seen), finding.stopped_by);
    else
      text += fmt::format("stopped without a box too ({}), so nothing is shown\n", printable_path(finding.open.seen));
    if (verbose && finding.control)
      text += fmt::format("{:<7} {:<18} in an open box: {}\n", "", "", printable_path(finding.open.seen));
  }
  for (const Absent& absent : checked.absent)
    text += fmt::format("{:<7} {:<18} {}\n", "absent", absent.name, absent.why);
  if (verbose)
    for (const LayerInfo& entry : kLayers) {
      const LayerState& state = checked.layers[index(entry.layer)];
      text += fmt::format("layer   {:<18} {}, {}\n", entry.name, state.on ? "on" : "off", state.detail);
    }
  return text;
}

std::string findings_json(const Checked& checked, double seconds) {
  OrderedJson json{{"ok", passed(checked)},
                   {"held", count(checked, Verdict::held)},
                   {"failed", count(checked, Verdict::failed)},
                   {"blind", count(checked, Verdict::blind)},
                   {"seconds", seconds}};
  if (checked.error) json["error"] = {{"message", checked.error->what}, {"hint", checked.error->hint}};
  json["findings"] = OrderedJson::array();
  for (const Finding& finding : checked.findings) {
    OrderedJson each{{"name", finding.name}, {"tried", finding.tried}, {"stopped_by", finding.stopped_by}};
    each["verdict"] = finding.verdict() == Verdict::held     ? "held"
                      : finding.verdict() == Verdict::failed ? "failed"
                                                             : "blind";
    each["seen"] = printable_path(finding.boxed.seen);
    each["in_an_open_box"] = finding.control ? OrderedJson(printable_path(finding.open.seen)) : OrderedJson();
    json["findings"].push_back(std::move(each));
  }
  json["absent"] = OrderedJson::array();
  for (const Absent& absent : checked.absent) json["absent"].push_back({{"name", absent.name}, {"why", absent.why}});
  for (const LayerInfo& entry : kLayers) {
    const LayerState& state = checked.layers[index(entry.layer)];
    json["layers"][std::string{entry.name}] = {{"on", state.on}, {"detail", state.detail}};
  }
  return printable_json(json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

std::string summary(const Checked& checked, double seconds) {
  if (checked.error) return fmt::format("SELF-CHECK FAILED: no box can be made: {}", checked.error->what);
  const std::size_t held = count(checked, Verdict::held), blind = count(checked, Verdict::blind);
  if (passed(checked))
    return fmt::format("all {} properties hold here; an open box fails the same probes ({:.1f} s)", held, seconds);
  std::string text = fmt::format("SELF-CHECK FAILED: {} of {} properties do not hold", count(checked, Verdict::failed),
                                 checked.findings.size());
  if (blind > 0) text += fmt::format(", {} could not be shown", blind);
  return text;
}

Result<int> check(CheckArguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  const Checked checked = PCTX_TRY(run_checks(arguments.run, arguments.extra, arguments.open));
  const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
  if (arguments.json) {
    print_out("{}\n", findings_json(checked, seconds));
  } else {
    print_out("{}", findings_text(checked, arguments.verbose));
    flush();
    if (passed(checked))
      print_out("{}\n", summary(checked, seconds));
    else
      print_error("{}\n", summary(checked, seconds));
    if (checked.error && !checked.error->hint.empty()) print_error("hint: {}\n", checked.error->hint);
  }
  return passed(checked) ? 0 : 1;
}

}  // namespace

Verdict Finding::verdict() const {
  if (boxed.through) return Verdict::failed;
  return control && !open.through ? Verdict::blind : Verdict::held;
}

void add_selfcheck(Verb program, const Words& words, int& status) {
  const Verb verb = program.add("selfcheck", "Attack a box on this host from inside, and say what held");
  verb.footer(
      "Every probe also runs in an open box, where it must come through: one that cannot fail shows nothing.\n"
      "Exit status: 0 if everything held, 1 if something did not, 125 if the check itself failed.");
  auto arguments = std::make_shared<CheckArguments>();
  verb.flag("--extra", arguments->extra, "Also run the extended suite");
  verb.flag("--verbose", arguments->verbose, "Also show what each probe reached in an open box, and the layers");
  verb.flag("--json", arguments->json, "Print the findings as one JSON object");
  verb.flag("--open", arguments->open, "Check an open box instead, which fails: shows that the check can");
  verb.option("--venv", arguments->run.venv, {.type = "DIR", .means = "Check runs with this virtualenv"});
  verb.option("--apparmor-profile,--apparmor", arguments->run.apparmor,
              {.type = "NAME", .means = "Check runs under this AppArmor profile"});
  verb.option("--network", arguments->run.network,
              {.type = "MODE", .means = "Check runs with this network (default none)"});
  verb.option("--policy", arguments->run.policy, {.type = "FILE", .means = "Check runs with this policy (JSON)"});
  verb.option("--require", arguments->run.require,
              {.type = "LAYER,...", .means = "Layers without which the check fails, comma-separated"});
  verb.act(status, [arguments, &words] {
    enter_delegated_scope(words.all);  // what a run would do
    return check(*arguments);
  });
}

}  // namespace pctx::cli
