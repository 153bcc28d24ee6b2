#include "net/resolver.h"

#include <ares.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "net/dns.h"

// Later versions prefer another set of functions, which Debian 12 does not have.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace pctx::net {
namespace {

using std::chrono::seconds;
constexpr seconds kLeastTtl{1}, kMostTtl{300}, kNoNameTtl{5}, kFailedTtl{2};
constexpr int kNxDomain = 3;

// c-ares before 1.19.1 falls back to rand() for its query ids where it cannot read /dev/urandom: ours are our own.
std::uint16_t random_id() {
  std::uint16_t id = 0;
  while (::getrandom(&id, sizeof id, 0) != static_cast<ssize_t>(sizeof id)) {
  }
  return id;
}

}  // namespace

struct Resolver::Question {
  struct Waiting {
    Ticket ticket;
    Done done;
  };
  struct Call {
    Resolver* resolver;
    std::string name;
    bool v6;
  };
  std::string name;
  std::vector<std::string> candidates;
  std::size_t candidate = 0;
  int open = 0;  // replies that are missing
  bool exists = false, failed = false;
  seconds ttl = kMostTtl;
  std::vector<IpAddress> addresses;
  std::vector<Waiting> waiting;
};

Resolver::Resolver(sys::Loop& loop) : loop_(loop) {}

Result<std::unique_ptr<Resolver>> Resolver::make(sys::Loop& loop) {
  std::unique_ptr<Resolver> resolver{new Resolver(loop)};
  if (::ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS)
    return os_error("cannot start the resolver library", ENOMEM);
  ares_options options{};
  options.flags = ARES_FLAG_EDNS | ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES;
  options.timeout = 2000;
  options.tries = 2;
  options.ednspsz = 1232;
  options.lookups = const_cast<char*>("b");
  options.sock_state_cb_data = resolver.get();
  options.sock_state_cb = [](void* self, ares_socket_t fd, int read, int write) {
    static_cast<Resolver*>(self)->on_socket(fd, read != 0, write != 0);
  };
  if (const int code = ::ares_init_options(&resolver->channel_, &options,
                                           ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_EDNSPSZ |
                                               ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB);
      code != ARES_SUCCESS)
    return unavailable(fmt::format("cannot start the resolver library: {}", ::ares_strerror(code)), "");
  return resolver;
}

Resolver::~Resolver() {
  questions_.clear();
  tickets_.clear();
  if (channel_ != nullptr) ::ares_destroy(channel_);
  loop_.cancel(timer_);
}

void Resolver::configure(std::string_view resolv_conf, std::string_view hosts) {
  ::ares_cancel(channel_);
  kept_.clear();
  hosts_ = read_hosts(hosts);
  config_ = read_resolv_conf(resolv_conf);
  std::string servers;
  for (const IpAddress& server : config_.servers)
    servers += fmt::format("{}{}", servers.empty() ? "" : ",", server.text());
  (void)::ares_set_servers_csv(channel_, servers.c_str());
}

Resolver::Ticket Resolver::resolve(const std::string& name, Done done) {
  if (const auto host = hosts_.find(name); host != hosts_.end()) {
    Resolved resolved{Resolved::Status::found, {}};
    for (const IpAddress& address : host->second) resolved.addresses.push_back(address.canonical());
    done(resolved);
    return 0;
  }
  if (const auto kept = kept_.find(name); kept != kept_.end()) {
    if (kept->second.until > sys::Loop::Clock::now()) {
      const Resolved resolved = kept->second.resolved;
      done(resolved);
      return 0;
    }
    kept_.erase(kept);
  }
  const Ticket ticket = next_++;
  tickets_.emplace(ticket, name);
  auto& question = questions_[name];
  const bool fresh = question == nullptr;
  if (fresh) {
    question = std::make_unique<Question>();
    question->name = name;
    question->candidates = config_.candidates(name);
  }
  question->waiting.push_back({ticket, std::move(done)});
  if (fresh) ask(*question);
  return tickets_.contains(ticket) ? ticket : 0;
}

bool Resolver::knows(const std::string& name) const {
  if (hosts_.contains(name) || questions_.contains(name)) return true;
  const auto kept = kept_.find(name);
  return kept != kept_.end() && kept->second.until > sys::Loop::Clock::now();
}

void Resolver::cancel(Ticket& ticket) {
  if (const auto found = tickets_.find(ticket); found != tickets_.end()) {
    if (const auto question = questions_.find(found->second); question != questions_.end())
      std::erase_if(question->second->waiting, [&](const auto& each) { return each.ticket == ticket; });
    tickets_.erase(found);
  }
  ticket = 0;
}

void Resolver::ask(Question& question) {
  question.open = 2;
  question.exists = question.failed = false;
  const std::string name = question.name;  // a question that fails at once is gone when ares_send returns
  const std::string candidate = question.candidates[question.candidate];
  for (const bool v6 : {false, true}) {
    const std::string query = write_query(random_id(), candidate, v6 ? kTypeAaaa : kTypeA);
    ::ares_send(
        channel_, reinterpret_cast<const unsigned char*>(query.data()), static_cast<int>(query.size()),
        [](void* arg, int status, int, unsigned char* bytes, int size) {
          const std::unique_ptr<Question::Call> call{static_cast<Question::Call*>(arg)};
          if (status == ARES_EDESTRUCTION) return;
          const auto found = call->resolver->questions_.find(call->name);
          if (found != call->resolver->questions_.end())
            call->resolver->on_reply(*found->second, call->v6, status, bytes, size);
        },
        new Question::Call{this, name, v6});
  }
  rearm();
}

void Resolver::on_reply(Question& question, bool v6, int status, const unsigned char* bytes, int size) {
  --question.open;
  const int code = status == ARES_SUCCESS && size >= 12 ? bytes[3] & 15 : -1;
  if (code == 0) {
    question.exists = true;
    std::array<ares_addrttl, kMostAddresses> v4{};
    std::array<ares_addr6ttl, kMostAddresses> six{};
    int count = kMostAddresses;
    const int parsed = v6 ? ::ares_parse_aaaa_reply(bytes, size, nullptr, six.data(), &count)
                          : ::ares_parse_a_reply(bytes, size, nullptr, v4.data(), &count);
    if (parsed != ARES_SUCCESS && parsed != ARES_ENODATA) question.failed = true;
    for (std::size_t i = 0; parsed == ARES_SUCCESS && i < static_cast<std::size_t>(std::max(count, 0)); ++i) {
      IpAddress address;
      address.v6 = v6;
      std::memcpy(address.bytes.data(), v6 ? static_cast<const void*>(&six[i].ip6addr) : &v4[i].ipaddr, v6 ? 16 : 4);
      question.addresses.push_back(address.canonical());
      question.ttl = std::min(question.ttl, seconds{v6 ? six[i].ttl : v4[i].ttl});
    }
  } else if (code != kNxDomain) {
    question.failed = true;
  }
  if (question.open > 0) return;
  if (!question.addresses.empty())
    return finish(question, {Resolved::Status::found, std::move(question.addresses)},
                  std::max(question.ttl, kLeastTtl));
  if (!question.failed && !question.exists && question.candidate + 1 < question.candidates.size()) {
    ++question.candidate;
    return ask(question);
  }
  finish(question, {question.failed ? Resolved::Status::failed : Resolved::Status::no_name, {}},
         question.failed ? kFailedTtl : kNoNameTtl);
}

void Resolver::finish(Question& question, const Resolved& resolved, seconds ttl) {
  const auto found = questions_.find(question.name);
  const std::unique_ptr<Question> owned = std::move(found->second);
  questions_.erase(found);
  if (kept_.size() >= kMostKept) kept_.clear();
  kept_[owned->name] = {resolved, sys::Loop::Clock::now() + ttl};
  for (const auto& [ticket, done] : owned->waiting)
    if (tickets_.erase(ticket) > 0) done(resolved);  // one that is called may cancel another
}

void Resolver::on_socket(int fd, bool read, bool write) {
  if (!read && !write) return loop_.forget(fd);
  loop_.watch(fd, (read ? EPOLLIN : 0u) | (write ? EPOLLOUT : 0u), [this, fd](std::uint32_t events) {
    ::ares_process_fd(channel_, (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0 ? fd : ARES_SOCKET_BAD,
                      (events & EPOLLOUT) != 0 ? fd : ARES_SOCKET_BAD);
    rearm();
  });
}

void Resolver::rearm() {
  loop_.cancel(timer_);
  timeval left{};
  if (::ares_timeout(channel_, nullptr, &left) == nullptr) return;
  timer_ = loop_.after(seconds{left.tv_sec} + std::chrono::microseconds{left.tv_usec}, [this] {
    timer_ = 0;
    ::ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    rearm();
  });
}

}  // namespace pctx::net
