#include "env/publish.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <climits>

#include <fmt/format.h>

#include "base/units.h"
#include "env/tree.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

constexpr std::size_t kMaxMetadata = 64U << 20;

// A wheel may put files anywhere in the Environment, over the interpreter's as well. These decide which Python runs.
Result<std::string> check_interpreter(int tree, const Interpreter& python) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlinkat(tree, "bin/python", target.data(), target.size() - 1);
  const std::string config = read_below(tree, "pyvenv.cfg", 64_KiB);
  const std::string home = fmt::format("home = {}\n", python.executable.substr(0, python.executable.rfind('/')));
  std::string version;
  bool right = length > 0 && python.executable == target.data() && config.find(home) != std::string::npos;
  for (std::string_view line : sys::split(config, '\n')) {
    if (line.starts_with("uv = ")) version = line.substr(5);
    right &= line != "include-system-site-packages = true";
  }
  for (const char* name : {"bin", "lib", "lib/python"}) {
    struct stat status {};
    const std::string path =
        std::string_view{name} == "lib/python" ? fmt::format("lib/python{}", python.minor()) : name;
    right &= ::fstatat(tree, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode);
  }
  if (!right)
    return unavailable("a package replaced the Environment's interpreter or its settings", "choose other packages");
  return version;
}

// "pandas-2.2.3.dist-info" → pandas
std::string distribution_of(const std::string& folder) { return normalise_name(folder.substr(0, folder.find('-'))); }

void find_modules(int tree, const std::vector<Requirement>& requirements, Record& record) {
  const std::string site = fmt::format("lib/python{}/site-packages", record.python.minor());
  const auto names = names_below(tree, site);
  for (const Requirement& requirement : requirements)
    for (const std::string& name : names) {
      if (!name.ends_with(".dist-info") || distribution_of(name) != requirement.name) continue;
      const std::string info = fmt::format("{}/{}", site, name);
      const bool known = !record.modules.empty() && record.modules.back().first == requirement.name;
      if (!known)
        record.modules.emplace_back(requirement.name,
                                    modules_of(read_below(tree, info + "/top_level.txt", kMaxMetadata),
                                               read_below(tree, info + "/RECORD", kMaxMetadata)));
    }
}

Result<void> write_new(int tree, const char* name, std::string_view text) {
  PCTX_TRY(remove_tree(tree, name));  // a package may have put something there
  const Fd fd = PCTX_TRY(sys::open_at(tree, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0444));
  PCTX_TRY(sys::write_all(fd.get(), text));
  if (::fchmod(fd.get(), 0444) != 0 || ::fsync(fd.get()) != 0) return os_error(fmt::format("cannot write {}", name));
  return {};
}

}  // namespace

Result<void> finish_tree(int tree, int shared, const std::vector<Requirement>& requirements, Record record) {
  record.uv = PCTX_TRY(check_interpreter(tree, record.python));
  for (const char* name : {kScratchName, ".lock", ".gitignore", "CACHEDIR.TAG", kRecordName, kManifestName})
    PCTX_TRY(remove_tree(tree, name));
  find_modules(tree, requirements, record);
  const Frozen frozen = PCTX_TRY(freeze(tree, shared));
  record.size = frozen.size;
  PCTX_TRY(write_new(tree, kManifestName, frozen.manifest));
  PCTX_TRY(write_new(tree, kRecordName, record_to_json(record)));
  if (::fchmod(tree, 0755) != 0) return os_error("cannot freeze an Environment");
  return {};
}

}  // namespace pctx::env
