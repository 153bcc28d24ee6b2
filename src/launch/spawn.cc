#include "launch/spawn.h"

#include <sys/socket.h>

#include <cerrno>

#include "launch/embryo.h"

namespace pctx {

Result<Spawned> spawn(const Plan& plan, const Command& command, std::array<int, 3> std_fds, int cgroup,
                      ChildMain child_main) {
  return PCTX_TRY(Embryo::conceive(plan.namespaces, std_fds, cgroup, child_main)).grow(plan, command);
}

FrameRead read_frame(int socket, StatusFrame& frame, FrameFds& fds) {
  std::array<int, kMaxFrameFds> numbers{};
  std::size_t count = 0;
  std::ptrdiff_t got = receive_frame(socket, frame, numbers.data(), count, MSG_DONTWAIT);
  // A child that failed with a message of ours unread resets the connection, which is told before its own last words.
  if (got < 0 && errno == ECONNRESET) got = receive_frame(socket, frame, numbers.data(), count, MSG_DONTWAIT);
  const int code = errno;
  for (std::size_t i = 0; i < count; ++i) fds[i] = Fd{numbers[i]};
  if (got < 0 && (code == EAGAIN || code == EINTR)) return FrameRead::nothing;
  return got == sizeof frame ? FrameRead::frame : FrameRead::end;
}

void admit(const Spawned& box, std::span<const int> tasks) {
  (void)send_frame(box.guest_channel.get(), {Message::cgroups, Step::handshake, 0, 0, 0}, tasks.data(), tasks.size());
}

bool order_end(int status) { return status >= 0 && send_frame(status, {Message::end, Step::handshake, 0, 0, 0}); }

}  // namespace pctx
