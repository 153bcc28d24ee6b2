// What the Broker must not wait for, since it has callers to serve: a process of its own does it, one after the other,
// and tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/units.h"
#include "sys/loop.h"
#include "wire/packet.h"

namespace pctx {

class Errands {
 public:
  using Ticket = std::uint64_t;
  // In that process. What it returns is the answer.
  using Work = std::string (*)(const wire::Packet& order);
  // From the loop. Nothing: the process has ended, or had done nothing for longer than its patience and was ended.
  using Done = std::function<void(std::optional<std::string> answer)>;

  struct Kind {
    const char* name;  // of the process
    Work work;
    Millis patience{0};  // with each; 0: without end
  };

  Errands(sys::Loop& loop, Kind kind) : loop_(loop), kind_(kind) {}
  ~Errands();
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  Ticket ask(const std::string& order, const std::vector<int>& fds, Done done);
  void forget(Ticket& ticket);  // nobody is told; 0, and already done, are fine

 private:
  void start();
  void stop();
  void on_answer();
  void expect();

  sys::Loop& loop_;
  const Kind kind_;
  Fd socket_;
  pid_t pid_ = -1;
  Ticket last_ = 0;
  std::size_t unanswered_ = 0;
  sys::Loop::TimerId patience_ = 0;
  std::map<Ticket, Done> waiting_;
};

}  // namespace pctx
