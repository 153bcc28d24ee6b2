#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "backend/backend.h"
#include "base/json.h"
#include "base/print.h"
#include "base/printable.h"
#include "cli/environment.h"
#include "cli/verbs.h"
#include "env/build.h"
#include "env/key.h"
#include "env/store.h"
#include "env/uv.h"
#include "sys/files.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace pctx::cli {
namespace {

struct EnvArguments {
  env::Request request;
  std::string timeout = "600s", max_size, older_than, key, backend;
  bool json = false, verify = false, all = false, dry_run = false;
};

std::string dumped(const OrderedJson& json) {
  return printable_json(json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

OrderedJson to_json(const env::Record& record, const std::string& path) {
  OrderedJson json = OrderedJson::parse(env::record_to_json(record), nullptr, false);
  OrderedJson result{{"key", record.key}, {"path", path}};
  result.update(json);
  result.erase("format");
  return result;
}

Result<int> build(EnvArguments& arguments) {
  env::Request& request = arguments.request;
  request.timeout = PCTX_TRY(named("--timeout", parse_duration(arguments.timeout)));
  if (request.timeout.count() <= 0)
    return usage_error("--timeout: a build needs more than no time", "leave it out for 10 minutes");
  if (request.requirements.empty()) {
    if (arguments.json) print_out("null\n");  // what needs no package needs no Environment
    if (!arguments.json) print_error("pctx-sandbox: nothing to build: no requirement is given\n");
    return 0;
  }
  if (request.source) warn_about_source();
  const env::Ensured ensured = PCTX_TRY(env::ensure(request, show_progress()));
  if (!ensured.environment) {
    explain_failure(ensured, request.requirements);
    return 1;
  }
  const env::Environment& environment = *ensured.environment;
  if (!arguments.json) {
    print_out("{}\n", environment.path);
    return 0;
  }
  const OrderedJson record = to_json(environment.record, environment.path);
  const OrderedJson result{{"key", environment.record.key},
                           {"path", environment.path},
                           {"python", environment.record.python.executable},
                           {"site_packages", environment.site_packages()},
                           {"modules", record["modules"]},
                           {"packages", record["packages"]},
                           {"built", ensured.built}};
  print_out("{}\n", dumped(result));
  return 0;
}

// The same line in the container of a backend.
Result<int> run_inside_of(const backend::Choice& choice, const Words& words, const backend::Wanted& wanted,
                          const std::string& tools) {
  backend::Command command;
  command.network = true;
  for (std::size_t i = 0; i < words.all.size(); ++i)
    if (words.all[i] == "--backend")
      ++i;
    else if (!words.all[i].starts_with("--backend="))
      command.words.push_back(words.all[i]);
  if (!tools.empty()) command.variables = {{"PATH", fmt::format("{}:/usr/local/bin:/usr/bin:/bin", tools)}};
  // Where packages come from on this host.
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable = *each;
    const std::size_t equal = variable.find('=');
    for (std::string_view kept : {"UV_", "PIP_"})
      if (variable.starts_with(kept) && equal != std::string_view::npos)
        command.variables.emplace_back(variable.substr(0, equal), variable.substr(equal + 1));
  }
  return choice.backend->execute(wanted, command);
}

// Environments are shared with the containers of other backends, which have them read-only. Where this host cannot
// build one in a box, they are built in there, and are there.
Result<bool> are_elsewhere(const backend::Choice& choice) {
  return choice.backend->execute != nullptr && !PCTX_TRY(backend::find("namespaces"))->look().usable;
}

Result<int> build_where_it_can_be(EnvArguments& arguments, const Words& words) {
  if (arguments.backend.empty()) return build(arguments);
  const backend::Choice choice = PCTX_TRY(backend::choose(arguments.backend));
  if (!PCTX_TRY(are_elsewhere(choice))) return build(arguments);
  const std::string python = arguments.request.python.empty() ? "/usr/bin/python3" : arguments.request.python;
  const std::string uv = PCTX_TRY(env::find_uv(python));
  const std::string tools = uv.substr(0, uv.rfind('/'));
  backend::Wanted wanted{PCTX_VERSION, {tools}};
  if (const std::size_t bin = python.rfind("/bin/"); !python.starts_with("/usr/") && bin != std::string::npos)
    wanted.lent.push_back(python.substr(0, bin));
  return run_inside_of(choice, words, wanted, tools);
}

// `list`, `show` and `prune`: of this host's store, or of the container's.
Result<int> look_where_they_are(const EnvArguments& arguments, const Words& words,
                                Result<int> (*look)(const EnvArguments&)) {
  if (arguments.backend.empty()) return look(arguments);
  const backend::Choice choice = PCTX_TRY(backend::choose(arguments.backend));
  if (!PCTX_TRY(are_elsewhere(choice))) return look(arguments);
  return run_inside_of(choice, words, {PCTX_VERSION, {}}, "");
}

std::string when(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  if (seconds == 0 || ::gmtime_r(&time, &parts) == nullptr) return "never";
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

OrderedJson to_json(const env::StoredEnvironment& entry, const env::Store& store) {
  return {{"key", entry.record.key},
          {"path", store.environment_path(entry.record.key)},
          {"requested", entry.record.requested},
          {"python", entry.record.python.version},
          {"bytes", entry.record.size.bytes},
          {"built", entry.record.built},
          {"last_use", when(entry.last_use)},
          {"damaged", entry.damaged}};
}

Result<int> list(const EnvArguments& arguments) {
  const env::Store store = PCTX_TRY(env::Store::open());
  const auto stored = PCTX_TRY(store.list());
  if (arguments.json) {
    OrderedJson all = OrderedJson::array();
    for (const env::StoredEnvironment& entry : stored) all.push_back(to_json(entry, store));
    print_out("{}\n", dumped(all));
    return 0;
  }
  std::uint64_t bytes = 0;
  for (const env::StoredEnvironment& entry : stored) {
    bytes += entry.record.size.bytes;
    print_out("{}  {:>9}  {:<20}  {:<8} {}{}\n", entry.record.key.substr(0, 12), format_size(entry.record.size.bytes),
              when(entry.last_use), entry.record.python.version, fmt::join(entry.record.requested, " "),
              entry.damaged ? "  (damaged)" : "");
  }
  print_error("{} Environments, {} in {}\n", stored.size(), format_size(bytes), store.folder());
  return 0;
}

Result<env::StoredEnvironment> find_by_prefix(const env::Store& store, const std::string& prefix) {
  std::vector<env::StoredEnvironment> matching = PCTX_TRY(store.list());
  std::erase_if(matching, [&](const auto& entry) { return !entry.record.key.starts_with(prefix); });
  if (matching.empty() || prefix.empty())
    return usage_error("no Environment has a key that starts so", "see 'pctx-sandbox env list'");
  if (matching.size() > 1) return usage_error("more than one Environment has a key that starts so", "give more of it");
  return matching[0];
}

Result<int> show_entry(const EnvArguments& arguments) {
  const env::Store store = PCTX_TRY(env::Store::open());
  const env::StoredEnvironment entry = PCTX_TRY(find_by_prefix(store, arguments.key));
  const std::string path = store.environment_path(entry.record.key);
  std::vector<std::string> differences;
  if (arguments.verify) {
    const Fd top = PCTX_TRY(sys::open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    differences =
        PCTX_TRY(env::compare_with_manifest(top.get(), env::read_below(top.get(), env::kManifestName, 512_MiB)));
  }
  const bool damaged = entry.damaged || !differences.empty();
  if (arguments.json) {
    OrderedJson json = to_json(entry.record, path);
    json["last_use"] = when(entry.last_use);
    json["damaged"] = damaged;
    if (arguments.verify) json["differences"] = differences;
    print_out("{}\n", dumped(json));
    return damaged ? 1 : 0;
  }
  const env::Record& record = entry.record;
  print_out("{}\n  requested  {}\n  python     {} {}\n  built      {}, with the network: {}{}\n  last use   {}\n", path,
            fmt::join(record.requested, " "), record.python.version, record.python.executable, record.built,
            record.network, record.source ? ", code of packages ran" : "", when(entry.last_use));
  print_out("  size       {} in {} files\n  packages\n", format_size(record.size.bytes), record.size.files);
  for (const env::Package& package : record.packages)
    print_out("    {} {}  sha256:{}\n", package.name, package.version,
              package.sha256.empty() ? "unknown" : package.sha256);
  for (const std::string& difference : differences) print_out("  damaged: {}\n", difference);
  if (damaged && differences.empty()) print_out("  damaged: a folder is not as it was published\n");
  if (arguments.verify && !damaged) print_out("  verified: every file is as it was published\n");
  return damaged ? 1 : 0;
}

// As everywhere, and days.
Result<Millis> parse_age(const std::string& text) {
  if (!text.ends_with('d')) return parse_duration(text);
  const Millis days = PCTX_TRY(parse_duration(text.substr(0, text.size() - 1) + "h"));
  return days * 24;
}

Result<int> prune(const EnvArguments& arguments) {
  env::PruneLimits limits;
  limits.all = arguments.all;
  limits.dry_run = arguments.dry_run;
  if (!arguments.max_size.empty()) limits.max_size = PCTX_TRY(parse_size(arguments.max_size));
  if (!arguments.older_than.empty()) limits.older_than = PCTX_TRY(parse_age(arguments.older_than));
  const env::Store store = PCTX_TRY(env::Store::open());
  const env::Pruned pruned = PCTX_TRY(store.prune(limits));
  if (arguments.json) {
    OrderedJson removed = OrderedJson::array();
    for (const env::StoredEnvironment& entry : pruned.removed) removed.push_back(to_json(entry, store));
    print_out("{}\n", dumped({{"removed", removed},
                              {"in_use", pruned.in_use},
                              {"bytes", pruned.bytes},
                              {"bytes_left", pruned.bytes_left},
                              {"dry_run", limits.dry_run}}));
    return 0;
  }
  for (const env::StoredEnvironment& entry : pruned.removed)
    print_out("{}  {:>9}  {}\n", entry.record.key.substr(0, 12), format_size(entry.record.size.bytes),
              fmt::join(entry.record.requested, " "));
  for (const std::string& key : pruned.in_use) print_error("pctx-sandbox: {} is in use and stays\n", key.substr(0, 12));
  print_error("{} Environments {}, {}; {} are left\n", pruned.removed.size(), limits.dry_run ? "would go" : "removed",
              format_size(pruned.bytes), format_size(pruned.bytes_left));
  return 0;
}

}  // namespace

void add_env(Verb program, const Words& words, int& status) {
  const Verb verb = program.add("env", "Build, list, show and remove Environments");
  verb.footer(
      "An Environment is a read-only set of Python packages, built once in a box of its own and found\n"
      "by what was asked for. Examples:\n"
      "  pctx-sandbox env build pandas 'numpy>=2'\n"
      "  pctx-sandbox env list\n"
      "  pctx-sandbox env prune --max-size 2G --older-than 30d");
  if (!words.wants("env")) return;
  verb.needs_another();
  auto arguments = std::make_shared<EnvArguments>();

  const Verb building = verb.add("build", "Find the Environment for these requirements, or build it");
  building.option("requirements", arguments->request.requirements,
                  {.type = "REQ", .means = "PEP 508 requirements, also behind --"});
  building.option("--python", arguments->request.python,
                  {.type = "FILE", .means = "The interpreter (default: the system's python3)"});
  building.flag("--no-cache", arguments->request.fresh, "Build it anew even if it is there");
  building.flag("--allow-source", arguments->request.source,
                "Also build source distributions: their code then runs, and reaches the indexes");
  building.option("--timeout", arguments->timeout,
                  {.type = "TIME", .means = "Wall-clock time of the build (default 600s)"});
  building.option("--backend", arguments->backend,
                  {.type = "BACKEND", .means = "For boxes of this backend, which may have to build it"});
  building.flag("--json", arguments->json, "Print one JSON object: key, path, modules, packages");
  building.footer(
      "Prints the path. Exit status: 0; 1 if the packages cannot be had, with the resolver's own words\n"
      "on stderr; 125 if we failed. Wheels only; indexes are the host's (UV_*, PIP_*, pip.conf).");
  building.act(status, [arguments, &words] {
    enter_delegated_scope(words.all);
    auto& all = arguments->request.requirements;
    all.insert(all.end(), words.command.begin(), words.command.end());
    return build_where_it_can_be(*arguments, words);
  });

  const auto looks = [&](const Verb& each, Result<int> (*look)(const EnvArguments&)) {
    each.option("--backend", arguments->backend,
                {.type = "BACKEND", .means = "Those of this backend, which has its own where the host cannot build"});
    each.act(status, [arguments, look, &words] { return look_where_they_are(*arguments, words, look); });
  };
  const Verb listing = verb.add("list", "List Environments: key, size, last use, Python, requirements");
  listing.flag("--json", arguments->json, "Print a JSON array");
  looks(listing, list);

  const Verb showing = verb.add("show", "Show what one Environment holds");
  showing.option("key", arguments->key, {.type = "KEY", .means = "Its key, or how it starts", .required = true});
  showing.flag("--verify", arguments->verify, "Compare every file with what was published");
  showing.flag("--json", arguments->json, "Print one JSON object");
  showing.footer("Exit status 1 if it is damaged: it is then built anew when it is next needed.");
  looks(showing, show_entry);

  const Verb pruning = verb.add("prune", "Remove Environments, and what killed builds have left");
  pruning.option("--max-size", arguments->max_size,
                 {.type = "SIZE", .means = "Of all together; the longest unused go first"});
  pruning.option("--older-than", arguments->older_than,
                 {.type = "TIME", .means = "Those not used for so long, for example 30d"});
  pruning.flag("--all", arguments->all, "All that are not in use");
  pruning.flag("--dry-run", arguments->dry_run, "Only say what would go");
  pruning.flag("--json", arguments->json, "Print one JSON object");
  pruning.footer("Without a limit only damaged ones go. What is in use stays.");
  looks(pruning, prune);
}

}  // namespace pctx::cli
