#include "net/dns_stub.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "net/address_class.h"

namespace pctx::net {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 10s;
constexpr int kBatch = 32;
constexpr std::size_t kMostMessage = 4096;

// Where a question came from, and to which of our addresses: the answer goes back the same way, or the guest's resolver
// takes it for somebody else's.
struct Way {
  sockaddr_storage peer{};
  socklen_t peer_size = 0;
  alignas(cmsghdr) std::array<char, 128> control{};
  std::size_t control_size = 0;
};

bool receive(int socket, std::string& message, Way& way) {
  message.resize(kMostMessage);
  iovec data{message.data(), message.size()};
  msghdr header{};
  header.msg_name = &way.peer;
  header.msg_namelen = sizeof way.peer;
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, 256> control{};
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT);
  if (got < 0) return false;
  message.resize(static_cast<std::size_t>(got));
  way.peer_size = header.msg_namelen;
  way.control_size = 0;
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    const bool info = (each->cmsg_level == IPPROTO_IPV6 && each->cmsg_type == IPV6_PKTINFO) ||
                      (each->cmsg_level == IPPROTO_IP && each->cmsg_type == IP_PKTINFO);
    if (!info || each->cmsg_len > way.control.size()) continue;
    // A dual-stack socket tells both for IPv4 and takes back only its own.
    if (way.control_size != 0 && each->cmsg_level == IPPROTO_IP) continue;
    std::memcpy(way.control.data(), each, each->cmsg_len);
    way.control_size = CMSG_ALIGN(each->cmsg_len);
    auto* copy = reinterpret_cast<cmsghdr*>(way.control.data());
    if (copy->cmsg_level == IPPROTO_IP) {
      in_pktinfo in;
      std::memcpy(&in, CMSG_DATA(copy), sizeof in);
      in.ipi_spec_dst = in.ipi_addr;
      in.ipi_ifindex = 0;
      std::memcpy(CMSG_DATA(copy), &in, sizeof in);
    } else {
      in6_pktinfo in;
      std::memcpy(&in, CMSG_DATA(copy), sizeof in);
      in.ipi6_ifindex = 0;
      std::memcpy(CMSG_DATA(copy), &in, sizeof in);
    }
  }
  return true;
}

void send_back(int socket, const std::string& message, const Way& way) {
  iovec data{const_cast<char*>(message.data()), message.size()};
  msghdr header{};
  header.msg_name = const_cast<sockaddr_storage*>(&way.peer);
  header.msg_namelen = way.peer_size;
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (way.control_size != 0) {
    header.msg_control = const_cast<char*>(way.control.data());
    header.msg_controllen = way.control_size;
  }
  (void)::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void set_nonblocking(int fd) { (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

DnsStub::DnsStub(BoxShare& box, NameTable& names, const std::vector<std::string>& known, Fd udp, Fd tcp,
                 Announce announce)
    : box_(box),
      names_(names),
      udp_(std::move(udp)),
      tcp_(std::move(tcp)),
      announce_(std::move(announce)),
      announced_(known.size()) {
  for (const std::string& name : known)
    if (is_chosen(box_.policy, name)) chosen_.insert(name);
  if (udp_) {
    const int on = 1;
    (void)::setsockopt(udp_.get(), IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on);
    (void)::setsockopt(udp_.get(), IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    // An address that is only routed here is none that IPv6 would send from unasked.
    (void)::setsockopt(udp_.get(), IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof on);
    set_nonblocking(udp_.get());
    box_.loop.watch(udp_.get(), EPOLLIN, [this](std::uint32_t) { on_udp(); });
  }
  if (tcp_) {
    set_nonblocking(tcp_.get());
    box_.loop.watch(tcp_.get(), EPOLLIN, [this](std::uint32_t) { on_tcp(); });
  }
}

DnsStub::~DnsStub() {
  box_.loop.forget(udp_.get());
  box_.loop.forget(tcp_.get());
  for (auto& [number, open] : open_) box_.resolver.cancel(open.ticket);
  while (!streams_.empty()) drop_stream(streams_.begin()->first);
}

void DnsStub::on_udp() {
  std::string message;
  for (int i = 0; i < kBatch; ++i) {
    auto way = std::make_shared<Way>();
    if (!receive(udp_.get(), message, *way)) return;
    if (const auto question = read_question(message))
      answer(*question, [this, way](const std::string& reply) { send_back(udp_.get(), reply, *way); });
  }
}

void DnsStub::on_tcp() {
  Fd socket{::accept4(tcp_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!socket) return;
  if (streams_.size() >= kMostStreams) drop_stream(streams_.begin()->first);  // the oldest
  if (!box_.descriptors.try_take(box_.files, 1)) return;
  const std::uint64_t number = next_++;
  const int fd = socket.get();
  Stream& stream = streams_[number];
  stream.socket = std::move(socket);
  stream.patience = box_.loop.after(kPatience, [this, number] { drop_stream(number); });
  box_.loop.watch(fd, EPOLLIN, [this, number](std::uint32_t) { on_stream(number); });
}

void DnsStub::drop_stream(std::uint64_t number) {
  const auto found = streams_.find(number);
  if (found == streams_.end()) return;
  box_.loop.cancel(found->second.patience);
  box_.loop.cancel(found->second.more);
  box_.descriptors.give_back(box_.files, 1);
  box_.loop.forget(found->second.socket.get());
  streams_.erase(found);
}

void DnsStub::on_stream(std::uint64_t number) {
  Stream& stream = streams_.at(number);
  if (stream.more != 0) return;  // first what it has asked already
  std::array<char, kMostMessage> buffer;
  const ssize_t got = ::recv(stream.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop_stream(number);
  stream.in.append(buffer.data(), static_cast<std::size_t>(got));
  answer_stream(number);
}

// So many at once; the rest when others have had their turn.
void DnsStub::answer_stream(std::uint64_t number) {
  Stream& stream = streams_.at(number);
  std::size_t at = 0;
  for (int i = 0;; ++i) {
    const std::string_view rest = std::string_view{stream.in}.substr(at);
    if (rest.size() < 2) break;
    const std::size_t size =
        static_cast<std::size_t>(static_cast<unsigned char>(rest[0])) << 8 | static_cast<unsigned char>(rest[1]);
    if (size > kMostMessage) return drop_stream(number);
    if (rest.size() < 2 + size) break;
    if (i >= kBatch) {
      if (stream.more == 0)
        stream.more = box_.loop.after({}, [this, number] {
          streams_.at(number).more = 0;
          answer_stream(number);
        });
      break;
    }
    const auto question = read_question(rest.substr(2, size));
    at += 2 + size;
    if (!question) return drop_stream(number);
    answer(*question, [this, number](const std::string& reply) {
      const auto found = streams_.find(number);
      if (found == streams_.end()) return;
      const std::string framed =
          std::string{static_cast<char>(reply.size() >> 8), static_cast<char>(reply.size() & 0xff)} + reply;
      // A guest that does not read its answers loses them.
      if (::send(found->second.socket.get(), framed.data(), framed.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
          static_cast<ssize_t>(framed.size()))
        drop_stream(number);
    });
    if (!streams_.contains(number)) return;
  }
  stream.in.erase(0, at);
  if (stream.in.size() > 2 * kMostMessage) drop_stream(number);
}

void DnsStub::refuse(const DnsQuestion& question, std::string reason, DnsCode code, const Reply& reply) {
  box_.book.write({.name = question.name.empty() ? question.shown : question.name,
                   .port = 53,
                   .transport = "dns",
                   .reason = std::move(reason)});
  reply(write_answer(question, code));
}

void DnsStub::answer(const DnsQuestion& question, const Reply& reply) {
  if (question.problem != DnsCode::no_error) return reply(write_answer(question, question.problem));
  if (!may_resolve(box_.policy, question.name))
    return refuse(question, "no entry of the list names this host", DnsCode::no_name, reply);
  if (question.type != kTypeA && question.type != kTypeAaaa) return reply(write_answer(question, DnsCode::no_error));
  const bool chosen = is_chosen(box_.policy, question.name);
  if (chosen && !chosen_.contains(question.name) && chosen_.size() >= NameTable::kMostChosen)
    return refuse(question, fmt::format("more than {} names", NameTable::kMostChosen), DnsCode::server_failure, reply);
  if (open_.size() >= kMostOpen) return reply(write_answer(question, DnsCode::server_failure));
  if (!box_.pay_for_question(question.name))
    return refuse(question, "the byte budget is used up", DnsCode::server_failure, reply);
  if (chosen) chosen_.insert(question.name);
  const std::uint64_t number = next_++;
  open_.emplace(number, Open{});
  const Resolver::Ticket ticket =
      box_.resolver.resolve(question.name, [this, number, question, reply](const Resolved& resolved) {
        open_.erase(number);
        tell(question, resolved, reply);
      });
  if (const auto found = open_.find(number); found != open_.end()) found->second.ticket = ticket;
}

void DnsStub::tell(const DnsQuestion& question, const Resolved& resolved, const Reply& reply) {
  if (resolved.status == Resolved::Status::failed)
    return refuse(question, "the name cannot be resolved", DnsCode::server_failure, reply);
  if (resolved.status == Resolved::Status::no_name)
    return refuse(question, "the name does not exist", DnsCode::no_name, reply);
  // Every connection looks again; here it only spares the guest a connection that could not be.
  std::string_view kind;
  for (const IpAddress& address : resolved.addresses) {
    kind = is_opened(box_.policy, address) ? std::string_view{} : closed_class(address);
    if (kind.empty()) break;
  }
  if (!kind.empty())
    return refuse(question, fmt::format("the name resolves to a {} address", kind), DnsCode::no_name, reply);
  const auto number = names_.add(question.name);
  if (!number) return refuse(question, "too many names", DnsCode::server_failure, reply);
  const std::string message =
      write_answer(question, DnsCode::no_error, NameTable::address(*number, question.type == kTypeAaaa));
  if (*number < announced_) return reply(message);
  const auto then = [this, number = *number, reply, message] {
    announced_ = std::max(announced_, number + 1);
    reply(message);
  };
  if (!announce_(*number, question.name, then)) reply(write_answer(question, DnsCode::server_failure));
}

}  // namespace pctx::net
