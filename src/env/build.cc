#include "env/build.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include <fmt/format.h>

#include "box/box.h"
#include "env/hosts.h"
#include "env/index.h"
#include "env/key.h"
#include "env/publish.h"
#include "env/uv.h"
#include "env/version.h"
#include "launch/lend.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUv = "/run/pctx/uv";        // in the box
constexpr const char* kInput = "/run/pctx/input";  // in the box: what we wrote for the build
constexpr std::uint64_t kMaxTree = 64_GiB;         // torch with everything it needs is 8
constexpr std::uint64_t kSpareDisk = 256_MiB;      // left to everybody else
constexpr Millis kMeasureEvery{2'000};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// What of uv's words is about our way of calling it.
std::string resolver_words(std::string_view text) {
  std::string words;
  for (std::string_view line : sys::split(text, '\n')) {
    if (line.starts_with("Using Python ") || line.starts_with("Using CPython ") ||
        line.starts_with("Creating virtual environment ") || line.find("`--pylock` option") != std::string_view::npos)
      continue;
    words += fmt::format("{}\n", line);
  }
  return words;
}

Result<void> write_input(const std::string& path, std::string_view text) {
  const Fd fd = PCTX_TRY(sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644));
  return sys::write_all(fd.get(), text);
}

class Build {
 public:
  Build(const Request& request, const Progress& progress, const Interpreter& python,
        const std::vector<Requirement>& requirements)
      : request_(request), progress_(progress), python_(python), requirements_(requirements) {}

  Result<Ensured> run(const Store& store, const std::string& key);

 private:
  struct Step {
    const char* name;
    bool network = false;
  };
  Result<void> prepare(const Store& store, const std::string& key);
  Result<Policy> policy_for(const Step& step) const;
  // The output, or nothing when it failed: then `failed_` says why.
  Result<std::optional<std::string>> in_box(const Step& step, const std::vector<std::string>& command);
  Result<std::optional<std::string>> try_in_box(const Step& step, const std::vector<std::string>& command,
                                                NetworkRecord& record);
  Result<bool> make_tree();
  bool keep_going(const Step& step, Clock::time_point since);
  std::vector<std::string> uv(std::vector<std::string> words) const;

  const Request& request_;
  const Progress& progress_;
  const Interpreter& python_;
  const std::vector<Requirement>& requirements_;
  IndexSettings index_;
  NetworkPolicy network_;
  std::string uv_, staging_, place_;
  Fd tree_;
  Clock::time_point started_ = Clock::now(), measured_ = started_;
  std::string stopped_;       // why we ended the box
  bool interrupted_ = false;  // somebody else did: what is left of the build is not wanted
  Ensured failed_;
  Record record_;
};

Result<Policy> Build::policy_for(const Step& step) const {
  Policy policy;
  Limits& limits = policy.limits;
  rlimit files{};
  (void)::getrlimit(RLIMIT_NOFILE, &files);
  const long cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
  limits.memory = 4_GiB;
  limits.cpus = static_cast<std::uint32_t>(std::clamp(cpus, 1L, 64L) * 1000);
  limits.pids = 1024;
  // Without root a build has our own uid. uv may then have many files; code of packages only what any guest may.
  policy.allow_degraded.set(index(Layer::subordinate_ids));
  limits.files = std::clamp<std::uint64_t>(files.rlim_max, 256, request_.source ? 512 : 4096);
  limits.disk = 16_GiB;  // the largest file; the cache is in the tree, /tmp counts as memory
  limits.inodes = 1'000'000;
  const Millis left = request_.timeout - std::chrono::duration_cast<Millis>(Clock::now() - started_);
  limits.timeout = std::max(left, Millis{1});
  // At its final path, which scripts and pyvenv.cfg then name: nothing has to be rewritten after the rename.
  policy.binds.push_back({staging_ + "/tree", place_, true});
  lend_interpreter(policy, python_);
  policy.env = {{"PYTHONDONTWRITEBYTECODE", "1"}};
  if (!step.network) return policy;
  policy.network = network_.rules.empty() ? Network::none : Network::allow;
  if (!network_.rules.empty()) policy.allowed = network_;
  policy.binds.push_back({uv_, kUv, false});
  policy.binds.push_back({staging_ + "/input", kInput, false});
  for (const Bind& bind : index_.binds) {
    if (sys::is_inside(place_, bind.target))
      return usage_error(
          fmt::format("{} holds the Environments themselves, and packages are to come from it", bind.source),
          "keep wheels in a folder of their own, or set PCTX_SANDBOX_CACHE_DIR");
    const auto covers = [&](const Bind& other) {
      return bind.target == other.target ||
             (bind.source == bind.target && other.source == other.target && sys::is_inside(bind.target, other.target));
    };
    if (std::none_of(policy.binds.begin(), policy.binds.end(), covers)) policy.binds.push_back(bind);
  }
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"UV_CACHE_DIR", fmt::format("{}/{}/cache", place_, kScratchName)},
           {"TMPDIR", fmt::format("{}/{}", place_, kScratchName)},
           {"UV_PYTHON_DOWNLOADS", "never"},
           {"UV_NO_PROGRESS", "1"},
           {"NO_COLOR", "1"}})
    policy.env.emplace_back(name, value);
  policy.env.insert(policy.env.end(), index_.variables.begin(), index_.variables.end());
  return policy;
}

bool Build::keep_going(const Step& step, Clock::time_point since) {
  const auto now = Clock::now();
  if (progress_) progress_(step.name, std::chrono::duration_cast<Millis>(now - since), false);
  struct statvfs disk {};
  if (::fstatvfs(tree_.get(), &disk) == 0 && disk.f_bavail * disk.f_frsize < kSpareDisk)
    stopped_ = fmt::format("the disk that holds {} is full", place_);
  if (now - measured_ > kMeasureEvery) {
    measured_ = now;
    if (measure(tree_.get()) > kMaxTree)
      stopped_ = fmt::format("the packages take more than {}", format_size(kMaxTree));
  }
  return stopped_.empty();
}

// Index pages may link to other hosts. As long as nothing but uv runs in the box, it is told by what it asked for in
// vain.
Result<std::optional<std::string>> Build::in_box(const Step& step, const std::vector<std::string>& command) {
  constexpr int kRounds = 4;
  for (int round = 1;; ++round) {
    NetworkRecord record;
    auto output = PCTX_TRY(try_in_box(step, command, record));
    const bool again = !output && stopped_.empty() && !interrupted_ && !request_.source && round < kRounds;
    if (!again || !learn_hosts(network_, record)) return output;
    failed_ = {};
  }
}

Result<std::optional<std::string>> Build::try_in_box(const Step& step, const std::vector<std::string>& command,
                                                     NetworkRecord& record) {
  Policy policy = PCTX_TRY(policy_for(step));
  const Plan plan = PCTX_TRY(compile_here(policy, {}));
  const auto since = Clock::now();
  RunOptions options{.capture = true, .no_input = true};
  options.tick = [&] { return keep_going(step, since); };
  const Ending ending = PCTX_TRY(run_box(plan, {command}, options));
  if (ending.receipt.network) record = *ending.receipt.network;
  if (progress_) progress_(step.name, std::chrono::duration_cast<Millis>(Clock::now() - since), true);
  const Outcome& outcome = ending.outcome;
  // However the program answers: Python's compiler ends with an ordinary 1, or goes on.
  interrupted_ |= ending.forwarded_signal != 0;
  if (outcome.kind == OutcomeKind::exited && outcome.exit_code == 0 && stopped_.empty() && !interrupted_)
    return std::optional{ending.captured_stdout};
  failed_.why = !stopped_.empty() ? stopped_
                : interrupted_    ? "it was interrupted"
                : outcome.kind == OutcomeKind::timed_out
                    ? fmt::format("the build did not end within {}", format_duration(request_.timeout))
                : outcome.kind == OutcomeKind::exited ? fmt::format("{} failed", step.name)
                                                      : fmt::format("{}: {}", step.name, outcome.sentence);
  failed_.words = scrub(resolver_words(ending.captured_stderr), index_.secrets);
  return std::optional<std::string>{};
}

std::vector<std::string> Build::uv(std::vector<std::string> words) const {
  words.insert(words.begin(), kUv);
  if (words[1] != "pip") return words;
  words.insert(words.end(), {"--python", place_ + "/bin/python"});
  if (!request_.source) words.insert(words.end(), {"--only-binary", ":all:"});
  if (index_.no_index) words.emplace_back("--no-index");
  return words;
}

Result<void> Build::prepare(const Store& store, const std::string& key) {
  uv_ = PCTX_TRY(find_uv(request_.python.empty() ? python_.executable : request_.python));
  index_ = PCTX_TRY(index_settings(settings_of_this_host(), request_.source));
  std::vector<std::string> urls;
  for (const Requirement& requirement : requirements_) urls.push_back(requirement.url);
  index_.addresses.insert(index_.addresses.end(), urls.begin(), urls.end());
  network_ = build_network(index_);
  place_ = store.environment_path(key);
  staging_ = PCTX_TRY(store.make_staging(key));
  tree_ = PCTX_TRY(sys::open_at(AT_FDCWD, staging_ + "/tree", O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (::mkdirat(tree_.get(), kScratchName, 0777) != 0 || ::fchmodat(tree_.get(), kScratchName, 0777, 0) != 0)
    return os_error("cannot make a folder for the build");
  std::string list;
  for (const Requirement& requirement : requirements_) {
    list += requirement.text() + "\n";
    if (requirement.url.starts_with("file://"))
      index_.binds.push_back({requirement.url.substr(7), requirement.url.substr(7), false});
  }
  return write_input(staging_ + "/input/requirements.in", list);
}

// False: it could not be built, and `failed_` says why.
Result<bool> Build::make_tree() {
  const Step venv{"making the environment", true}, resolve{"resolving", true}, install{"installing", true},
      compile{"compiling", false};
  if (!PCTX_TRY(in_box(venv, uv({"venv", "--no-project", "--allow-existing", "--python", python_.executable, place_}))))
    return false;
  const std::string input{kInput};
  const auto lock = PCTX_TRY(
      in_box(resolve, uv({"pip", "compile", "--format", "pylock.toml", "--no-header", input + "/requirements.in"})));
  if (!lock) return false;
  record_.packages = packages_of_lock(*lock);
  PCTX_TRY(write_input(staging_ + "/input/pylock.toml", *lock));
  if (!PCTX_TRY(in_box(install, uv({"pip", "install", "-r", input + "/pylock.toml"})))) return false;
  // Without network, index settings and site: nothing that was just installed (a .pth file, sitecustomize) is run by
  // it. Sources are never looked at again, so their times do not matter.
  const std::string jobs = std::to_string(std::clamp(::sysconf(_SC_NPROCESSORS_ONLN), 1L, 16L));
  const auto compiled =
      PCTX_TRY(in_box(compile, {python_.executable, "-I", "-S", "-m", "compileall", "-qq", "-j", jobs, "-x", "/tests/",
                                "--invalidation-mode", "unchecked-hash",
                                fmt::format("{}/lib/python{}/site-packages", place_, python_.minor())}));
  // A package may hold files that are not Python of this version; they fail when they are imported, not now.
  record_.bytecode = compiled.has_value();
  return stopped_.empty() && !interrupted_;
}

Result<Ensured> Build::run(const Store& store, const std::string& key) {
  struct Cleanup {
    const std::string& path;
    ~Cleanup() {
      if (!path.empty()) (void)remove_tree(AT_FDCWD, path);
    }
  } cleanup{staging_};
  PCTX_TRY(prepare(store, key));
  if (!PCTX_TRY(make_tree())) return std::move(failed_);
  record_.key = key;
  for (const Requirement& requirement : requirements_) record_.requested.push_back(scrub(requirement.text(), {}));
  record_.python = python_;
  record_.built = utc_now();
  record_.network = network_.rules.empty() ? "none" : "indexes";
  record_.source = request_.source;
  record_.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  const Fd shared = PCTX_TRY(store.open_shared());
  if (auto finished = finish_tree(tree_.get(), shared.get(), requirements_, std::move(record_)); !finished) {
    // What the packages did is their failure, what the system refuses is ours.
    if (finished.error().kind != ErrorKind::unavailable) return std::move(finished).error();
    failed_.why = finished.error().what;
    return std::move(failed_);
  }
  Ensured ensured;
  ensured.environment = PCTX_TRY(store.publish(key, staging_));
  ensured.built = true;
  return ensured;
}

}  // namespace

bool addresses_are_allowed() {
  const char* value = std::getenv("PCTX_SANDBOX_ALLOW_URLS");
  return value != nullptr && std::string_view{value} == "1";
}

Result<Interpreter> interpreter_for(const Request& request, const Store& store) {
  if (request.python.empty()) return choose_interpreter(request.requires_python, store.memory());
  Interpreter python = PCTX_TRY(ask_interpreter(request.python, store.memory()));
  if (!PCTX_TRY(satisfies(python.version, request.requires_python)))
    return usage_error(
        fmt::format("{} is Python {}, and {} is required", request.python, python.version, request.requires_python),
        "name another with --python");
  return python;
}

Result<Ensured> ensure(const Request& request, const Progress& progress) {
  const std::vector<Requirement> requirements =
      PCTX_TRY(parse_requirements(request.requirements, addresses_are_allowed()));
  if (requirements.empty()) return usage_error("no requirement is given", "name at least one package");
  const Store store = PCTX_TRY(Store::open());
  const Interpreter python = PCTX_TRY(interpreter_for(request, store));
  const std::string key = make_key(requirements, python, request.source);
  Ensured ensured;
  if (!request.fresh) ensured.environment = PCTX_TRY(store.find(key));
  if (ensured.environment || request.find_only) return ensured;
  store.sweep();
  const auto since = Clock::now();
  const Fd lock = PCTX_TRY(store.lock_build(key, [&] {
    if (progress) progress("waiting for another process that builds the same", Millis{0}, false);
  }));
  if (progress && Clock::now() - since > Millis{1000})
    progress("waiting for another process that builds the same",
             std::chrono::duration_cast<Millis>(Clock::now() - since), true);
  if (!request.fresh) ensured.environment = PCTX_TRY(store.find(key));
  if (ensured.environment) return ensured;
  return Build{request, progress, python, requirements}.run(store, key);
}

}  // namespace pctx::env
