#include "cli/doctor_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json.h"
#include "base/printable.h"
#include "sys/apparmor.h"

namespace pctx::cli {
namespace {

struct LayerReport {
  bool on = false;
  std::string detail;
};

std::string subordinate(const HostFacts& facts) {
  if (facts.host.privileged) return fmt::format("not needed, root gives guests uids from {}", facts.host.first_free_id);
  const std::string helpers = facts.host.id_helpers ? "newuidmap is installed" : "newuidmap is not installed";
  if (!facts.host.subuid || !facts.host.subgid) return helpers + ", no ids for this user";
  return fmt::format("{}, ids {}-{}", helpers, facts.host.subuid->start,
                     facts.host.subuid->start + facts.host.subuid->count - 1);
}

std::string apparmor(const HostFacts& facts) {
  if (!facts.host.apparmor)
    return "none in this kernel, or switched off: those of Debian, Ubuntu and SUSE have it (boot with apparmor=1 "
           "security=apparmor)";
  return fmt::format("on, {} {}", kGuestProfile, facts.guest_profile ? "loaded" : "not loaded");
}

bool is_tried_in_a_user_namespace(Layer layer) {
  for (Layer each :
       {Layer::pid, Layer::mount, Layer::network, Layer::ipc, Layer::uts, Layer::cgroup_namespace, Layer::proc})
    if (layer == each) return true;
  return false;
}

// Why this host does not give a layer, where no box ran whose receipt would say it. What the kernel answers is the last
// resort: it is about the attempt, not about the cause.
std::string refusal(const HostFacts& facts, const LayerInfo& entry) {
  if (is_tried_in_a_user_namespace(entry.layer) && !facts.works(Layer::user))
    return "not tried: it takes a user namespace";
  switch (entry.layer) {
    case Layer::subordinate_ids:
      return facts.host.no_set_id.empty() ? subordinate(facts)
                                          : fmt::format("{}, so that newuidmap gains no rights", facts.host.no_set_id);
    case Layer::cgroups:
      if (!facts.host.cgroup.why_none.empty()) return facts.host.cgroup.why_none;
      break;
    case Layer::landlock:
      return "this kernel gives none";
    case Layer::apparmor:
      return facts.host.apparmor ? apparmor(facts) : sys::kNoAppArmor;
    default:
      for (const Remedy& remedy : remedies(facts))
        if (remedy.about == entry.name) return remedy.why;
  }
  return os_error("refused", facts.layer(entry.layer).code).what;
}

// The receipt of the trial says what was enforced; without one, the attempts say what could be.
LayerReport layer_report(const Diagnosis& diagnosis, const LayerInfo& entry) {
  if (diagnosis.trial.ending) {
    const LayerState& state = diagnosis.trial.ending->receipt.layers[index(entry.layer)];
    return {state.on, state.detail};
  }
  const ProbedLayer& probed = diagnosis.facts.layer(entry.layer);
  if (probed.works) return {true, "can be had"};
  return {false, refusal(diagnosis.facts, entry)};
}

std::string words_for(const LayerInfo& entry, const LayerReport& layer) {
  if (!layer.on) return layer.detail;
  const bool says_nothing = layer.detail == "new" || layer.detail == "set";
  return says_nothing ? std::string{entry.means} : fmt::format("{} ({})", entry.means, layer.detail);
}

std::string identity(const HostFacts& facts) {
  const std::string who = facts.host.uid == 0  ? std::string{facts.host.privileged ? "root" : "root without its powers"}
                          : facts.user.empty() ? fmt::format("uid {}", facts.host.uid)
                                               : fmt::format("{} (uid {}), rootless", facts.user, facts.host.uid);
  return facts.container == Container::none ? fmt::format("{}, not in a container", who)
                                            : fmt::format("{}, in a {} container", who, name(facts.container));
}

std::string cgroups(const HostFacts& facts) {
  const CgroupHost& lent = facts.host.cgroup;
  const char* version = facts.cgroups == CgroupVersion::v2 ? "v2" : facts.cgroups == CgroupVersion::v1 ? "v1" : "none";
  if (lent.version == CgroupVersion::none && !lent.ask_systemd)
    return fmt::format("{}, none for us: {}", version, lent.why_none);
  std::string without;
  for (std::string_view controller : {"memory", "pids", "cpu", "io"}) {
    bool there = false;
    for (const std::string& known : facts.controllers) there |= known == controller;
    if (!there) without += fmt::format(" {}", controller);
  }
  return fmt::format("{}{}: {}{}", version, lent.version == CgroupVersion::none ? ", lent by the user's systemd" : "",
                     fmt::join(facts.controllers, " "), without.empty() ? "" : "; not" + without);
}

struct Fact {
  const char* name;
  std::string value;
};

std::vector<Fact> facts_of(const HostFacts& facts) {
  const HostFeatures& host = facts.host;
  std::vector<Fact> list{{"kernel", fmt::format("Linux {}, {}the oldest supported is {}.{}", host.kernel,
                                                host.kernel_at_least(kOldestMajor, kOldestMinor) ? "" : "TOO OLD: ",
                                                kOldestMajor, kOldestMinor)},
                         {"identity", identity(facts)},
                         {"cgroups", cgroups(facts)},
                         {"landlock", host.landlock_abi > 0 ? fmt::format("ABI {}", host.landlock_abi) : "none"},
                         {"apparmor", apparmor(facts)},
                         {"subordinate ids", subordinate(facts)}};
  // A box is no domain of its own there: what confines the caller confines its guests too.
  if (facts.selinux_enforces)
    list.push_back({"selinux", *facts.selinux_enforces ? "enforcing; boxes stay in the caller's domain"
                                                       : "permissive: it refuses nothing"});
  return list;
}

const char* doer_name(Doer doer) {
  switch (doer) {
    case Doer::setup:
      return "setup";
    case Doer::caller:
      return "caller";
    case Doer::container:
      return "container";
    case Doer::boot:
      break;
  }
  return "boot";
}

// The lines of one remedy as they are typed. Long files are left to `setup`, which shows them in full.
std::vector<std::string> typed(const Remedy& remedy, const HostFacts& facts) {
  std::vector<std::string> lines;
  if (remedy.doer != Doer::setup) {
    for (const Instruction& step : remedy.steps) lines.push_back(step.command);
    return lines;
  }
  bool whole = true;
  std::string does;
  const std::string sudo = facts.host.uid == 0 ? "" : "sudo ";
  for (const Instruction& step : remedy.steps) {
    std::string content;
    for (char c : step.content) content += c == '\n' ? std::string{"\\n"} : std::string{c};
    whole &= content.size() < 100;
    does += fmt::format("{}{}", does.empty() ? "" : ", ",
                        step.file.empty() ? step.command : fmt::format("writes {}", step.file));
    lines.push_back(step.file.empty() ? sudo + step.command
                                      : fmt::format("printf '{}' | {}tee {}", content, sudo, step.file));
  }
  if (whole) return lines;
  return {fmt::format("{}{} setup   # {}", sudo, own_name(facts.program), does)};
}

// Whether root reads the lines of a user's remedy: what it can do for every user, and for this one.
bool is_shown_to_root(const Remedy& remedy, const HostFacts& user) {
  return remedy.blocks || (remedy.doer == Doer::setup && !user.any_user);
}

std::string user_sentence(const HostFacts& user) {
  const std::string who = user.any_user ? "ordinary users" : user.user;
  std::string without;
  bool all_shown = true;
  for (const Remedy& remedy : remedies(user)) {
    if (remedy.blocks) return fmt::format("{}: no box runs: {}", who, remedy.why);
    all_shown &= is_shown_to_root(remedy, user);
    if (without.find(remedy.about) == std::string::npos)
      without += fmt::format("{}{}", without.empty() ? "" : ", ", remedy.about);
  }
  if (without.empty()) return fmt::format("{}: a box runs with every required layer", who);
  return fmt::format("{}: a box runs with every required layer; to be improved: {}{}", who, without,
                     all_shown       ? ""
                     : user.any_user ? " (run 'doctor' as one of them for how)"
                                     : " (run 'doctor' as that user for how)");
}

OrderedJson json_of(const std::vector<Remedy>& list, const HostFacts& facts) {
  OrderedJson array = OrderedJson::array();
  for (const Remedy& remedy : list)
    array.push_back({{"about", remedy.about},
                     {"blocks", remedy.blocks},
                     {"by", doer_name(remedy.doer)},
                     {"why", remedy.why},
                     {"commands", typed(remedy, facts)}});
  return array;
}

}  // namespace

bool is_ready(const Diagnosis& diagnosis) {
  if (!diagnosis.trial.ending || diagnosis.trial.ending->outcome.exit_status() != 0) return false;
  if (!diagnosis.facts.host.kernel_at_least(kOldestMajor, kOldestMinor)) return false;
  for (const LayerInfo& entry : kLayers)
    if (entry.required && !layer_report(diagnosis, entry).on) return false;
  return true;
}

namespace {

std::string first_thing_to_do(const Diagnosis& diagnosis) {
  for (const Remedy& remedy : remedies(diagnosis.facts)) {
    if (!remedy.blocks) continue;
    const auto lines = typed(remedy, diagnosis.facts);
    return fmt::format("not ready: {}{}{}", remedy.why,
                       lines.empty() ? "" : "; first fix: ", lines.empty() ? "" : lines.front());
  }
  if (diagnosis.trial.failure)
    return fmt::format("not ready: {}{}{}", diagnosis.trial.failure->what,
                       diagnosis.trial.failure->hint.empty() ? "" : "; ", diagnosis.trial.failure->hint);
  return "not ready: the box that was tried did not end as it should";
}

}  // namespace

std::string verdict(const Diagnosis& diagnosis) {
  if (is_ready(diagnosis)) return "ready: a box runs here with every required layer";
  const bool elsewhere = !diagnosis.chosen.empty() && diagnosis.chosen != "namespaces";
  return first_thing_to_do(diagnosis) +
         (elsewhere ? fmt::format("; meanwhile 'auto' is the backend {}", diagnosis.chosen) : "");
}

std::string report_text(const Diagnosis& diagnosis, bool colour) {
  std::string text;
  for (const Fact& fact : facts_of(diagnosis.facts)) text += fmt::format("{:<17}{}\n", fact.name, fact.value);
  const auto mark = [&](bool on, bool required) {
    const char* word = on ? " on" : required ? "OFF" : "off";
    const int number = on ? 32 : required ? 31 : 33;
    return colour ? fmt::format("\033[{}m{}\033[0m", number, word) : std::string{word};
  };
  for (const bool required : {true, false}) {
    text += required ? "\nrequired\n" : "used where the host has them\n";
    for (const LayerInfo& entry : kLayers) {
      if (entry.required != required) continue;
      const LayerReport layer = layer_report(diagnosis, entry);
      text += fmt::format("  {} {:<17}{}\n", mark(layer.on, required), entry.name, words_for(entry, layer));
    }
  }
  if (!diagnosis.backends.empty()) text += "backends\n";
  for (const BackendReport& each : diagnosis.backends) {
    text +=
        fmt::format("  {} {:<17}{}: {}\n", mark(each.standing.usable, false), each.name, each.means, each.standing.why);
    if (!each.standing.fix.empty()) text += fmt::format("      {}\n", each.standing.fix);
  }
  if (!diagnosis.chosen.empty()) text += fmt::format("  auto is {}: {}\n", diagnosis.chosen, diagnosis.chosen_because);
  const auto list = remedies(diagnosis.facts);
  const bool for_setup = std::any_of(list.begin(), list.end(), [](const Remedy& r) { return r.doer == Doer::setup; });
  if (!list.empty())
    text += for_setup ? fmt::format("\nwhat would help ('sudo {} setup' runs what is root's to run)\n",
                                    own_name(diagnosis.facts.program))
                      : "\nwhat would help\n";
  for (const Remedy& remedy : list) {
    text += fmt::format("  {}: {}\n", remedy.about, remedy.why);
    for (const std::string& line : typed(remedy, diagnosis.facts)) text += fmt::format("      {}\n", line);
  }
  text += "\n";
  if (diagnosis.user) {
    text += user_sentence(*diagnosis.user) + "\n";
    for (const Remedy& remedy : remedies(*diagnosis.user))
      if (is_shown_to_root(remedy, *diagnosis.user))
        for (const std::string& line : typed(remedy, diagnosis.facts)) text += fmt::format("      {}\n", line);
  }
  if (diagnosis.trial.ending)
    text += fmt::format("tried: 'true' in a box with the default policy, {} after {} ms\n",
                        name(diagnosis.trial.ending->outcome.kind), diagnosis.trial.ending->receipt.usage.wall.count());
  else if (diagnosis.trial.failure)
    text += fmt::format("tried: 'true' in a box with the default policy: {}\n", diagnosis.trial.failure->what);
  return text + verdict(diagnosis) + "\n";
}

std::string report_json(const Diagnosis& diagnosis) {
  OrderedJson json;
  json["ready"] = is_ready(diagnosis);
  json["verdict"] = verdict(diagnosis);
  for (const Fact& fact : facts_of(diagnosis.facts)) json["host"][fact.name] = fact.value;
  for (const LayerInfo& entry : kLayers) {
    const LayerReport layer = layer_report(diagnosis, entry);
    json["layers"].push_back(
        {{"name", entry.name}, {"required", entry.required}, {"on", layer.on}, {"detail", layer.detail}});
  }
  for (const BackendReport& each : diagnosis.backends)
    json["backends"].push_back({{"name", each.name},
                                {"usable", each.standing.usable},
                                {"why", each.standing.why},
                                {"fix", each.standing.fix}});
  if (!diagnosis.chosen.empty()) json["auto"] = {{"backend", diagnosis.chosen}, {"reason", diagnosis.chosen_because}};
  json["remedies"] = json_of(remedies(diagnosis.facts), diagnosis.facts);
  if (diagnosis.user)
    json["ordinary_user"] = {{"user", diagnosis.user->user},
                             {"summary", user_sentence(*diagnosis.user)},
                             {"remedies", json_of(remedies(*diagnosis.user), diagnosis.facts)}};
  json["trial"] = {{"ran", diagnosis.trial.ending.has_value()}};
  if (diagnosis.trial.ending) {
    json["trial"]["exit_status"] = diagnosis.trial.ending->outcome.exit_status();
    json["trial"]["wall_ms"] = diagnosis.trial.ending->receipt.usage.wall.count();
  } else if (diagnosis.trial.failure) {
    json["trial"]["error"] = diagnosis.trial.failure->what;
    json["trial"]["hint"] = diagnosis.trial.failure->hint;
  }
  return printable_json(json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace pctx::cli
