#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "base/fd.h"
#include "cli/verbs.h"
#include "sys/delegation.h"
#include "sys/host.h"

namespace pctx::cli {
namespace {

// A socket file may outlive its systemd; systemd-run would then fail after it has taken our place.
bool systemd_answers() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime == nullptr) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("{}/systemd/private", runtime);
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const Fd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  return socket && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

void enter_delegated_scope(const std::vector<std::string>& words) {
  if (::geteuid() == 0 || std::getenv(kScopeMark) != nullptr) return;  // the mark: no third start
  const CgroupHost host = probe_host().cgroup;
  if (host.version != CgroupVersion::none || !host.ask_systemd || !systemd_answers()) return;
  std::array<char, PATH_MAX> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return;
  std::vector<const char*> argv{"systemd-run", "--user",   "--scope", "--quiet", "--collect", "--property=Delegate=yes",
                                "--",          self.data()};
  for (const std::string& word : words) argv.push_back(word.c_str());
  argv.push_back(nullptr);
  ::setenv(kScopeMark, "1", 1);
  ::execv("/usr/bin/systemd-run", const_cast<char* const*>(argv.data()));
  ::unsetenv(kScopeMark);  // not there after all: limits bind without cgroups, and the receipt says so
}

}  // namespace pctx::cli
