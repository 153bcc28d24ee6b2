// A relay and its guests, each in a network namespace of its own, without boxes: what a box's launcher makes, made here
// with ip(8). Prints a record as JSON behind "RECORD " for each guest, in their order, when their commands have ended.
//
// usage: relay_driver [--allow ENTRIES] [--private RANGES] [--rate N] [--bytes N] [--connections N]
//                     [--guests N] [--files N] -- COMMAND…
// Every guest runs COMMAND, with its number in the variable GUEST. --files is the relay's limit of descriptors. SIGUSR1
// kills the relay with SIGKILL; another is started in its place.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "box/network.h"
#include "plan/plan.h"
#include "sys/files.h"
#include "wire/packet.h"

namespace {

using namespace pctx;
using Json = nlohmann::json;

template <class T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "relay_driver: %s\n", result.error().sentence().c_str());
    std::exit(2);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

void shell(const std::string& line) {
  if (std::system(line.c_str()) != 0) {
    std::fprintf(stderr, "relay_driver: failed: %s\n", line.c_str());
    std::exit(2);
  }
}

int bound(int type, std::uint16_t port) {
  const int fd = ::socket(AF_INET6, type | SOCK_CLOEXEC, 0);
  const int off = 0, on = 1;
  ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::perror("bind");
  if (type == SOCK_STREAM && ::listen(fd, 1024) != 0) std::perror("listen");
  return fd;
}

[[noreturn]] void run_guest(int channel, const NetworkPolicy& policy, char** command) {
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) std::perror("unshare");
  ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  shell(
      "ip link set lo up; ip addr add 198.18.0.2/32 dev lo; ip -6 addr add fd70:6374:7800::2/128 dev lo nodad;"
      "ip route add local 198.18.0.0/15 dev lo; ip -6 route add local default dev lo");
  bool any = false;
  for (const NetRule& rule : policy.rules) {
    any = any || rule.kind == NetRule::Kind::any;
    if (rule.kind == NetRule::Kind::address)
      shell(fmt::format("ip {} route add local {}/{} dev lo", rule.address.address.v6 ? "-6" : "-4",
                        rule.address.address.text(), rule.address.length));
  }
  shell(any ? "ip route add local default dev lo" : "ip route add default dev lo src 198.18.0.2");
  char path[] = "/tmp/relay-resolv-XXXXXX";
  const int file = ::mkstemp(path);
  const std::string text = "nameserver 198.18.0.1\n";
  if (::write(file, text.data(), text.size()) < 0 || ::mount(path, "/etc/resolv.conf", nullptr, MS_BIND, nullptr) != 0)
    std::perror("resolv.conf");
  ::unlink(path);
  Plan plan;
  plan.policy.network = Network::allow;
  plan.policy.allowed = policy;
  plan.namespaces = CLONE_NEWNET;
  must(plan_network(plan));
  const std::vector<sock_filter>& code = plan.network->watched;
  const sock_fprog watched{static_cast<unsigned short>(code.size()), const_cast<sock_filter*>(code.data())};
  const int packet = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (::setsockopt(packet, SOL_SOCKET, SO_ATTACH_FILTER, &watched, sizeof watched) != 0) std::perror("filter");
  sockaddr_ll lo{};
  lo.sll_family = AF_PACKET;
  lo.sll_protocol = htons(ETH_P_ALL);
  lo.sll_ifindex = 1;
  ::bind(packet, reinterpret_cast<sockaddr*>(&lo), sizeof lo);
  const int raw4 = ::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  const int raw6 = ::socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  wire::send(channel, "ends", {bound(SOCK_DGRAM, 53), bound(SOCK_STREAM, 53), packet, raw4, raw6});
  for (const std::uint16_t port : listening_ports(policy))
    wire::send(channel, std::to_string(port), {bound(SOCK_STREAM, port)});
  wire::send(channel, "done");
  char go;
  if (::read(channel, &go, 1) != 1) ::_exit(2);
  ::execvp(command[0], command);
  std::perror(command[0]);
  ::_exit(127);
}

NetworkEnds receive_ends(int channel) {
  NetworkEnds ends;
  for (;;) {
    pollfd ready{channel, POLLIN, 0};
    ::poll(&ready, 1, -1);
    wire::Packet packet;
    if (wire::receive(channel, packet) != wire::Received::packet) std::exit(2);
    if (packet.text == "done") return ends;
    if (packet.text == "ends") {
      ends.dns_udp = std::move(packet.fds[0]);
      ends.dns_tcp = std::move(packet.fds[1]);
      ends.packet = std::move(packet.fds[2]);
      ends.raw4 = std::move(packet.fds[3]);
      ends.raw6 = std::move(packet.fds[4]);
    } else {
      ends.listeners.emplace_back(static_cast<std::uint16_t>(std::stoi(packet.text)), std::move(packet.fds[0]));
    }
  }
}

Json to_json(const NetworkRecord& record) {
  Json json{{"complete", record.complete},
            {"left_out", record.left_out},
            {"sent", record.sent},
            {"received", record.received},
            {"connections", Json::array()}};
  for (const ConnectionRecord& each : record.connections)
    json["connections"].push_back({{"name", each.name},
                                   {"address", each.address},
                                   {"port", each.port},
                                   {"transport", each.transport},
                                   {"sent", each.sent},
                                   {"received", each.received},
                                   {"allowed", each.allowed},
                                   {"reason", each.reason},
                                   {"check", each.check},
                                   {"count", each.count}});
  return json;
}

}  // namespace

int main(int argc, char** argv) {
  NetworkPolicy policy;
  std::size_t guests = 1;
  static rlim_t files = 0;
  int at = 1;
  for (; at + 1 < argc && std::string_view{argv[at]} != "--"; at += 2) {
    const std::string_view option = argv[at], value = argv[at + 1];
    if (option == "--allow") policy.rules = must(parse_net_rules(value));
    if (option == "--private")
      for (const std::string_view range : sys::split(value, ','))
        policy.open_private.push_back(must(parse_private_range(range)));
    if (option == "--rate") policy.rate = std::strtoull(argv[at + 1], nullptr, 10);
    if (option == "--bytes") policy.bytes = std::strtoull(argv[at + 1], nullptr, 10);
    if (option == "--connections") policy.connections = std::strtoull(argv[at + 1], nullptr, 10);
    if (option == "--guests") guests = std::strtoull(argv[at + 1], nullptr, 10);
    if (option == "--files") files = std::strtoull(argv[at + 1], nullptr, 10);
  }
  must(validate(policy));
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int signal : {SIGCHLD, SIGUSR1}) ::sigaddset(&watched, signal);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  const Fd signals{::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK)};
  struct Guest {
    pid_t pid = -1;
    Fd channel;
    std::uint32_t id = 0;
    bool running = true;
    std::optional<NetworkRecord> record;
  };
  std::vector<Guest> all(guests);
  for (std::size_t i = 0; i < guests; ++i) {
    auto [ours, theirs] = must(wire::pair(SOCK_SEQPACKET));
    all[i].pid = ::fork();
    if (all[i].pid == 0) {
      ours.reset();
      ::sigprocmask(SIG_UNBLOCK, &watched, nullptr);
      ::setenv("GUEST", std::to_string(i).c_str(), 1);
      run_guest(theirs.get(), policy, argv + at + 1);
    }
    all[i].channel = std::move(ours);
  }
  // From here on only the relay is forked: this process and the guests keep what they have.
  if (files != 0)
    ::pthread_atfork(nullptr, nullptr, [] {
      const rlimit limit{files, files};
      (void)::setrlimit(RLIMIT_NOFILE, &limit);
    });
  RelayKeeper keeper{RelayKeeper::Serves::many_boxes};
  must(keeper.start());
  pid_t relay = keeper.pid();
  std::fprintf(stderr, "RELAY %d\n", relay);
  for (Guest& guest : all) guest.id = must(keeper.add(policy, receive_ends(guest.channel.get())));
  for (Guest& guest : all) wire::send(guest.channel.get(), "g");
  int worst = 0;
  const auto missing = [](const Guest& guest) { return !guest.record; };
  while (std::any_of(all.begin(), all.end(), missing)) {
    pollfd ready[2] = {{keeper.fd(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    (void)::poll(ready, 2, keeper.due() ? 20 : -1);
    if (ready[0].revents != 0 || keeper.due()) keeper.serve();
    if (keeper.failure()) must(Result<void>{*keeper.failure()});
    if (keeper.pid() != relay && keeper.pid() > 0) std::fprintf(stderr, "RELAY %d\n", relay = keeper.pid());
    signalfd_siginfo info;
    while (::read(signals.get(), &info, sizeof info) == sizeof info)
      if (info.ssi_signo == SIGUSR1 && keeper.pid() > 0) ::kill(keeper.pid(), SIGKILL);
    int status = 0;
    for (Guest& guest : all)
      if (guest.running && ::waitpid(guest.pid, &status, WNOHANG) == guest.pid) {
        guest.running = false;
        worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        keeper.remove(guest.id, [&guest](NetworkRecord record) { guest.record = std::move(record); });
      }
  }
  for (const Guest& guest : all) std::printf("RECORD %s\n", to_json(*guest.record).dump().c_str());
  return worst;
}
