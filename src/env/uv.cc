#include "env/uv.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>

#include <fmt/format.h>

#include "base/fd.h"
#include "base/units.h"
#include "sys/files.h"
#include "sys/process.h"

namespace pctx::env {
namespace {

constexpr Millis kPatience{20'000};

// A program, not a script: version managers put scripts on the PATH that know nothing of a box.
std::string program_at(const std::string& path) {
  std::array<char, PATH_MAX> resolved;
  if (::access(path.c_str(), X_OK) != 0 || ::realpath(path.c_str(), resolved.data()) == nullptr) return "";
  const Fd fd{::open(resolved.data(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  std::array<char, 4> magic{};
  const bool elf = fd && ::read(fd.get(), magic.data(), 4) == 4 &&
                   std::string_view{magic.data(), 4} ==
                       "\x7f"
                       "ELF";
  return elf ? std::string{resolved.data()} : "";
}

std::string own_folder() {
  std::array<char, PATH_MAX> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return "";
  const std::string path = self.data();
  return path.substr(0, path.rfind('/'));
}

}  // namespace

Result<std::string> find_uv(const std::string& python) {
  const std::string own = own_folder();
  if (std::string found = program_at(own + "/uv"); !found.empty()) return found;
  // A wheel's program lies in its package, and uv, which the package declares, in the scripts folder of the same
  // environment: PREFIX/lib/pythonX/site-packages/pctx_sandbox/bin, or FOLDER/pctx_sandbox/bin with --target.
  if (own.ends_with("/pctx_sandbox/bin"))
    for (const char* scripts : {"/../../../../../bin/uv", "/../../bin/uv"})
      if (std::string found = program_at(own + scripts); !found.empty()) return found;
  const char* search = std::getenv("PATH");
  for (std::string_view folder : sys::split(search != nullptr ? search : "", ':'))
    if (std::string found = folder.starts_with('/') ? program_at(sys::join(folder, "uv")) : ""; !found.empty())
      return found;
  if (const auto answer = sys::output_of({python, "-c", "import uv; print(uv.find_uv_bin())"}, 64_KiB, kPatience))
    if (std::string found = program_at(answer->substr(0, answer->find('\n'))); !found.empty()) return found;
  return unavailable(
      fmt::format("uv, which builds Environments, is neither beside this program, nor on the PATH, nor a package of {}",
                  python),
      "install it: pip install uv");
}

}  // namespace pctx::env
