// Messages between a supervisor and those who make a box, on both sides. They are sent and read between clone and exec
// too: no allocation here.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "launch/child_plan.h"

namespace pctx {

bool send_frame(int socket, const StatusFrame& frame, const int* fds, std::size_t count) noexcept {
  iovec data{const_cast<StatusFrame*>(&frame), sizeof frame};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFrameFds * sizeof(int))];
  msghdr message;
  std::memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (count > 0) {
    std::memset(control, 0, sizeof control);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof frame;
}

std::ptrdiff_t receive_frame(int socket, StatusFrame& frame, int* fds, std::size_t& count, int flags) noexcept {
  iovec data{&frame, sizeof frame};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFrameFds * sizeof(int))];
  msghdr message;
  std::memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  count = 0;
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  if (got < 0) return got;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(fds, CMSG_DATA(header), count * sizeof(int));
  }
  if ((message.msg_flags & MSG_CTRUNC) == 0) return got;
  // A part of what was handed over is no message: a box that joins a part of its cgroups has a part of its limits.
  while (count > 0) ::close(fds[--count]);
  errno = EMFILE;
  return -1;
}

}  // namespace pctx
