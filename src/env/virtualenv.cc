#include "env/virtualenv.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <cstdlib>

#include <fmt/format.h>

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

std::string resolved(const std::string& path) {
  std::array<char, PATH_MAX> buffer;
  return ::realpath(path.c_str(), buffer.data()) != nullptr ? std::string{buffer.data()} : std::string{};
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_below(std::string_view path, std::string_view folder) {
  return path == folder || (path.starts_with(folder) && path[folder.size()] == '/');
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A prefix that is somebody's home, or the root, holds more than Python.
bool is_shared(const std::string& prefix) {
  const char* home = std::getenv("HOME");
  const std::string own = home != nullptr ? resolved(home) : "";
  if (prefix == "/" || (!own.empty() && is_below(own, prefix)) || prefix.ends_with("/.local")) return true;
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
    const std::string folder = resolved(parent_of(target.front() == '/' ? target : sys::join(parent_of(at), target)));
    if (target.front() == '/') found.push_back(target);
    at = sys::join(folder, name_of(target));
    found.push_back(at);
  }
  return found;
}

// "3.11" of "3.11.2", "3.11.2.final.0" and "3.11"; empty if the virtualenv does not say which Python made it.
std::string minor_version(std::string_view config) {
  std::string version = venv_setting(config, "version");
  if (version.empty()) version = venv_setting(config, "version_info");
  const std::size_t dot = version.find('.');
  if (dot == std::string::npos) return "";
  const std::size_t end = version.find_first_not_of("0123456789", dot + 1);
  return version.substr(0, end);
}

class Lender {
 public:
  explicit Lender(Virtualenv& venv) : venv_(venv), covered_(kSystem.begin(), kSystem.end()) {
    covered_.push_back(venv.path);
  }
  void lend(const std::string& source, const std::string& target) {
    for (const std::string& folder : covered_)
      if (is_below(target, folder)) return;
    venv_.lent.push_back({source, target, false});
    covered_.push_back(target);
  }

 private:
  Virtualenv& venv_;
  std::vector<std::string> covered_;
};

void lend_base(Virtualenv& venv, const std::string& home) {
  Lender lender{venv};
  const std::string& program = venv.base.executable;
  const std::string python = "python" + venv.base.minor();
  for (const std::string& folder : {parent_of(program), home}) {
    if (folder.empty() || folder.front() != '/' || !is_folder(folder)) continue;
    const std::string prefix = parent_of(folder), source = resolved(prefix);
    if (name_of(folder) == "bin" && !is_shared(source)) {
      for (const char* part : kBaseParts)
        if (is_folder(sys::join(source, part))) lender.lend(sys::join(source, part), sys::join(prefix, part));
      continue;
    }
    for (const char* lib : {"lib", "lib64"})
      if (const std::string below = fmt::format("{}/{}", lib, python); is_folder(sys::join(source, below)))
        lender.lend(sys::join(source, below), sys::join(prefix, below));
  }
  for (const std::string& hop : hops(venv.path + "/bin/python")) lender.lend(program, hop);
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
    if (is_below(path, folder)) return kElsewhere;
  return path;
}

Result<Virtualenv> open_virtualenv(const std::string& given, const std::string& memory) {
  const std::string path = resolved(given);
  if (path.empty() || !is_folder(path))
    return usage_error(fmt::format("--venv: there is no virtualenv {}", given),
                       fmt::format("make one with 'python3 -m venv {}'", given));
  const auto config = sys::try_read_file(path + "/pyvenv.cfg");
  if (!config)
    return usage_error(fmt::format("--venv: {} is no virtualenv: it has no pyvenv.cfg", given),
                       "give the folder that 'python3 -m venv' made");
  if (path.find(':') != std::string::npos)
    return usage_error(fmt::format("--venv: {} has a colon in its path", path), "move it to a path without one");
  if (::access((path + "/bin/python").c_str(), X_OK) != 0)
    return usage_error(fmt::format("--venv: {} is broken: its bin/python is not there", given),
                       "make it again with 'python3 -m venv --clear'");
  if (!is_elf(path + "/bin/python"))
    return usage_error(fmt::format("--venv: {} is broken: its bin/python is no program", given),
                       "make it again with 'python3 -m venv --clear'");
  auto base = ask_interpreter(path + "/bin/python", memory);
  if (!base)
    return usage_error(fmt::format("--venv: {} is broken: {}", given, base.error().what),
                       "make it again with 'python3 -m venv --clear'");
  Virtualenv venv{path, place_of_virtualenv(path), *std::move(base), {}};
  // What the package for Python says about it, which does not start the interpreter to find out.
  const std::string minor = minor_version(*config);
  if (minor.empty())
    return usage_error(fmt::format("--venv: {} is broken: its pyvenv.cfg names no Python version", given),
                       "make it again with 'python3 -m venv --clear'");
  if (minor != venv.base.minor())
    return usage_error(
        fmt::format("--venv: {} was made for Python {}, but its bin/python is {}", given, minor, venv.base.version),
        "make it again with 'python3 -m venv --clear'");
  if (!is_folder(fmt::format("{}/lib/python{}/site-packages", path, minor)))
    return usage_error(fmt::format("--venv: {} is not of Python {}, which its bin/python is", given, venv.base.version),
                       "make it again with 'python3 -m venv --clear'");
  venv.lent.push_back({path + "/pyvenv.cfg", venv.place + "/pyvenv.cfg", false});
  for (const char* part : kParts)
    if (is_folder(sys::join(path, part)))
      venv.lent.push_back({sys::join(path, part), sys::join(venv.place, part), false});
  lend_base(venv, venv_setting(*config, "home"));
  return venv;
}

void lend_virtualenv(Policy& policy, const Virtualenv& venv) {
  policy.binds.insert(policy.binds.end(), venv.lent.begin(), venv.lent.end());
  const auto set = [&](const char* name, std::string value) {
    const auto same = [&](const auto& known) { return known.first == name; };
    if (std::none_of(policy.env.begin(), policy.env.end(), same)) policy.env.emplace_back(name, std::move(value));
  };
  set("VIRTUAL_ENV", venv.place);
  set("PATH", fmt::format("{}/bin:{}", venv.place, kDefaultPath));
}

}  // namespace pctx::env
