#include "net/door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include <fmt/format.h>

#include "net/control.h"
#include "sys/files.h"
#include "wire/packet.h"

namespace pctx::net {
namespace {

constexpr int kNobodyCame = 120'000;  // milliseconds
// Longer than Podman may take to come back from the start; who is outside and dies before that ends the wait at once.
constexpr int kWelcomeMillis = 150'000;
constexpr std::string_view kRelay = "relay", kWelcome = "welcome";
// One for each pool or run with an allow-list. What is inside may be in wrong hands: it must not fill this host.
constexpr std::size_t kMostRelays = 128;

// One for each process: whoever starts a relay, a Broker, a run or a build, was started by us with one door.
Fd& own_door() {
  static Fd fd;
  return fd;
}

}  // namespace

Result<Door> Door::open(const std::string& path, uid_t uid, gid_t gid) {
  Fd listener = PCTX_TRY(wire::bind_at(path));
  if ((uid != ::geteuid() && ::lchown(path.c_str(), uid, gid) != 0) || ::listen(listener.get(), 1) != 0)
    return os_error(fmt::format("cannot listen at {}", path));
  return Door{path, uid, std::move(listener)};
}

Door::~Door() { close_name(); }

void Door::close_name() {
  if (listener_ && !path_.empty()) (void)::unlink(path_.c_str());
  listener_.reset();
}

bool Door::serve() {
  if (!connection_) {
    Fd came{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!came) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(came.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != uid_) return true;
    connection_ = std::move(came);
    came_ = peer.pid;
    close_name();
    return true;
  }
  wire::Packet packet;
  const wire::Received received = wire::receive(connection_.get(), packet);
  if (received == wire::Received::nothing) return true;
  if (received == wire::Received::end) return false;
  if (packet.text != kRelay || packet.fds.size() != 1) return false;
  reap();
  if (relays_.size() >= kMostRelays) return true;  // its end closes with the packet, and whoever asked sees that
  const pid_t pid = ::fork();
  if (pid == 0) run_relay(std::move(packet.fds[0]));
  if (pid > 0) relays_.push_back(pid);
  return true;
}

void Door::reap() {
  std::erase_if(relays_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
}

Result<void> Door::serve_behind(Door door, const std::function<void(pid_t)>& welcome) {
  const pid_t pid = ::fork();
  if (pid < 0) return os_error("cannot start the door of the relay");
  if (pid > 0) {
    door.path_.clear();  // the name is the other one's to remove
    return {};
  }
  ::setsid();
  (void)::prctl(PR_SET_NAME, "pctx-door");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  struct sigaction ended {};  // without SA_RESTART: the end of a relay ends the wait below
  ended.sa_handler = [](int) {};
  (void)::sigaction(SIGCHLD, &ended, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3 && null >= 0; ++fd) (void)::dup2(null, fd);
  const int kept[] = {0, 1, 2, door.listener_.get()};
  sys::close_all_but(kept);
  (void)!::chdir("/");
  for (;;) {
    pollfd ready{door.fd(), POLLIN, 0};
    const int events = ::poll(&ready, 1, door.connection_ ? -1 : kNobodyCame);
    const bool interrupted = events < 0 && errno == EINTR;
    door.reap();
    if (interrupted) continue;
    const bool outside = !door.connection_;
    if (events == 0 || !door.serve()) break;
    if (!outside || !door.connection_) continue;
    welcome(door.came_);
    (void)wire::send(door.connection_.get(), kWelcome);
  }
  door.close_name();
  ::_exit(0);
}

Result<void> enter_door(const std::string& path, bool die_with_it) {
  Fd fd = PCTX_TRY(wire::connect_to(path, "the way to the relay outside is closed"));
  if (die_with_it) {
    // The kernel itself ends us when the other side closes, whatever we are doing; the janitor ends the box then.
    (void)::fcntl(fd.get(), F_SETOWN, ::getpid());
    (void)::fcntl(fd.get(), F_SETSIG, SIGKILL);
    (void)::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_ASYNC);
  }
  own_door() = std::move(fd);
  return {};
}

void await_welcome() {
  pollfd said{door(), POLLIN, 0};
  wire::Packet packet;
  if (said.fd >= 0 && ::poll(&said, 1, kWelcomeMillis) > 0) (void)wire::receive(said.fd, packet);
}

int door() { return own_door().get(); }

namespace {
bool without_door = false;
}  // namespace

void be_without_door() { without_door = true; }
bool is_without_door() { return without_door; }

bool door_is_open() {
  pollfd other{door(), POLLRDHUP, 0};
  return other.fd >= 0 && ::poll(&other, 1, 0) == 0;
}

Result<void> start_relay_outside(Fd control) {
  if (wire::send(door(), kRelay, {control.get()})) return {};
  return unavailable("the relay that this container's network goes through is gone",
                     "try again: the next call starts the container anew");
}

}  // namespace pctx::net
