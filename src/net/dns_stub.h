// The box's name server: tells synthetic addresses for names that the policy allows and that exist, and that no other
// name does. Nothing of a name that is not allowed leaves the process.
#pragma once

#include <netinet/in.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "net/connection.h"
#include "net/dns.h"
#include "net/name_table.h"

namespace pctx::net {

class DnsStub {
 public:
  static constexpr std::size_t kMostOpen = 256;  // questions under way
  static constexpr std::size_t kMostStreams = 8;

  // Tells the owner which address a name has got, then calls `then`: should this relay die, the next one must know what
  // a guest has been told. False: too much is waiting to be told.
  using Announce = std::function<bool(std::size_t number, const std::string& name, std::function<void()> then)>;

  // `known`: names that have their addresses from another relay.
  DnsStub(BoxShare& box, NameTable& names, const std::vector<std::string>& known, Fd udp, Fd tcp, Announce announce);
  ~DnsStub();
  DnsStub(const DnsStub&) = delete;
  DnsStub& operator=(const DnsStub&) = delete;

 private:
  using Reply = std::function<void(const std::string& message)>;
  struct Stream {
    Fd socket;
    std::string in;
    sys::Loop::TimerId patience = 0, more = 0;
  };
  struct Open {
    Resolver::Ticket ticket = 0;
  };

  void on_udp();
  void on_tcp();
  void on_stream(std::uint64_t number);
  void answer_stream(std::uint64_t number);
  void drop_stream(std::uint64_t number);
  void answer(const DnsQuestion& question, const Reply& reply);
  void tell(const DnsQuestion& question, const Resolved& resolved, const Reply& reply);
  void refuse(const DnsQuestion& question, std::string reason, DnsCode code, const Reply& reply);

  BoxShare& box_;
  NameTable& names_;
  Fd udp_, tcp_;
  Announce announce_;
  std::size_t announced_;         // numbers below this one the owner knows
  std::set<std::string> chosen_;  // names below a wildcard that reached a resolver, whatever it said
  std::map<std::uint64_t, Open> open_;
  std::map<std::uint64_t, Stream> streams_;
  std::uint64_t next_ = 1;
};

}  // namespace pctx::net
