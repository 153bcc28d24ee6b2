// The relay: a confined process of its own that serves the network of boxes with an allow-list. It accepts on sockets
// that were made inside the boxes, resolves names, checks them, connects from the host's network and moves the bytes.
// This is the trusted side's handle on it; nothing here waits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "policy/network.h"

namespace pctx {

// Made inside one box, before its guest runs.
struct NetworkEnds {
  Fd dns_udp, dns_tcp;                                  // port 53, dual stack; the TCP one listens
  Fd packet, raw4, raw6;                                // the watchers; absent where the kernel refuses them
  std::vector<std::pair<std::uint16_t, Fd>> listeners;  // [::]:PORT, dual stack
};

struct ConnectionRecord {
  std::string name;     // what was meant, where a name was; else empty
  std::string address;  // what was connected to, or was meant to be
  std::uint16_t port = 0;
  std::string transport;  // tcp, udp, dns
  std::uint64_t sent = 0, received = 0;
  bool allowed = false;
  std::string reason;       // why it was refused or cut; empty for one that went its way
  std::string check;        // "sni", "host", "address"; "name" where the port has no check of its own
  std::uint64_t count = 1;  // equal attempts are written once

  bool operator==(const ConnectionRecord&) const = default;
};

struct NetworkRecord {
  std::vector<ConnectionRecord> connections;
  std::uint64_t left_out = 0;  // attempts beyond what a record holds
  std::uint64_t sent = 0, received = 0;
  bool complete = true;  // false: the relay died, and with it what it had not told yet
};

class Relay {
 public:
  // What it tells its owner. Each is called from `serve`.
  struct Listener {
    std::function<void(std::uint32_t id, NetworkRecord record)> record;
    // A guest is about to hear of an address, the `number`-th, that stands for `name`.
    std::function<void(std::uint32_t id, std::size_t number, std::string name)> named;
    // There were not enough descriptors for this box; it is not served.
    std::function<void(std::uint32_t id)> refused;
  };

  // Forks and returns at once. The caller has a single thread. What keeps the process from confining itself is told
  // by `failure`, after which it is gone: a relay that is not confined serves nobody.
  static Result<Relay> start();

  Relay(Relay&& other) noexcept;
  Relay& operator=(Relay&& other) noexcept;
  ~Relay();  // ends the process and its connections

  int fd() const;  // readable: call serve()
  // Sends duplicates; the caller keeps the ends, for another relay should this one die. `known`: what `named` told of
  // this box when another relay had it.
  Result<void> add(std::uint32_t id, const NetworkPolicy& policy, const NetworkEnds& ends,
                   const std::vector<std::string>& known = {});
  // Cuts what is open; the record comes through `serve`.
  void remove(std::uint32_t id);
  // Reads what the relay tells. If it died, every box that it had gets a record that is not complete, whose totals are
  // the last it told; the owner starts another and adds them again, with what is left of `bytes`.
  void serve(const Listener& listener);
  bool alive() const;
  const std::optional<Error>& failure() const;
  // The host's /etc/resolv.conf and /etc/hosts have changed: reads them again and passes them on.
  void reload_names();
  pid_t pid() const;

 private:
  struct State;
  explicit Relay(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pctx
