// All Workers for one Environment and one policy: a maker, a Zygote with the packages imported, and Workers that wait
// before anybody asks for them.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pool/figures.h"
#include "pool/listeners.h"
#include "pool/spec.h"
#include "pool/worker.h"
#include "wire/packet.h"

namespace pctx {

class Pool {
 public:
  using Clock = std::chrono::steady_clock;
  struct Listener {
    std::function<void()> available;           // a Worker waits
    std::function<void(Worker&)> exited;       // a Worker's process is gone, its box not yet
    std::function<void(Worker&)> ended;        // a leased Worker is gone
    std::function<void(const Error&)> failed;  // no Worker will come
    std::function<bool()> room;                // one more Worker may live
  };

  static Result<std::unique_ptr<Pool>> start(sys::Loop& loop, Mover& mover, Lookout& lookout, RelayKeeper& relay,
                                             const PoolSpec& spec, Listener listener);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // A waiting Worker, or nullptr; another one is made in its place.
  Worker* take();
  void want(std::size_t waiting);  // how many Workers should wait
  std::size_t size() const { return workers_.size(); }
  std::uint64_t memory() const;  // of its Zygote and all its Workers
  std::size_t waiting() const;
  bool idle() const;
  Clock::time_point last_used() const { return last_used_; }
  PoolFigures figures() const;
  const Plan& plan() const { return plan_; }

 private:
  struct Zygote {
    Fd status, pidfd, control;
    Fd words;                       // what it printed, read only if it dies
    Fd their_control, their_words;  // what it holds, to know them again
    pid_t pid = -1;
    bool blinding = false, ready = false;
    std::uint64_t forks = 0;
    Clock::time_point since;
  };

  Pool(sys::Loop& loop, Mover& mover, Lookout& lookout, RelayKeeper& relay, Plan plan, Listener listener)
      : loop_(loop),
        mover_(mover),
        lookout_(lookout),
        relay_(relay),
        plan_(std::move(plan)),
        listener_(std::move(listener)) {}
  void on_maker();
  void on_zygote_status();
  void on_zygote_end();
  void on_zygote_message();
  DenialBook* book_of(pid_t pid);  // of the Worker that a process belongs to
  Result<void> cut_zygote();
  void end_zygote();
  void fill();
  void add_worker();
  void fork_next();
  void on_change(Worker& worker);
  void sweep();
  void restart_zygote();
  void wait_for_import();
  void weigh_zygote();
  void look_at_waiting();
  void leave_to_workers(const Error& error);
  void fail(Error error);

  sys::Loop& loop_;
  Mover& mover_;
  Lookout& lookout_;
  RelayKeeper& relay_;  // the Broker's one
  Plan plan_;
  Listener listener_;
  Command command_;  // the Zygote's
  Maker maker_;
  FolderLender folders_{loop_};
  Inspector inspector_{loop_};
  Zygote zygote_;
  DenialListeners denials_{loop_, plan_, [this](pid_t pid) { return book_of(pid); }};
  std::deque<BoxCgroup> cgroups_;  // of Zygotes; all but the last are of such as are dying
  std::list<std::unique_ptr<Worker>> workers_;
  std::deque<std::uint16_t> to_fork_;  // boxes that stand, by tag; the first one is being forked into if `forking_`
  bool forking_ = false;
  unsigned blindings_ = 0;      // ordered and not yet answered
  bool unknown_ended_ = false;  // a process that is no Worker we know: perhaps one that is being made
  std::uint16_t next_tag_ = 2;
  std::size_t wanted_ = 2;
  unsigned failures_ = 0;  // in a row
  bool failed_ = false;
  std::vector<std::string> preload_;
  bool scripts_ = false;
  std::map<std::string, std::string> left_;  // what no Zygote imports again, and why
  std::string importing_;                    // what the Zygote is at
  bool left_all_ = false;
  sys::Loop::TimerId sweep_ = 0, report_ = 0, patience_ = 0, weigh_ = 0, look_ = 0;
  Clock::time_point last_used_ = Clock::now();
  PoolFigures figures_;
};

}  // namespace pctx
