// Names to addresses, for names that a policy allows: the host's table first, then its resolvers, through c-ares
// (static glibc cannot). Answers are kept for their time to live; one question at a time per name.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/host_config.h"
#include "sys/loop.h"

struct ares_channeldata;

namespace pctx::net {

struct Resolved {
  enum class Status { found, no_name, failed } status = Status::failed;
  std::vector<IpAddress> addresses;  // canonical
};

class Resolver {
 public:
  using Done = std::function<void(const Resolved&)>;
  using Ticket = std::uint64_t;
  static constexpr std::size_t kMostKept = 4096, kMostAddresses = 16;

  // Opens files (c-ares looks for its own settings): before the process is confined.
  static Result<std::unique_ptr<Resolver>> make(sys::Loop& loop);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Questions under way fail.
  void configure(std::string_view resolv_conf, std::string_view hosts);
  // `done` is called once, possibly before this returns (then the ticket is 0), unless the ticket is given back.
  Ticket resolve(const std::string& name, Done done);
  // Whether `resolve` would ask nobody: the answer is here, or on its way.
  bool knows(const std::string& name) const;
  void cancel(Ticket& ticket);

 private:
  struct Question;
  struct Kept {
    Resolved resolved;
    sys::Loop::Clock::time_point until;
  };

  explicit Resolver(sys::Loop& loop);
  void ask(Question& question);
  void on_reply(Question& question, bool v6, int status, const unsigned char* bytes, int size);
  void finish(Question& question, const Resolved& resolved, std::chrono::seconds ttl);
  void on_socket(int fd, bool read, bool write);
  void rearm();

  sys::Loop& loop_;
  ares_channeldata* channel_ = nullptr;
  ResolverConfig config_;
  HostTable hosts_;
  std::map<std::string, std::unique_ptr<Question>> questions_;
  std::map<Ticket, std::string> tickets_;
  std::map<std::string, Kept> kept_;
  sys::Loop::TimerId timer_ = 0;
  Ticket next_ = 1;
};

}  // namespace pctx::net
