#include "broker/address.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

namespace pctx {
namespace {

bool is_private_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & 077) == 0;
}

Result<std::string> make_folder(const std::string& path) {
  (void)::mkdir(path.c_str(), 0700);
  if (is_private_folder(path)) return path;
  return unavailable(fmt::format("{} is not a folder that only this user can enter", path),
                     fmt::format("remove it, or name a socket with PCTX_SANDBOX_SOCKET"));
}

Result<sockaddr_un> to_sockaddr(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return usage_error(fmt::format("the socket's path is too long: {}", path),
                       "name a shorter one with PCTX_SANDBOX_SOCKET");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

Result<BrokerAddress> broker_address(std::string_view version) {
  if (const char* named = std::getenv("PCTX_SANDBOX_SOCKET"); named != nullptr && *named != '\0') return BrokerAddress{"", named};
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string base = runtime != nullptr && is_private_folder(runtime)
                               ? fmt::format("{}/pctx-sandbox", runtime)
                               : fmt::format("/tmp/pctx-sandbox-{}", ::geteuid());
  std::string folder = PCTX_TRY(make_folder(base));
  std::string socket = fmt::format("{}/broker-{}.sock", folder, version);
  return BrokerAddress{std::move(folder), std::move(socket)};
}

Result<std::optional<Bound>> bind_broker(const BrokerAddress& address) {
  Bound bound;
  bound.lock = Fd{::open((address.socket + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!bound.lock) return os_error(fmt::format("cannot open {}.lock", address.socket));
  // Whoever holds it serves; the socket's name may be that of a Broker that was killed.
  if (::flock(bound.lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return std::optional<Bound>{};
    return os_error("cannot lock the Broker's socket");
  }
  const sockaddr_un name = PCTX_TRY(to_sockaddr(address.socket));
  (void)::unlink(address.socket.c_str());
  bound.listener = Fd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const mode_t before = ::umask(0177);
  const int failed = !bound.listener || ::bind(bound.listener.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name);
  const int code = errno;
  (void)::umask(before);
  if (failed != 0 || ::listen(bound.listener.get(), 128) != 0)
    return os_error(fmt::format("cannot listen at {}", address.socket), failed != 0 ? code : errno);
  return std::optional<Bound>{std::move(bound)};
}

Result<Fd> connect_broker(const BrokerAddress& address) {
  const sockaddr_un name = PCTX_TRY(to_sockaddr(address.socket));
  Fd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0)
    return os_error("no Broker answers");
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid())
    return unavailable("the Broker's socket belongs to another user", "unset PCTX_SANDBOX_SOCKET");
  return socket;
}

}  // namespace pctx
