#include "launch/spawn.h"

#include <sys/socket.h>

#include <cerrno>

#include <fmt/format.h>

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
  if (got < 0 && code == EMFILE) {  // on our side, and a failure like any other of the launch
    frame = {Message::failure, Step::handshake, 0, 7, code};
    return FrameRead::frame;
  }
  return got == sizeof frame ? FrameRead::frame : FrameRead::end;
}

Result<void> hand_over(int socket, const StatusFrame& frame, std::span<const int> fds, const char* what) {
  // One that failed early has closed its end; what it has to say is read from the status socket.
  if (send_frame(socket, frame, fds.data(), fds.size()) || errno == EPIPE || errno == ECONNRESET) return {};
  return os_error(fmt::format("cannot hand {} to the box", what));
}

Result<void> admit(const Spawned& box, std::span<const int> tasks) {
  return hand_over(box.guest_channel.get(), {Message::cgroups, Step::handshake, 0, 0, 0}, tasks, "its cgroups");
}

bool order_end(int status) { return status >= 0 && send_frame(status, {Message::end, Step::handshake, 0, 0, 0}); }

}  // namespace pctx
