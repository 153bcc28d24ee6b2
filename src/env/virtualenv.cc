#include "env/virtualenv.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/printable.h"
#include "base/units.h"
#include "env/interpreter.h"
#include "plan/plan.h"
#include "sys/files.h"

namespace pctx::env {
namespace {

constexpr std::array kParts{"bin", "lib", "lib64", "share", "etc"};
constexpr std::array kBaseParts{"bin", "lib", "lib64"};
constexpr std::array<std::string_view, 11> kCovered{"/tmp", "/dev",          "/proc",    "/sys",     "/etc",   "/mnt",
                                                    "/run", "/home/sandbox", "/var/tmp", "/var/run", "/script"};
constexpr std::array<std::string_view, 5> kSystem{"/usr", "/bin", "/lib", "/lib64", "/sbin"};
constexpr const char* kElsewhere = "/run/virtualenv";
constexpr int kMostLinks = 40;
constexpr std::size_t kLongestConfig = 64_KiB;

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A prefix that is somebody's home, or the root, holds more than Python.
bool is_shared(const std::string& prefix) {
  const char* home = std::getenv("HOME");
  const std::string own = home != nullptr ? sys::resolved(home) : "";
  if (prefix == "/" || (!own.empty() && sys::is_at_or_inside(own, prefix)) || prefix.ends_with("/.local")) return true;
  const std::string parent = parent_of(prefix);
  constexpr std::array<std::string_view, 6> kShared{"/", "/home", "/var", "/mnt", "/media", "/srv"};
  return std::find(kShared.begin(), kShared.end(), parent) != kShared.end();
}

// Every path that is visited on the way from a link to its program: each must be there in the box too.
std::vector<std::string> hops(std::string at) {
  std::vector<std::string> found;
  for (int i = 0; i < kMostLinks; ++i) {
    std::array<char, PATH_MAX> buffer;
    const ssize_t size = ::readlink(at.c_str(), buffer.data(), buffer.size());
    if (size <= 0) break;
    const std::string target{buffer.data(), static_cast<std::size_t>(size)};
    // Folders on the way are resolved; the name itself may be the next link.
    const std::string folder =
        sys::resolved(parent_of(target.front() == '/' ? target : sys::join(parent_of(at), target)));
    if (target.front() == '/') found.push_back(target);
    at = sys::join(folder, name_of(target));
    found.push_back(at);
  }
  return found;
}

// "3.11.2" of "3.11.2", "3.11.2.final.0" and "3.11.2+"; empty if the virtualenv does not say which Python made it.
std::string version_in(std::string_view config) {
  std::string version = venv_setting(config, "version");
  if (version.empty()) version = venv_setting(config, "version_info");
  version.erase(std::min(version.find_first_not_of("0123456789."), version.size()));
  while (version.ends_with('.')) version.pop_back();
  return version;
}

// "3.11" of "3.11.2" and "3.11".
std::string minor_of(const std::string& version) {
  const std::size_t dot = version.find('.');
  return dot == std::string::npos || dot == 0 ? "" : version.substr(0, version.find('.', dot + 1));
}

class Lender {
 public:
  explicit Lender(Virtualenv& venv) : venv_(venv), covered_(kSystem.begin(), kSystem.end()) {
    covered_.push_back(venv.path);
  }
  void lend(const std::string& source, const std::string& target) {
    for (const std::string& folder : covered_)
      if (sys::is_at_or_inside(target, folder)) return;
    venv_.lent.push_back({source, target, false, true});
    covered_.push_back(target);
  }

 private:
  Virtualenv& venv_;
  std::vector<std::string> covered_;
};

// Whoever may write to a virtualenv may have made any file or link in it, a guest among them. Nothing in it is run on
// the host, and no link leads what is lent out of it, or out of an installation of Python.

// The part of `folder` with this name, links resolved; empty if it is not there, or not in the folder.
std::string part_of(const std::string& folder, const std::string& part) {
  const std::string found = sys::resolved(sys::join(folder, part));
  return sys::is_inside(found, folder) && is_folder(found) ? found : "";
}

// Where Python's own library is, an interpreter may be looked for. `prefix` has its links resolved.
bool is_installation(const std::string& prefix, const std::string& minor) {
  for (const char* lib : {"lib", "lib64"}) {
    const std::string module = sys::resolved(fmt::format("{}/{}/python{}/os.py", prefix, lib, minor));
    if (sys::is_inside(module, prefix)) return true;
  }
  return false;
}

// "3.11" of "python3.11"; empty of names that do not tell, nullopt of those of other programs.
std::optional<std::string> version_by_name(const std::string& program) {
  const std::string name = name_of(program);
  if (!name.starts_with("python")) return std::nullopt;
  const std::string version = name.substr(6, name.find_last_of("0123456789") + 1 - 6);
  return version.find('.') != std::string::npos ? version : "";
}

Error broken(const std::string& given, const std::string& why) {
  return usage_error(fmt::format("--venv: {} is broken: {}", given, printable_path(why)),
                     "make it again with 'python3 -m venv --clear'");
}

// The interpreter that bin/python is, or leads to; not run to be asked.
Result<std::string> program_of(const std::string& given, const std::string& path, const std::string& minor) {
  const std::string program = sys::resolved(path + "/bin/python");
  struct stat status {};
  if (program.empty() && ::stat((path + "/bin/python").c_str(), &status) != 0 && errno == EACCES)
    return sys::about_path("--venv",
                           os_error(fmt::format("{}: this user may not reach what its bin/python is", given)));
  if (program.empty() || ::access(program.c_str(), X_OK) != 0) return broken(given, "its bin/python is not there");
  if (!is_elf(program)) return broken(given, "its bin/python is no program");
  const auto version = version_by_name(program);
  if (!version) return broken(given, fmt::format("its bin/python is {}", program));
  if (!version->empty() && *version != minor)
    return usage_error(fmt::format("--venv: {} was made for Python {}, but its bin/python is {}", given, minor,
                                   printable_path(program)),
                       "make it again with 'python3 -m venv --clear'");
  if (!sys::is_inside(program, path) && !is_installation(parent_of(parent_of(program)), minor))
    return broken(given, fmt::format("its bin/python is {}, and there is no Python {}", program, minor));
  return program;
}

void lend_base(Virtualenv& venv, const std::string& minor, const std::string& home) {
  Lender lender{venv};
  const std::string python = "python" + minor;
  for (const std::string& folder : {parent_of(venv.program), home}) {
    if (folder.empty() || folder.front() != '/' || !is_folder(folder)) continue;
    const std::string prefix = parent_of(folder), source = sys::resolved(prefix);
    if (!is_installation(source, minor)) continue;
    if (name_of(folder) == "bin" && !is_shared(source)) {
      for (const char* part : kBaseParts)
        if (const std::string found = part_of(source, part); !found.empty())
          lender.lend(found, sys::join(prefix, part));
      continue;
    }
    for (const char* lib : {"lib", "lib64"}) {
      const std::string below = fmt::format("{}/{}", lib, python), found = part_of(source, below);
      if (!found.empty()) lender.lend(found, sys::join(prefix, below));
    }
  }
  for (const std::string& hop : hops(venv.path + "/bin/python")) lender.lend(venv.program, hop);
}

}  // namespace

std::string venv_setting(std::string_view config, std::string_view key) {
  const auto trimmed = [](std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
    return text;
  };
  for (std::string_view line : sys::split(config, '\n')) {
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos && trimmed(line.substr(0, equals)) == key)
      return std::string{trimmed(line.substr(equals + 1))};
  }
  return "";
}

std::string place_of_virtualenv(const std::string& path) {
  for (std::string_view folder : kCovered)
    if (sys::is_at_or_inside(path, folder)) return kElsewhere;
  return path;
}

Result<Virtualenv> open_virtualenv(const std::string& given) {
  const std::string path = sys::resolved(given);
  if (path.empty() || !is_folder(path))
    return usage_error(fmt::format("--venv: there is no virtualenv {}", given),
                       fmt::format("make one with 'python3 -m venv {}'", given));
  const Fd file = sys::open_regular(path + "/pyvenv.cfg", O_NOFOLLOW);
  const auto config = file ? sys::read_all(file.get(), kLongestConfig) : unavailable("", "");
  if (!config)
    return usage_error(fmt::format("--venv: {} is no virtualenv: it has no pyvenv.cfg", given),
                       "give the folder that 'python3 -m venv' made");
  if (path.find(':') != std::string::npos)
    return usage_error(fmt::format("--venv: {} has a colon in its path", path), "move it to a path without one");
  const std::string version = version_in(*config), minor = minor_of(version);
  if (minor.empty()) return broken(given, "its pyvenv.cfg names no Python version");
  if (!minor.starts_with("3."))
    return usage_error(fmt::format("--venv: {} is of Python {}", given, minor), "make one with Python 3.8 or later");
  Virtualenv venv{path, place_of_virtualenv(path), PCTX_TRY(program_of(given, path, minor)), version, {}};
  if (part_of(path, fmt::format("lib/python{}/site-packages", minor)).empty())
    return usage_error(fmt::format("--venv: {} is not of Python {}, which its pyvenv.cfg names", given, minor),
                       "make it again with 'python3 -m venv --clear'");
  venv.lent.push_back({path + "/pyvenv.cfg", venv.place + "/pyvenv.cfg", false, true});
  for (const char* part : kParts) {
    if (!is_folder(sys::join(path, part))) continue;
    const std::string found = part_of(path, part);
    if (found.empty()) return broken(given, fmt::format("its {} leads to a place outside of it", part));
    venv.lent.push_back({found, sys::join(venv.place, part), false, true});
  }
  lend_base(venv, minor, std::filesystem::path{venv_setting(*config, "home")}.lexically_normal());
  return venv;
}

namespace {

// What is lent read-only is no less so where it lies in a folder that is lent with it.
void keep_read_only(Policy& policy, const Virtualenv& venv) {
  std::vector<std::pair<std::string, std::string>> writable;
  if (policy.mnt) writable.emplace_back(sys::resolved(*policy.mnt), "/mnt");
  for (const Bind& bind : policy.binds)
    if (bind.writable) writable.emplace_back(sys::resolved(bind.source), bind.target);
  for (const auto& [source, target] : writable) {
    const auto keep = [&, &source = source, &target = target](const std::string& path) {
      Bind kept{path, target + path.substr(source.size()), false, true};
      const auto same = [&](const Bind& bind) { return bind.target == kept.target; };  // lib64 is lib
      if (std::ranges::none_of(policy.binds, same)) policy.binds.push_back(std::move(kept));
    };
    if (sys::is_inside(venv.path, source)) keep(venv.path);
    if (venv.path != source) continue;
    // A project that is its own virtualenv.
    for (const Bind& part : venv.lent)
      if (sys::is_inside(part.source, source)) keep(part.source);
  }
}

}  // namespace

void lend_virtualenv(Policy& policy, const Virtualenv& venv) {
  keep_read_only(policy, venv);
  policy.binds.insert(policy.binds.end(), venv.lent.begin(), venv.lent.end());
  const auto set = [&](const char* name, std::string value) {
    const auto same = [&](const auto& known) { return known.first == name; };
    if (std::none_of(policy.env.begin(), policy.env.end(), same)) policy.env.emplace_back(name, std::move(value));
  };
  set("VIRTUAL_ENV", venv.place);
  set("PATH", fmt::format("{}/bin:{}", venv.place, kDefaultPath));
}

}  // namespace pctx::env
