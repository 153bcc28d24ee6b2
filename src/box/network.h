// The trusted side of boxes with an allow-list: puts together the ends that a box sends, keeps the relay that serves
// them, and starts another one if it dies.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "base/result.h"
#include "box/closer.h"
#include "launch/spawn.h"
#include "net/relay.h"

namespace pctx {

// What comes as Message::network, in one frame or several.
class EndsReader {
 public:
  // True once they are all there.
  Result<bool> take(const Plan& plan, const StatusFrame& frame, FrameFds& fds);
  NetworkEnds ends;

 private:
  std::size_t count_ = 0;
};

// Attempts to reach what is not allowed stand in the record only where these are there; they fail either way.
bool attempts_are_seen(const NetworkEnds& ends);

class RelayKeeper {
 public:
  using OnRecord = std::function<void(NetworkRecord)>;
  using Clock = std::chrono::steady_clock;

  // One who serves many boxes, one after the other, must not wait for the end of each one's network.
  enum class Serves { one_box, many_boxes };
  explicit RelayKeeper(Serves serves) : serves_(serves) {}

  // Unless one runs already.
  Result<void> start();
  // -1: there is none. May be another one after `serve`.
  int fd() const { return relay_ ? relay_->fd() : -1; }
  pid_t pid() const { return relay_ ? relay_->pid() : -1; }
  // When to call `serve` although nothing is readable: one that dies again and again comes back after a pause.
  std::optional<Clock::time_point> due() const;
  // What keeps every relay from serving; boxes then have no network.
  const std::optional<Error>& failure() const { return failure_; }

  Result<std::uint32_t> add(const NetworkPolicy& policy, NetworkEnds ends);
  // `done` is called from `serve`, or at once if nobody is left to tell.
  void remove(std::uint32_t id, OnRecord done);
  void serve();
  // The host's name servers may have changed.
  void refresh();
  // The process ends soon, and the relay by itself after it: nobody waits.
  void let_go();

 private:
  struct Box {
    NetworkPolicy policy;
    NetworkEnds ends;
    NetworkRecord record;            // of relays that have died
    OnRecord done;                   // it is being removed
    std::vector<std::string> known;  // names whose addresses the guest has heard of, by number
    bool refused = false;            // no relay has room for it
  };
  void take_record(std::uint32_t id, NetworkRecord record);
  void take_name(std::uint32_t id, std::size_t number, std::string name);
  void take_refusal(std::uint32_t id);
  void close(Box& box);
  void replace();
  void revive();
  void fail(Error error);

  const Serves serves_;
  Closer closer_;
  std::optional<Relay> relay_;
  std::map<std::uint32_t, Box> boxes_;
  std::uint32_t next_ = 1;
  Clock::time_point started_, returns_;
  unsigned deaths_ = 0;  // soon after the start, in a row
  std::optional<Error> failure_;
  std::string names_;  // state of the host's files, see refresh
};

}  // namespace pctx
