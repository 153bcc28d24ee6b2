#include "broker/address.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

bool is_private_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & 077) == 0;
}

// A name that a killed Broker left behind goes; anything else there is somebody's, named by mistake.
Result<void> free_name(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode))
    return usage_error(fmt::format("{} is there and is no socket", path), "name another with PCTX_SANDBOX_SOCKET");
  (void)::unlink(path.c_str());
  return {};
}

Result<std::string> make_folder(const std::string& path) {
  (void)::mkdir(path.c_str(), 0700);
  if (is_private_folder(path)) return path;
  return unavailable(fmt::format("{} is not a folder that only this user can enter", path),
                     fmt::format("remove it, or name a socket with PCTX_SANDBOX_SOCKET"));
}

Result<Fd> open_lock(const std::string& socket) {
  Fd lock{::open((socket + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!lock) return os_error(fmt::format("cannot open {}.lock", socket));
  return lock;
}

constexpr int kFirstInherited = 3;

// What sd_listen_fds() does: the variables are for one process, whose children must not take its descriptors for
// theirs.
int take_inherited_count() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    long value = -1;
    if (text != nullptr) (void)std::from_chars(text, text + std::strlen(text), value);
    return value;
  };
  const long pid = number("LISTEN_PID");
  const long count = number("LISTEN_FDS");
  for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(name);
  return pid == ::getpid() && count > 0 ? static_cast<int>(count) : 0;
}

int integer_option(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

}  // namespace

Result<BrokerAddress> broker_address(std::string_view version) {
  if (const char* named = std::getenv("PCTX_SANDBOX_SOCKET"); named != nullptr && *named != '\0')
    return BrokerAddress{"", named};
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
  bound.lock = PCTX_TRY(open_lock(address.socket));
  // Whoever holds it serves; the socket's name may be that of a Broker that was killed.
  if (::flock(bound.lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return std::optional<Bound>{};
    return os_error("cannot lock the Broker's socket");
  }
  // No Broker holds the lock and somebody listens all the same: systemd, which by now starts one.
  if (const auto answers = connect_broker(address); answers && broker_pid(*answers) == 0) return std::optional<Bound>{};
  PCTX_TRY(free_name(address.socket));
  bound.listener = PCTX_TRY(wire::bind_at(address.socket));
  if (::listen(bound.listener.get(), 128) != 0) return os_error(fmt::format("cannot listen at {}", address.socket));
  return std::optional<Bound>{std::move(bound)};
}

Result<std::optional<Bound>> inherit_broker(const BrokerAddress& address) {
  const int count = take_inherited_count();
  if (count == 0) return std::optional<Bound>{};
  Bound bound;
  bound.listener = Fd{kFirstInherited};
  bound.inherited = true;
  sockaddr_un name{};
  socklen_t size = sizeof name;
  const int fd = bound.listener.get();
  if (count != 1 || integer_option(fd, SO_DOMAIN) != AF_UNIX || integer_option(fd, SO_TYPE) != SOCK_SEQPACKET ||
      integer_option(fd, SO_ACCEPTCONN) != 1 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0)
    return usage_error("what was handed over is not one listening socket for sequential packets",
                       "use packaging/systemd/pctx-sandbox.socket as it is");
  if (address.socket != name.sun_path)
    return usage_error(
        fmt::format("the socket that was handed over is {}, but callers look at {}", name.sun_path, address.socket),
        "install the unit that belongs to this version");
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  // Listening once more makes this process, not systemd, the one that callers see at the other end.
  if (::listen(fd, 128) != 0) return os_error(fmt::format("cannot listen at {}", address.socket));
  // For whoever types `serve`. A Broker from before the unit was enabled may hold it; nobody reaches that one any more.
  bound.lock = PCTX_TRY(open_lock(address.socket));
  (void)::flock(bound.lock.get(), LOCK_EX | LOCK_NB);
  return std::optional<Bound>{std::move(bound)};
}

int broker_pid(const Fd& connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return 0;
  const auto process = sys::try_read_file(fmt::format("/proc/{}/comm", peer.pid));
  return process && *process == fmt::format("{}\n", kBrokerProcess) ? peer.pid : 0;
}

Result<Fd> connect_broker(const BrokerAddress& address) {
  Fd socket = PCTX_TRY(wire::connect_to(address.socket, "no Broker answers"));
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      peer.uid != address.uid.value_or(::geteuid()))
    return unavailable("the Broker's socket belongs to another user", "unset PCTX_SANDBOX_SOCKET");
  return socket;
}

}  // namespace pctx
