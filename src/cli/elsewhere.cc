// `run --backend`: the line is resolved here and run there. Its policy travels as a file, its folders as copies.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/copies.h"
#include "base/print.h"
#include "base/printable.h"
#include "base/units.h"
#include "cli/options.h"
#include "cli/report_file.h"
#include "env/store.h"
#include "env/tree.h"
#include "launch/lend.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

constexpr std::size_t kMostReport = 64_MiB;

// One folder for all that this run lends; its name says whose it is, so that others can tell when nobody's.
class LentStage {
 public:
  static Result<LentStage> make(const backend::Reached& reached) {
    LentStage stage;
    stage.parent_ = PCTX_TRY(sys::open_at(AT_FDCWD, reached.lent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    stage.name_ = fmt::format("run-{}", ::getpid());
    stage.here_ = sys::join(reached.lent, stage.name_);
    stage.there_ = sys::join(reached.lent_seen, stage.name_);
    stage.uid_ = reached.user.value_or(reached.address.uid.value_or(::geteuid()));
    PCTX_TRY(env::remove_tree(stage.parent_.get(), stage.name_));
    if (::mkdir(stage.here_.c_str(), 0700) != 0 || ::chmod(stage.here_.c_str(), 0711) != 0)
      return os_error(fmt::format("cannot make {}", stage.here_));
    return stage;
  }
  LentStage(LentStage&&) = default;
  LentStage& operator=(LentStage&&) = default;
  ~LentStage() {
    if (parent_) (void)env::remove_tree(parent_.get(), name_);
  }

  std::string here(std::string_view name) const { return sys::join(here_, name); }
  std::string there(std::string_view name) const { return sys::join(there_, name); }
  uid_t uid() const { return uid_; }
  gid_t gid() const { return uid_ == ::geteuid() ? ::getegid() : uid_; }

 private:
  LentStage() = default;
  Fd parent_;
  std::string name_, here_, there_;
  uid_t uid_ = 0;
};

struct Lent {
  std::string source;
  std::optional<backend::FolderCopy> folder;  // brought back when the run is over
  std::string file;                           // the copy of a single file that may have changed; else empty
};

// Lends one path as a copy, and says how it is called there.
Result<std::string> lend_copy(const LentStage& stage, const std::string& source, bool writable,
                              std::vector<Lent>& lent) {
  struct stat status {};
  if (::stat(source.c_str(), &status) != 0) {
    return sys::about_path("cannot lend", os_error(source));
  }
  const std::string name = std::to_string(lent.size());
  Lent entry{source, std::nullopt, ""};
  if (S_ISDIR(status.st_mode)) {
    auto copy = PCTX_TRY(backend::FolderCopy::make(source, stage.here(name), stage.uid(), stage.gid()));
    if (writable) entry.folder.emplace(std::move(copy));
  } else if (S_ISREG(status.st_mode)) {
    PCTX_TRY(backend::copy_file(source, stage.here(name), stage.uid(), stage.gid()));
    if (writable) entry.file = stage.here(name);
  } else {
    return usage_error(fmt::format("{} is neither a file nor a folder", source), "sockets and devices are never lent");
  }
  lent.push_back(std::move(entry));
  return stage.there(name);
}

Result<void> bring_back(std::vector<Lent>& lent, bool quiet) {
  for (Lent& each : lent) {
    if (each.folder) {
      const FolderChanges changes = PCTX_TRY(each.folder->bring_back());
      for (const SkippedPath& skipped : quiet ? std::vector<SkippedPath>{} : changes.skipped)
        say(fmt::format("not brought back: {} ({})", printable_path(skipped.path), skipped.reason));
    }
    if (each.file.empty()) continue;
    const Fd from = PCTX_TRY(sys::open_at(AT_FDCWD, each.file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    const Fd to = PCTX_TRY(sys::open_at(AT_FDCWD, each.source, O_WRONLY | O_TRUNC | O_NOFOLLOW));
    const std::string bytes = PCTX_TRY(sys::read_all(from.get(), 1_GiB));
    PCTX_TRY(sys::write_all(to.get(), bytes));
  }
  return {};
}

bool has_as_it_is(const backend::Reached& reached, const std::string& path) {
  return std::any_of(reached.as_they_are.begin(), reached.as_they_are.end(),
                     [&](const std::string& each) { return sys::is_at_or_inside(path, each); });
}

Result<void> write_file(const std::string& path, std::string_view text, mode_t mode) {
  const Fd fd = PCTX_TRY(sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  PCTX_TRY(sys::write_all(fd.get(), text));
  return ::fchmod(fd.get(), mode) == 0 ? Result<void>{} : os_error(fmt::format("cannot write {}", path));
}

Result<void> refuse_what_it_cannot(const Policy& policy, std::string_view backend) {
  if (policy.network == Network::host)
    return usage_error(
        fmt::format("--network host: a box of the backend '{}' is in a container without network", backend),
        "name the hosts: --network allow:HOST, or use --backend namespaces");
  return {};
}

}  // namespace

Result<int> run_elsewhere(const backend::Choice& choice, const RunArguments& arguments, int report) {
  const backend::Backend& backend = *choice.backend;
  if (backend.execute == nullptr)
    return usage_error(fmt::format("the backend '{}' runs no commands", backend.name), "leave --backend out");
  RunArguments here = arguments;
  here.built_by = backend.name;
  Prepared prepared = PCTX_TRY(resolve(here));
  Policy& policy = prepared.policy;
  PCTX_TRY(validate(policy));
  PCTX_TRY(refuse_what_it_cannot(policy, backend.name));
  PCTX_TRY(check_report(policy, report));
  if (arguments.changed && !policy.mnt) return nothing_to_list();

  // What resolving added is there by itself: Environments, and the interpreter's prefix, which is asked for.
  backend::Wanted wanted{PCTX_VERSION, arguments.lend};
  const auto store = env::Store::open();
  const auto is_there = [&](std::size_t i) {
    return i >= prepared.given && !policy.binds[i].target.starts_with("/script/");
  };
  for (std::size_t i = 0; i < policy.binds.size(); ++i)
    if (is_there(i) && !policy.binds[i].writable &&
        !(store && sys::is_at_or_inside(policy.binds[i].source, store->folder() + "/env")))
      wanted.lent.push_back(policy.binds[i].source);

  const backend::Reached reached = PCTX_TRY(backend.reach(wanted));
  const LentStage stage = PCTX_TRY(LentStage::make(reached));
  std::vector<Lent> lent;
  const auto lend = [&](std::string& source, bool writable) -> Result<void> {
    std::string real = sys::resolved(source);
    PCTX_TRY(check_stays(policy, "cannot lend", source, real));
    if (!writable && has_as_it_is(reached, real)) {
      source = std::move(real);
      return {};
    }
    source = PCTX_TRY(lend_copy(stage, source, writable, lent));
    return {};
  };
  std::optional<std::string> mnt = policy.mnt;
  if (mnt) PCTX_TRY(lend(*mnt, true));
  std::vector<Bind> binds = policy.binds;
  for (std::size_t i = 0; i < binds.size(); ++i) {
    if (!is_there(i)) PCTX_TRY(lend(binds[i].source, binds[i].writable));
  }
  policy.mnt = std::move(mnt);
  policy.binds = std::move(binds);
  if (policy.seccomp) policy.seccomp = PCTX_TRY(lend_copy(stage, *policy.seccomp, false, lent));
  PCTX_TRY(check_as_json(policy));
  PCTX_TRY(write_file(stage.here("policy.json"), policy_to_json(policy), 0644));
  const std::string written = stage.here("report.json");
  PCTX_TRY(write_file(written, "", 0600));
  if (stage.uid() != ::geteuid() && ::lchown(written.c_str(), stage.uid(), stage.gid()) != 0)
    return os_error("cannot prepare the report");

  backend::Command command;
  command.words = {
      "run", "--backend", "namespaces", "--policy", stage.there("policy.json"), "--report", stage.there("report.json")};
  command.terminal = arguments.tty;
  command.network = policy.network != Network::none;
  if (arguments.tty) command.words.emplace_back("--tty");
  if (arguments.json) command.words.emplace_back("--json");
  if (arguments.quiet) command.words.emplace_back("--quiet");
  if (arguments.changed) command.words.emplace_back("--changed");
  command.words.emplace_back("--");
  command.words.insert(command.words.end(), prepared.command.argv.begin(), prepared.command.argv.end());
  command.variables = {{"PCTX_SANDBOX_INSIDE", fmt::format("{} {}", backend.name, choice.reason)},
                       {"PCTX_SANDBOX_INSIDE_LIMITS", reached.limits}};
  const int status = PCTX_TRY(backend.execute(wanted, command));
  PCTX_TRY(bring_back(lent, arguments.quiet));
  if (report >= 0) {
    const Fd from = PCTX_TRY(sys::open_at(AT_FDCWD, written, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    const std::string text = PCTX_TRY(sys::read_all(from.get(), kMostReport));
    PCTX_TRY(write_report(report, std::string_view{text}.substr(0, text.find_last_not_of('\n') + 1)));
  }
  return status;
}

}  // namespace pctx::cli
