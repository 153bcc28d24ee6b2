#include <fcntl.h>
#include <unistd.h>

#include <memory>

#include <fmt/format.h>

#include "base/json.h"
#include "base/print.h"
#include "base/printable.h"
#include "cli/verbs.h"
#include "env/store.h"
#include "env/virtualenv.h"
#include "launch/apparmor_profiles.h"
#include "launch/facts.h"
#include "launch/lend.h"
#include "launch/profile_text.h"
#include "sys/apparmor.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

struct ProfileArguments {
  std::optional<std::string> name, venv, output;
  bool json = false, ignore_diffs = false;

  std::string profile() const { return name.value_or(kGuestProfile); }
  std::string file() const { return "/etc/apparmor.d/" + profile(); }
};

// What the file of that profile should hold.
Result<std::string> wanted_text(const ProfileArguments& arguments) {
  if (!is_profile_name(arguments.profile()) || arguments.profile().ends_with("-zygote"))
    return usage_error(fmt::format("--name: '{}' is not a profile's name", arguments.profile()),
                       "names have letters, digits, dots, dashes and underscores, and do not end with -zygote");
  if (!arguments.venv) {
    if (arguments.profile() == kGuestProfile) return std::string{kGuestProfileText};
    return usage_error("a profile of another name is for one virtualenv", "add --venv PATH");
  }
  if (arguments.profile() == kGuestProfile || arguments.profile() == "pctx-sandbox")
    return usage_error(fmt::format("--name: {} is the profile for every box", arguments.profile()),
                       "give the one of this virtualenv a name of its own");
  Policy policy;
  env::lend_virtualenv(policy, PCTX_TRY(env::open_virtualenv(*arguments.venv)));
  return payload_profile(arguments.profile(), PCTX_TRY(compile_here(policy, {})));
}

std::string shell_word(const std::string& word) {
  if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+") ==
      std::string::npos)
    return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return text + "'";
}

// Whether this kernel reserves user namespaces for named programs, and does not name us.
bool launcher_is_missing(const HostFacts& facts) {
  return facts.apparmor_restricts_userns == 1 &&
         launcher_profile_for(facts.program, facts.launcher_profile) != facts.launcher_profile;
}

std::string install_lines(const ProfileArguments& arguments) {
  const HostFacts facts = gather_facts();
  const std::string sudo = facts.host.uid == 0 ? "" : "sudo ";
  const std::string own = own_name(facts.program), name = arguments.profile();
  std::string lines;
  if (launcher_is_missing(facts)) lines += fmt::format("{}{} setup --yes\n", sudo, own);
  std::string venv;
  if (arguments.venv) {
    const std::string real = sys::resolved(*arguments.venv);
    venv = fmt::format(" --venv {}", shell_word(real.empty() ? *arguments.venv : real));
  }
  lines += fmt::format("{} apparmor profile --name {}{} --output {}.apparmor\n", own, name, venv, name);
  lines += fmt::format("{0}cp {1}.apparmor {2}\n{0}apparmor_parser -r {2}\n", sudo, name, arguments.file());
  return lines;
}

Result<int> write_profile(const ProfileArguments& arguments) {
  const std::string text = PCTX_TRY(wanted_text(arguments));
  if (!arguments.output) {
    PCTX_TRY(sys::write_all(STDOUT_FILENO, text));
    return 0;
  }
  const Fd file =
      PCTX_TRY(sys::open_at(AT_FDCWD, *arguments.output, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NOCTTY, 0644));
  PCTX_TRY(sys::write_all(file.get(), text));
  return 0;
}

enum class Installed { absent, same, different };

struct Status {
  bool kernel = false;
  std::optional<std::string> mode, zygote_mode, launch_mode;
  Installed installed = Installed::absent;
  std::string text, diff;

  bool loaded() const { return mode && zygote_mode && launch_mode; }
  // The first that is another one than it should be.
  std::string worst_mode() const {
    for (const auto& each : {mode, zygote_mode, launch_mode})
      if (each != "enforce") return each.value_or("not loaded");
    return "enforce";
  }
  bool ready(bool ignore_diffs) const {
    const bool right = installed == Installed::same || (installed == Installed::different && ignore_diffs);
    return kernel && loaded() && right && worst_mode() == "enforce";
  }
  // Everything that keeps it from being ready, in one sentence.
  std::string problem(const ProfileArguments& arguments) const {
    const std::string name = arguments.profile();
    if (!kernel) return fmt::format("{}: nothing can be loaded into it", sys::kNoAppArmor);
    if (installed == Installed::absent) return fmt::format("{} is not installed", name);
    if (installed == Installed::different && !arguments.ignore_diffs)
      return fmt::format("{} is not what this engine{} needs", arguments.file(),
                         arguments.venv ? " and this virtualenv" : "");
    if (!loaded()) return fmt::format("{} is not loaded", name);
    return fmt::format("{} is in {} mode, in which it refuses nothing", name, worst_mode());
  }
};

Result<Status> look(const ProfileArguments& arguments) {
  Status status;
  status.text = PCTX_TRY(wanted_text(arguments));
  status.kernel = sys::kernel_has_apparmor();
  status.mode = sys::profile_mode(arguments.profile());
  Policy policy;
  policy.apparmor = arguments.name;
  status.zygote_mode = sys::profile_mode(zygote_profile(policy));
  status.launch_mode = sys::profile_mode(launch_profile(policy));
  if (const auto file = sys::try_read_file(arguments.file(), 1 << 20)) {
    status.installed = *file == status.text ? Installed::same : Installed::different;
    status.diff = profile_diff(*file, status.text);
  }
  return status;
}

std::string installed_word(Installed installed) {
  return installed == Installed::same ? "as it should be" : installed == Installed::absent ? "not there" : "different";
}

Result<int> show_profile_status(const ProfileArguments& arguments) {
  const Status status = PCTX_TRY(look(arguments));
  const bool ready = status.ready(arguments.ignore_diffs);
  const std::string own = sys::own_profile();
  if (arguments.json) {
    OrderedJson json{{"ready", ready}, {"kernel", status.kernel}, {"profile", arguments.profile()}};
    json["mode"] = status.mode ? OrderedJson(*status.mode) : OrderedJson();
    json["file"] = arguments.file();
    json["installed"] = installed_word(status.installed);
    json["diff"] = status.diff;
    json["confined_by"] = own.empty() ? OrderedJson() : OrderedJson(own);
    json["problem"] = ready ? OrderedJson() : OrderedJson(status.problem(arguments));
    json["text"] = status.text;
    json["install_commands"] = install_lines(arguments);
    print_out("{}\n", printable_json(json.dump(2, ' ', false, OrderedJson::error_handler_t::replace)));
    return ready ? 0 : 1;
  }
  print_out("kernel   {}\n", status.kernel ? "AppArmor is on" : "no AppArmor, or switched off");
  print_out("profile  {}: {}\n", arguments.profile(), status.loaded() ? "loaded, " + *status.mode : "not loaded");
  print_out("file     {}: {}\n", arguments.file(), installed_word(status.installed));
  print_out("caller   {}\n", own.empty() ? "unconfined" : own + ", on top of which the profile is put");
  if (ready) return 0;
  if (status.installed == Installed::different) print_out("\n- installed, + wanted:\n{}", status.diff);
  if (status.installed == Installed::absent) print_out("\n# the content of {}\n{}", arguments.file(), status.text);
  if (status.kernel) print_out("\n# lines that install it\n{}", install_lines(arguments));
  flush();
  say(status.problem(arguments));
  return 1;
}

}  // namespace

void add_apparmor(Verb program, int& status) {
  const Verb verb = program.add("apparmor", "The AppArmor profile of guests: write it, install it, look at it");
  verb.needs_another();
  auto arguments = std::make_shared<ProfileArguments>();
  const auto add = [&](const char* name, const char* means, Result<int> (*act)(const ProfileArguments&)) {
    const Verb inner = verb.add(name, means);
    inner.option("--name", arguments->name,
                 {.type = "NAME", .means = "The profile's name (default pctx-sandbox-guest, for every box)"});
    inner.option("--venv", arguments->venv, {.type = "DIR", .means = "The virtualenv that it is for"});
    inner.act(status, [arguments, act] { return act(*arguments); });
    return inner;
  };
  add("profile", "Write the profile for this engine and one virtualenv", write_profile)
      .option("--output", arguments->output,
              {.type = "FILE", .means = "Write it to a file instead of standard output"});
  add("install-commands", "Print the lines that install and load it", [](const ProfileArguments& given) -> Result<int> {
    PCTX_TRY(wanted_text(given));
    print_out("{}", install_lines(given));
    return 0;
  });
  const Verb look_at_it =
      add("status", "Say whether it is installed, unchanged, loaded and enforced", show_profile_status);
  look_at_it.footer("Exit status: 0 if all of that is so, 1 if not.");
  look_at_it.flag("--ignore-profile-diffs", arguments->ignore_diffs, "A file with another content is no error");
  look_at_it.flag("--json", arguments->json, "Print one JSON object");
}

}  // namespace pctx::cli
