#include "env/interpreter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "base/sha256.h"
#include "env/version.h"
#include "sys/files.h"
#include "sys/process.h"

namespace pctx::env {
namespace {

// Without site: neither a virtual environment's packages nor anybody's .pth file takes part. There sys.prefix is the
// base installation's.
constexpr const char* kQuestion =
    "import os, sys, sysconfig\n"
    "base = os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable)\n"
    "try: libc = os.confstr('CS_GNU_LIBC_VERSION') or ''\n"
    "except (ValueError, OSError): libc = ''\n"
    "print(sys.implementation.name, '.'.join(map(str, sys.version_info[:3])), base, "
    "os.path.realpath(sys.base_prefix),\n"
    "      sysconfig.get_platform(), libc, sep='\\n')\n";
constexpr Millis kAnswersWithin{20'000};

std::vector<std::string> on_path(const std::string& name) {
  std::vector<std::string> found;
  const char* search = std::getenv("PATH");
  for (std::string_view directory : sys::split(search != nullptr ? search : "", ':'))
    if (const std::string path = sys::join(directory, name);
        directory.starts_with('/') && ::access(path.c_str(), X_OK) == 0)
      found.push_back(path);
  return found;
}

// Where the answer about this very file is kept; empty for scripts such as version managers' shims, whose answer
// depends on more than themselves.
std::string memory_file(const std::string& path, const std::string& memory) {
  const std::string real = sys::resolved(path);
  struct stat status {};
  if (memory.empty() || !is_elf(real) || ::stat(real.c_str(), &status) != 0) return "";
  const std::string what = fmt::format("{}\n{}\n{} {} {} {}.{:09}", path, real, status.st_dev, status.st_ino,
                                       status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  return sys::join(memory, sha256_hex(what).substr(0, 32));
}

void remember(const std::string& file, const std::string& answer) {
  const std::string fresh = fmt::format("{}.{}", file, ::getpid());
  const Fd fd{::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!fd) return;  // asked again next time
  if (!sys::write_all(fd.get(), answer) || ::rename(fresh.c_str(), file.c_str()) != 0) (void)::unlink(fresh.c_str());
}

}  // namespace

bool is_elf(const std::string& path) {
  const Fd fd = sys::open_regular(path);
  std::array<char, 4> magic{};
  return fd && ::read(fd.get(), magic.data(), magic.size()) == 4 &&
         std::string_view{magic.data(), 4} ==
             "\x7f"
             "ELF";
}

std::string Interpreter::minor() const { return version.substr(0, version.find('.', version.find('.') + 1)); }

bool Interpreter::is_system() const {
  return sys::is_inside(executable, "/usr") && (prefix == "/usr" || sys::is_inside(prefix, "/usr"));
}

Result<Interpreter> parse_interpreter(std::string_view lines) {
  std::vector<std::string> facts;
  while (!lines.empty()) {  // a last, empty line counts
    const std::size_t end = lines.find('\n');
    facts.emplace_back(lines.substr(0, end));
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
  }
  const auto refused =
      unavailable("the interpreter's answer about itself makes no sense", "name another with --python");
  if (facts.size() != 6) return refused;
  const Interpreter python{facts[2], facts[3], facts[1], facts[0], facts[4], facts[5]};
  if (!python.executable.starts_with('/') || !python.prefix.starts_with('/') || python.prefix.size() < 2 ||
      python.implementation.empty() || python.platform.empty())
    return refused;
  const auto fits = satisfies(python.version, ">=3.8,<4");
  if (!fits) return refused;
  if (!*fits)
    return unavailable(fmt::format("{} is Python {}", python.executable, python.version),
                       "Environments need Python 3.8 or later");
  return python;
}

Result<Interpreter> ask_interpreter(const std::string& path, const std::string& memory) {
  std::string program = path;
  if (path.find('/') == std::string::npos) {
    const auto found = on_path(path);
    if (found.empty())
      return usage_error(fmt::format("--python: {} is not on the PATH", path), "give the path of a Python interpreter");
    program = found.front();
  } else if (::access(path.c_str(), X_OK) != 0) {
    return usage_error(fmt::format("--python: {} is not a program", path), "give the path of a Python interpreter");
  }
  const std::string file = memory_file(program, memory);
  if (!file.empty())
    if (const auto known = sys::try_read_file(file))
      if (auto python = parse_interpreter(*known)) return python;
  auto answer = sys::output_of({program, "-I", "-S", "-c", kQuestion}, 64_KiB, kAnswersWithin);
  if (!answer)
    return unavailable(fmt::format("{} is no Python interpreter that works", program), "name another with --python");
  Interpreter python = PCTX_TRY(parse_interpreter(*answer));
  if (!file.empty()) remember(file, *answer);
  return python;
}

Result<Interpreter> choose_interpreter(std::string_view requires_python, const std::string& memory) {
  PCTX_TRY(satisfies("3.11.0", requires_python));  // a list that cannot be read is said once, not per interpreter
  std::vector<std::string> candidates{"/usr/bin/python3", "/usr/local/bin/python3"};
  for (std::string& path : on_path("python3")) candidates.push_back(std::move(path));
  if (!requires_python.empty())
    for (int minor = 30; minor >= 8; --minor)
      for (std::string& path : on_path(fmt::format("python3.{}", minor))) candidates.push_back(std::move(path));
  std::string seen;
  for (const std::string& path : candidates) {
    if (::access(path.c_str(), X_OK) != 0) continue;
    const auto python = ask_interpreter(path, memory);
    if (!python) continue;
    if (PCTX_TRY(satisfies(python->version, requires_python))) return *python;
    if (seen.find(python->version) == std::string::npos)
      seen += fmt::format("{}{}", seen.empty() ? "" : ", ", python->version);
  }
  if (seen.empty()) return unavailable("no python3 was found", "install python3, or name one with --python");
  return unavailable(fmt::format("no Python {} was found; there is {}", requires_python, seen),
                     "install one, or name one with --python");
}

void lend_interpreter(Policy& policy, const Interpreter& interpreter) {
  if (interpreter.is_system()) return;
  policy.binds.push_back({interpreter.prefix, interpreter.prefix, false});
  if (!sys::is_inside(interpreter.executable, interpreter.prefix) && !sys::is_inside(interpreter.executable, "/usr"))
    policy.binds.push_back({interpreter.executable, interpreter.executable, false});
}

}  // namespace pctx::env
