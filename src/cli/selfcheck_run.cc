// Runs the probes: in boxes made the way `run` makes them, and in the open one.
#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "box/box.h"
#include "cli/selfcheck.h"
#include "cli/selfcheck_stage.h"
#include "env/store.h"
#include "env/virtualenv.h"
#include "launch/lend.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

constexpr const char* kProgram = "/run/pctx/selfcheck";
constexpr const char* kLent = "/run/lent";
constexpr Millis kLongestRun{300'000};        // for a host that is busy with other things
constexpr std::uint64_t kLeastDisk = 32_MiB;  // our own program lies in it too

// The boxes of one configuration.
class Boxes {
 public:
  Boxes(Policy policy, const Stage& stage, std::string program)
      : policy_(std::move(policy)), stage_(stage), program_(std::move(program)) {
    policy_.binds.push_back({stage.folder() + "/lent", kLent, false});
    policy_.limits.disk = std::max(policy_.limits.disk, kLeastDisk);
    policy_.limits.timeout = kLongestRun;
  }

  Result<Plan> plan(void (*tighten)(Policy&) = nullptr) const {
    Policy policy = policy_;
    if (tighten != nullptr) tighten(policy);
    Plan plan = PCTX_TRY(compile_here(policy, {}));
    // Written into the box's own root: nothing more is lent to it than to any other.
    plan.root.push_back({.kind = RootOpKind::directory, .target = "run/pctx"});
    plan.root.push_back({.kind = RootOpKind::file, .target = kProgram + 1, .text = program_, .mode = 0555});
    return plan;
  }

  Result<Ending> run(const Plan& plan, std::string_view what) const {
    Planted planted = stage_.planted();
    planted["lent"] = kLent;
    planted["scratch"] = "/tmp";
    planted["profile"] = plan.apparmor;
    planted["patience"] = "20";
    Command command{{kProgram, "selfcheck", std::string{kInside}, std::string{what}}};
    for (const auto& [key, value] : planted) command.argv.push_back(fmt::format("{}={}", key, value));
    return run_box(plan, command, {.capture = true, .no_input = true});
  }

 private:
  Policy policy_;
  const Stage& stage_;
  std::string program_;
};

Attempt answer_of(std::string_view output, std::string_view name) {
  for (std::string_view line : sys::split(output, '\n')) {
    const auto fields = sys::split(line, '\t');
    if (fields.size() >= 2 && fields[0] == name)
      return {fields[1] == kThrough, fields.size() > 2 ? std::string{fields[2]} : std::string{}};
  }
  return {true, "the probe gave no answer"};
}

// No answer is no success of the open box either.
Attempt control_of(std::string_view output, std::string_view name) {
  Attempt attempt = answer_of(output, name);
  if (attempt.seen == "the probe gave no answer") attempt.through = false;
  return attempt;
}

bool ends_through(std::string_view output) { return output.ends_with(kThrough); }

std::string how_it_ended(const Outcome& outcome, const char* by_itself = "it exited") {
  if (!outcome.sentence.empty()) return outcome.sentence;
  return outcome.exit_status() == 0 ? by_itself : fmt::format("ended with {}", outcome.exit_status());
}

class Checker {
 public:
  Checker(const Boxes& boxes, const Stage& stage, bool extra, bool open)
      : boxes_(boxes), stage_(stage), extra_(extra), open_(open) {}

  Result<void> probes(Checked& checked) const;
  Result<void> in_own_boxes(Checked& checked) const;

 private:
  Attempt open_attempt(const Trial& trial, std::string_view output) const {
    const bool through = trial.name == std::string_view{"daemon"} ? stage_.daemon_is_left() : ends_through(output);
    return {through, through ? "nothing stopped it" : "it did not come through"};
  }
  Result<Attempt> boxed_attempt(const Trial& trial) const {
    const Plan plan = PCTX_TRY(boxes_.plan(trial.tighten));
    const Ending ending = PCTX_TRY(boxes_.run(plan, trial.name));
    const bool through =
        trial.name == std::string_view{"daemon"} ? stage_.daemon_is_left() : ends_through(ending.captured_stdout);
    return Attempt{through, through ? "nothing stopped it" : how_it_ended(ending.outcome, trial.seen)};
  }

  const Boxes& boxes_;
  const Stage& stage_;
  bool extra_, open_;
};

Result<void> Checker::probes(Checked& checked) const {
  const std::string_view what = extra_ ? kAllProbes : kBaseProbes;
  Planted planted = stage_.planted();
  const Plan plan = PCTX_TRY(boxes_.plan());
  planted["profile"] = plan.apparmor;
  OpenRun control = PCTX_TRY(OpenRun::start(what, planted));
  const std::string open = control.finish();
  const Ending ending = PCTX_TRY(boxes_.run(plan, what));
  checked.layers = ending.receipt.layers;
  const auto add = [&](const Probe& probe) {
    if (probe.network && plan.policy.network == Network::host) {
      checked.absent.push_back({probe.name, "the guest is on the host's network, as the configuration says"});
      return;
    }
    if (probe.name == std::string_view{"apparmor"} && plan.apparmor.empty()) {
      checked.absent.push_back({probe.name, plan.layer(Layer::apparmor).detail});
      return;
    }
    const Attempt reached = control_of(open, probe.name);
    checked.findings.push_back({probe.name, probe.tried, probe.stopped_by,
                                open_ ? reached : answer_of(ending.captured_stdout, probe.name), reached});
  };
  for (const Probe& probe : base_probes()) add(probe);
  if (extra_)
    for (const Probe& probe : extra_probes()) add(probe);
  return {};
}

Result<void> Checker::in_own_boxes(Checked& checked) const {
  // The open box takes its time with some of them: all at once, while the boxes run.
  std::deque<std::pair<const Trial*, OpenRun>> controls;
  const auto wanted = [&](const Trial& trial) { return extra_ || !trial.extra; };
  for (const Trial& trial : trials())
    if (trial.tighten != nullptr && wanted(trial))
      controls.emplace_back(&trial, PCTX_TRY(OpenRun::start(trial.name, stage_.planted())));
  const auto open_of = [&](const Trial& trial) -> Result<Attempt> {
    for (auto& [each, run] : controls)
      if (each == &trial) return open_attempt(trial, run.finish());
    OpenRun run = PCTX_TRY(OpenRun::start(trial.name, stage_.planted()));
    return open_attempt(trial, run.finish());
  };
  std::vector<std::pair<const Trial*, Attempt>> boxed;
  for (const Trial& trial : trials()) {
    if (!wanted(trial) || trial.name == std::string_view{"linger"}) continue;
    boxed.emplace_back(&trial, open_ ? Attempt{} : PCTX_TRY(boxed_attempt(trial)));
  }
  for (auto& [trial, attempt] : boxed) {
    const Attempt open = PCTX_TRY(open_of(*trial));
    if (trial->tried != nullptr)  // the others only prepare the next
      checked.findings.push_back({trial->name, trial->tried, trial->stopped_by, open_ ? open : attempt, open});
  }
  return {};
}

Finding interpreter_finding(const env::Virtualenv& venv, Attempt attempt) {
  return {"virtualenv", fmt::format("running {}", venv.python()), "it must run", std::move(attempt), {}, false};
}

Result<Attempt> run_interpreter(const Boxes& boxes, const env::Virtualenv& venv) {
  const Plan plan = PCTX_TRY(boxes.plan());
  const Ending ending = PCTX_TRY(
      run_box(plan, {{venv.python(), "-c", "import sys; print(sys.prefix)"}}, {.capture = true, .no_input = true}));
  const bool right = ending.outcome.exit_status() == 0 && ending.captured_stdout == venv.place + "\n";
  return Attempt{!right, right ? "Python " + venv.version : "it does not run: " + how_it_ended(ending.outcome)};
}

Result<void> check_all(Checked& checked, const Policy& policy, const std::optional<env::Virtualenv>& venv, bool extra,
                       bool open) {
  const std::string program = PCTX_TRY(sys::read_file("/proc/self/exe", 256_MiB));
  const Stage stage = PCTX_TRY(Stage::plant());
  const Boxes boxes{policy, stage, program};
  // Whatever keeps a box from being made is a finding, not a mistake of the check.
  const Checker checker{boxes, stage, extra, open};
  auto done = checker.probes(checked);
  if (done) done = checker.in_own_boxes(checked);
  if (done && venv) {
    auto ran = run_interpreter(boxes, *venv);
    if (ran)
      checked.findings.push_back(interpreter_finding(*venv, *std::move(ran)));
    else
      done = std::move(ran).error();
  }
  if (!done) checked.error = std::move(done).error();
  return {};
}

}  // namespace

Result<Checked> run_checks(const RunArguments& arguments, bool extra, bool open) {
  Policy policy = PCTX_TRY(to_policy(arguments));
  std::optional<env::Virtualenv> venv;
  if (arguments.venv) {
    venv = PCTX_TRY(env::open_virtualenv(*arguments.venv));
    env::lend_virtualenv(policy, *venv);
  }
  PCTX_TRY(validate(policy));
  Checked checked;
  PCTX_TRY(check_all(checked, policy, venv, extra, open));
  return checked;
}

}  // namespace pctx::cli
