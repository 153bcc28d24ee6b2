// One connection of a guest: whom it meant, the check of that, the connection onward, and the bytes both ways.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/fd.h"
#include "net/client_hello.h"
#include "net/descriptors.h"
#include "net/http_gate.h"
#include "net/record_book.h"
#include "net/resolver.h"
#include "net/token_bucket.h"
#include "net/turns.h"
#include "sys/loop.h"

namespace pctx::net {

// What all boxes of the relay share.
struct Surroundings {
  sys::Loop& loop;
  Resolver& resolver;
  Turns& turns;
  Descriptors& descriptors;
};

// What the connections of one box share.
struct BoxShare {
  sys::Loop& loop;
  Resolver& resolver;
  Turns& turns;
  Descriptors& descriptors;
  NetworkPolicy policy;
  RecordBook book;
  TokenBucket up, down;
  Turns::Share turn;
  Descriptors::Share files;
  std::uint64_t sent = 0, received = 0;  // what went on
  std::uint64_t taken = 0;               // what was read from the guest for going on: held to policy.bytes

  std::uint64_t may_take() const {
    return policy.bytes ? *policy.bytes - std::min(*policy.bytes, taken) : std::numeric_limits<std::uint64_t>::max();
  }
  // Below a wildcard the guest chooses what a resolver hears: that is bytes that leave, as often as one is asked.
  // False: the budget does not hold them.
  bool pay_for_question(const std::string& name);
};

// Whether no entry has this very name.
bool is_chosen(const NetworkPolicy& policy, std::string_view name);

class Connection {
 public:
  using Ended = std::function<void()>;  // called once, from the loop; may destroy the connection

  // `name` is empty where the guest used an address of its own; then `address` is the one. `named`: a rule has that
  // very address, so that it is opened whatever its class.
  Connection(BoxShare& box, Fd guest, std::string name, const IpAddress& address, std::uint16_t port, bool named,
             Ended ended);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();
  void cut(std::string reason, bool allowed);  // resets both sides; `ended` is called later
  bool over() const { return over_; }

 private:
  struct Side {
    Fd socket;
    bool readable = false, writable = false;
    bool gone = false;  // in both directions
  };
  // Bytes on their way from one side to the other.
  struct Flow {
    Fd pipe_in, pipe_out;
    std::size_t in_pipe = 0;
    std::string pending;  // what a gate let through; goes before the pipe
    std::size_t pending_at = 0;
    bool bulk = false;                     // it is much: worth a pipe
    bool pipeless = false;                 // there are no descriptors for one
    bool ended = false, finished = false;  // no more comes; the other side was told
  };
  enum class Move { waiting, again, failed };

  void on_resolved(const Resolved& resolved);
  void try_next();
  void on_tried(int fd);
  void connected(Fd server, const IpAddress& address);
  void pump();
  Move move(Side& from, Side& to, Flow& flow, bool up);
  Move read_some(Side& from, Flow& flow, bool up, std::size_t most);
  Move read_little(Side& from, Flow& flow, bool up, std::size_t most);
  Move take_count(ssize_t got, Side& from, Flow& flow, bool up);
  Move read_checked(Side& from, Flow& flow, bool up, std::size_t most);
  Move write_some(Side& to, Flow& flow, bool up);
  Move over_budget(Side& from, Flow& flow);
  bool checking(bool up) const;
  bool waiting() const;
  bool hold(std::size_t descriptors);
  void let_go(std::size_t descriptors);
  void watch(Side& side);
  void wake_after(sys::Loop::Clock::duration delay);
  void end();

  BoxShare& box_;
  Side guest_, server_;
  Flow up_, down_;
  std::variant<std::monostate, TlsGate, HttpGate> gate_;
  ConnectionRecord record_;
  bool named_;
  IpAddress meant_;
  Ended ended_;
  std::vector<IpAddress> targets_;
  std::size_t next_target_ = 0;
  struct Trial {
    Fd socket;
    IpAddress address;
  };
  std::vector<Trial> trials_;
  int last_error_ = 0;
  Resolver::Ticket ticket_ = 0;
  sys::Loop::TimerId deadline_ = 0, greeting_ = 0, stagger_ = 0, wake_ = 0, gone_ = 0;
  Turns::Ticket turn_ = 0;
  std::size_t held_ = 0;   // descriptors, of the box's share
  std::size_t extra_ = 0;  // of them: for trials beside the first
  bool over_ = false;
};

}  // namespace pctx::net
