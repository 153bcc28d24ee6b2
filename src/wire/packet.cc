#include "wire/packet.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cstring>

#include <fmt/format.h>

namespace pctx::wire {
namespace {

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return usage_error(fmt::format("the socket's path is too long: {}", path),
                       "name a shorter one with PCTX_SANDBOX_SOCKET");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

Received receive(int socket, Packet& packet) {
  packet.text.resize(kMaxPacket);
  packet.fds.clear();
  iovec data{packet.text.data(), packet.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Received::nothing : Received::end;
  for (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(header))) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  if (got == 0 || (message.msg_flags & MSG_TRUNC) != 0) return Received::end;
  packet.text.resize(static_cast<std::size_t>(got));
  return (message.msg_flags & MSG_CTRUNC) != 0 ? Received::stripped : Received::packet;
}

bool send(int socket, std::string_view text, const std::vector<int>& fds) {
  iovec data{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(text.size());
}

Result<std::pair<Fd, Fd>> pair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) return os_error("cannot make a socket pair");
  return std::pair{Fd{ends[0]}, Fd{ends[1]}};
}

Result<Fd> bind_at(const std::string& path) {
  const sockaddr_un name = PCTX_TRY(address_of(path));
  Fd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const mode_t before = ::umask(0177);
  const bool bound = socket && ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
  const int code = errno;
  (void)::umask(before);
  if (!bound) return os_error(fmt::format("cannot listen at {}", path), code);
  return socket;
}

Result<Fd> connect_to(const std::string& path, const char* failure) {
  const sockaddr_un name = PCTX_TRY(address_of(path));
  Fd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0)
    return os_error(failure);
  return socket;
}

}  // namespace pctx::wire
