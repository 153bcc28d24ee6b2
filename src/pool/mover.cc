#include "pool/mover.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

namespace pctx {
namespace {

std::string join_cgroup(const wire::Packet& order) {
  if (order.fds.size() != 1) return std::to_string(EBADF);
  const Fd procs{::openat(order.fds[0].get(), "cgroup.procs", O_WRONLY | O_CLOEXEC)};
  const bool joined = procs && ::write(procs.get(), order.text.data(), order.text.size()) >= 0;
  return std::to_string(joined ? 0 : errno);
}

}  // namespace

Mover::Mover(sys::Loop& loop) : errands_(loop, {"pctx-mover", join_cgroup}) {}

Errands::Ticket Mover::move(int directory, pid_t pid, std::function<void(int)> done) {
  return errands_.ask(std::to_string(pid), {directory},
                      [done = std::move(done)](const std::optional<std::string>& answer) {
                        done(answer ? std::atoi(answer->c_str()) : EPIPE);
                      });
}

}  // namespace pctx
