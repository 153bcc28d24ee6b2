// The relay's own process: boxes come and go over the control socket, everything else is in BoxNetwork.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>

#include "base/units.h"
#include "net/box_network.h"
#include "net/confine.h"
#include "net/control.h"
#include "sys/files.h"
#include "wire/packet.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace pctx::net {
namespace {

using namespace std::chrono_literals;
constexpr auto kTellUsed = 250ms;
constexpr std::size_t kRecordPacket = 48_KiB;
constexpr std::size_t kMostConfig = 1 << 20;
constexpr std::size_t kMostUntold = 4096;  // packets that the owner has not taken yet

class RelayServer {
 public:
  RelayServer(sys::Loop& loop, Resolver& resolver, Fd control, std::size_t descriptors)
      : loop_(loop), resolver_(resolver), control_(std::move(control)), turns_(loop), descriptors_(descriptors) {
    descriptors_.make_room = [this](std::size_t count) { make_room(count); };
  }

  void run() {
    tell(write_ready());
    watch(EPOLLIN);
    (void)loop_.run();
  }

 private:
  struct Adding {
    NetworkPolicy policy;
    NetworkEnds ends;
    std::size_t count = 0;  // of ends
    std::vector<std::string> known;
  };
  struct Message {
    std::string text;
    std::function<void()> sent;
  };
  struct Box {
    std::unique_ptr<BoxNetwork> network;
    std::uint64_t told = 0;
  };

  void watch(std::uint32_t events) {
    loop_.watch(control_.get(), events, [this](std::uint32_t happened) {
      if ((happened & EPOLLOUT) != 0) flush();
      if ((happened & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) on_control();
    });
  }

  void on_control() {
    wire::Packet packet;
    const wire::Received received = wire::receive(control_.get(), packet);
    if (received == wire::Received::nothing) return;
    if (received == wire::Received::end) ::_exit(0);  // with the owner gone nobody is served
    auto command = read_command(packet.text);
    if (!command) ::_exit(1);
    switch (command->kind) {
      case Command::Kind::names:
        return reload(packet);
      case Command::Kind::remove:
        return remove(command->id);
      case Command::Kind::known: {
        auto& known = adding_[command->id].known;
        known.insert(known.end(), command->known.begin(), command->known.end());
        return;
      }
      case Command::Kind::add:
        adding_[command->id].policy = std::move(command->policy);
        [[fallthrough]];
      case Command::Kind::more:
        if (received == wire::Received::stripped) return refuse(command->id);
        return add(*command, packet);
    }
  }

  // This box only: for the others there is enough.
  void refuse(std::uint32_t id) {
    if (adding_.erase(id) > 0) tell(write_refused(id));
  }

  void add(const Command& command, wire::Packet& packet) {
    const auto found = adding_.find(command.id);
    if (found == adding_.end()) return;  // it was refused
    Adding& adding = found->second;
    for (std::size_t i = 0; i < packet.fds.size() && i < command.places.size(); ++i)
      adding.count += put_end(adding.ends, command.places[i], std::move(packet.fds[i])) ? 1 : 0;
    if (!command.complete) return;
    if (!descriptors_.take_ends(adding.count)) return refuse(command.id);
    Adding whole = std::move(adding);
    adding_.erase(found);
    const bool bounded = whole.policy.bytes.has_value();
    const auto announce = [this, id = command.id](std::size_t number, const std::string& name,
                                                  std::function<void()> then) {
      return this->announce(id, number, name, std::move(then));
    };
    boxes_[command.id].network =
        std::make_unique<BoxNetwork>(Surroundings{loop_, resolver_, turns_, descriptors_},
                                     BoxNetwork::Parts{std::move(whole.policy), std::move(whole.ends), whole.count,
                                                       std::move(whole.known), announce});
    if (bounded && teller_ == 0) tell_used();
  }

  // From the box that has most, and more than everybody may have.
  void make_room(std::size_t count) {
    const std::size_t wanted = descriptors_.free() + count;
    while (descriptors_.free() < wanted) {
      const auto most = std::max_element(boxes_.begin(), boxes_.end(), [](const auto& one, const auto& other) {
        return one.second.network->share().files.held < other.second.network->share().files.held;
      });
      if (most == boxes_.end() || most->second.network->share().files.held <= descriptors_.guaranteed() ||
          !most->second.network->yield())
        return;
    }
  }

  bool announce(std::uint32_t id, std::size_t number, const std::string& name, std::function<void()> then) {
    if (outbox_.size() >= kMostUntold) return false;
    tell(write_named(id, number, name), [this, id, then = std::move(then)] {
      if (boxes_.contains(id)) then();
    });
    return true;
  }

  void remove(std::uint32_t id) {
    const auto found = boxes_.find(id);
    if (found == boxes_.end()) {
      for (std::string& packet : RecordBook{}.packets(id, 0, 0, kRecordPacket)) tell(std::move(packet));
      return;
    }
    found->second.network->close();
    const BoxShare& box = found->second.network->share();
    for (std::string& packet : box.book.packets(id, box.sent, box.received, kRecordPacket)) tell(std::move(packet));
    boxes_.erase(found);
  }

  void reload(wire::Packet& packet) {
    if (packet.fds.size() != 2) return;
    const auto resolv = sys::read_all(packet.fds[0].get(), kMostConfig),
               hosts = sys::read_all(packet.fds[1].get(), kMostConfig);
    resolver_.configure(resolv ? *resolv : std::string{}, hosts ? *hosts : std::string{});
  }

  // Should this process die, the owner knows how much of the budget is gone.
  void tell_used() {
    bool bounded = false;
    for (auto& [id, box] : boxes_) {
      const BoxShare& share = box.network->share();
      bounded = bounded || share.policy.bytes;
      if (!share.policy.bytes || share.taken == box.told) continue;
      box.told = share.taken;
      tell(write_used(id, share.taken, share.received));
    }
    teller_ = bounded ? loop_.after(kTellUsed, [this] { tell_used(); }) : 0;
  }

  void tell(std::string text, std::function<void()> sent = {}) {
    outbox_.push_back({std::move(text), std::move(sent)});
    flush();
  }

  void flush() {
    while (!outbox_.empty()) {
      if (!wire::send(control_.get(), outbox_.front().text)) {
        if (errno != EAGAIN && errno != ENOBUFS) ::_exit(0);
        if (!blocked_) watch(EPOLLIN | EPOLLOUT);
        blocked_ = true;
        return;
      }
      const std::function<void()> sent = std::move(outbox_.front().sent);
      outbox_.pop_front();
      if (sent) sent();
    }
    if (blocked_) watch(EPOLLIN);
    blocked_ = false;
  }

  sys::Loop& loop_;
  Resolver& resolver_;
  Fd control_;
  Turns turns_;
  Descriptors descriptors_;
  std::map<std::uint32_t, Adding> adding_;
  std::map<std::uint32_t, Box> boxes_;
  std::deque<Message> outbox_;
  bool blocked_ = false;
  sys::Loop::TimerId teller_ = 0;
};

// Of the owner's process nothing stays but the control socket: its files, its terminal, its environment.
Fd leave_owner(Fd control) {
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);  // what ends the owner's process group must not end us before the record
  (void)::prctl(PR_SET_NAME, "pctx-relay", 0, 0, 0);
  Fd high{::fcntl(control.get(), F_DUPFD_CLOEXEC, 3)};
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3 && null >= 0; ++fd) (void)::dup2(null, fd);
  const int kept[] = {0, 1, 2, high.get()};
  (void)control.release();
  sys::close_all_but(kept);
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) ::explicit_bzero(*each, std::strlen(*each));
  static char* empty[] = {nullptr};
  environ = empty;
  return high;
}

Result<void> serve(Fd& control) {
  const auto resolv = sys::try_read_file("/etc/resolv.conf", kMostConfig),
             hosts = sys::try_read_file("/etc/hosts", kMostConfig);
  sys::Loop loop = PCTX_TRY(sys::Loop::make());
  const std::unique_ptr<Resolver> resolver = PCTX_TRY(Resolver::make(loop));
  resolver->configure(resolv.value_or(""), hosts.value_or(""));
  const std::size_t descriptors = PCTX_TRY(confine());
  RelayServer{loop, *resolver, std::move(control), descriptors}.run();
  return {};
}

}  // namespace

void run_relay(Fd control) {
  Fd own = leave_owner(std::move(control));
  if (const auto served = serve(own); !served && own) (void)wire::send(own.get(), write_failed(served.error()));
  ::_exit(1);
}

}  // namespace pctx::net
