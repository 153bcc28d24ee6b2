// One box in the relay: its listeners, its name server, its watchers, its connections and its record.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/connection.h"
#include "net/dns_stub.h"
#include "net/name_table.h"

namespace pctx::net {

class BoxNetwork {
 public:
  struct Parts {
    NetworkPolicy policy;
    NetworkEnds ends;
    std::size_t end_count = 0;       // taken from the descriptors
    std::vector<std::string> known;  // names that have their addresses from another relay
    DnsStub::Announce announce;
  };
  BoxNetwork(const Surroundings& around, Parts parts);
  ~BoxNetwork();
  BoxNetwork(const BoxNetwork&) = delete;
  BoxNetwork& operator=(const BoxNetwork&) = delete;

  // Cuts what is open and writes it down.
  void close();
  const BoxShare& share() const { return box_; }
  // Cuts the connection that came last, for others' sake. False: there is none.
  bool yield();

 private:
  void on_connection(std::uint16_t port, int listener);
  void admit(Fd socket, std::uint16_t port);
  void refuse(Fd socket, ConnectionRecord record);
  void on_packet();
  void count_unseen();
  bool is_local(const IpAddress& address) const;
  bool listens(std::uint16_t port) const;
  void pause(int fd, std::function<void()> again);

  BoxShare box_;
  const std::size_t end_count_;
  NetworkEnds ends_;
  NameTable names_;
  DnsStub dns_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::map<int, sys::Loop::TimerId> pauses_;
  std::uint64_t next_ = 1;
};

}  // namespace pctx::net
