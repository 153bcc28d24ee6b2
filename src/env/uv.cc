#include "env/uv.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>

#include <fmt/format.h>

#include "base/units.h"
#include "env/interpreter.h"
#include "sys/files.h"
#include "sys/process.h"

namespace pctx::env {
namespace {

constexpr Millis kUvAnswersWithin{20'000};
// Not from the folder that we are in, which anybody's files may be in. -I would leave out what the user has installed.
constexpr const char* kWhereIsUv =
    "import sys\n"
    "sys.path[:] = [entry for entry in sys.path if entry.startswith('/')]\n"
    "import uv; print(uv.find_uv_bin())\n";

// A program, not a script: version managers put scripts on the PATH that know nothing of a box.
std::string program_at(const std::string& path) {
  const std::string real = ::access(path.c_str(), X_OK) == 0 ? sys::resolved(path) : "";
  return !real.empty() && is_elf(real) ? real : "";
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
  if (const auto answer = sys::output_of({python, "-c", kWhereIsUv}, 64_KiB, kUvAnswersWithin))
    if (std::string found = program_at(answer->substr(0, answer->find('\n'))); !found.empty()) return found;
  return unavailable(
      fmt::format("uv, which builds Environments, is neither beside this program, nor on the PATH, nor a package of {}",
                  python),
      "install it: pip install uv");
}

}  // namespace pctx::env
