// One Worker from the cut of its box to its Receipt. It serves one call.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/fd.h"
#include "box/account.h"
#include "box/cgroup.h"
#include "box/lookout.h"
#include "box/network.h"
#include "box/outcome.h"
#include "box/receipt.h"
#include "box/watchdog.h"
#include "launch/maker.h"
#include "pool/folder.h"
#include "pool/inspect.h"
#include "pool/inspector.h"
#include "pool/mover.h"
#include "sys/loop.h"

namespace pctx {

// Found by a sweeper when its Broker is gone.
std::string unique_cgroup_name(std::uint16_t tag);

class Worker {
 public:
  static constexpr std::uint64_t kMemoryAtFirst = 8_MiB;  // what one counts for while it is made
  enum class State {
    cutting,  // the maker builds its box
    forking,  // the Zygote forks into it
    warming,  // it touches what a call touches
    waiting,  // for a lease
    leased,
    running,
    ended,
  };
  // Descriptors that go to the caller.
  struct Lease {
    int socket, out, err;
  };

  // `changed` is called after every change of state, from the loop.
  // `known` are the host's pids of all other children of the maker's.
  struct Surroundings {
    RelayKeeper& relay;
    pid_t maker;
    std::function<std::set<pid_t>()> known;
    std::function<pid_t()> zygote;
    Mover& mover;
    Inspector& inspector;
    Lookout& lookout;
    FolderLender& folders;
    std::uint64_t left_behind;  // processes of ours that a Worker leaves in its box when it ends
  };
  Worker(sys::Loop& loop, const Plan& plan, std::uint16_t tag, Surroundings around,
         std::function<void(Worker&)> changed);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  State state() const { return state_; }
  std::uint16_t tag() const { return tag_; }
  std::chrono::steady_clock::time_point since() const { return since_; }

  Result<void> cut(const Maker& maker);
  void on_cut(Fd pidfd, int error);       // the maker's answer
  Result<std::vector<int>> fork_order();  // what the Zygote needs
  void on_forked(int error);              // the Zygote's answer
  void on_spent(Millis cpu);
  void on_exit(int wait_status);              // the Worker's process is gone, its box is not yet
  void on_reaped(std::optional<Millis> cpu);  // its box is; nothing if not everybody was waited for
  Lease lease();                              // the descriptors stay ours until `handed_over`
  void handed_over();
  // Between lease and start: the caller's folder, at /mnt.
  Result<void> lend_folder(const std::string& path, std::function<void(const Result<void>&)> done);
  void start_call(std::optional<Millis> timeout = {});  // time counts from here; else the policy's
  void kill();
  bool waits_still() const;                       // or does not wait at all
  void look();                                    // it may have ended before anybody knew its pid
  void discard();                                 // it is not wanted any more, which is no failure of its
  std::uint64_t memory() const;                   // what it has beside what it shares with its Zygote
  bool box_stands() const;                        // false from the end of its init on, before anybody has told us
  pid_t pid_below() const { return pid_below_; }  // as the maker sees it; 0 while there is none
  pid_t init() const { return init_; }            // as the host does
  pid_t pid() const { return pid_; }
  bool holds(const PidNamespace& place) const { return place && place == place_; }  // of a process: it is in this box
  DenialBook& denials() { return denials_; }
  bool discarded() const { return discarded_; }
  const Error* error() const { return error_ ? &*error_ : nullptr; }
  bool all_known() const;  // its process has ended, and nothing that its ending tells can change any more
  Ending ending() const;   // once it has ended

 private:
  void become(State state);
  void expect_soon();  // the next step of being made
  bool needs_room_to_fork() const;
  void fail(Error error);
  void on_status();
  void on_ready_byte();
  void check_limits();
  void watch_kernel_memory();
  void stop_looking();
  Result<std::vector<int>> identify();  // what it may have
  void spread_over_cpus();
  void on_network(const StatusFrame& frame, FrameFds& fds);
  void end();
  bool is_empty() const;
  bool was_all() const;
  void watch_folder();  // what changes there from here on is the call's doing
  void inspect(std::optional<pid_t> moved);
  void admit();  // to those that wait for a call

  sys::Loop& loop_;
  const Plan& plan_;
  const std::uint16_t tag_;
  const Surroundings around_;
  std::function<void(Worker&)> changed_;
  pid_t init_ = -1, pid_ = -1, pid_below_ = 0;
  PidNamespace place_;
  State state_ = State::cutting;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now(), started_{}, ended_at_{};
  BoxCgroup cgroup_;
  std::vector<Fd> tasks_;
  std::vector<Fd> namespaces_;  // until the Zygote has them
  Fd pidfd_, status_, made_, memory_event_;
  Fd diag_, locks_, excess_;                              // for the Lookout, from it
  unsigned watched_as_ = 0;                               // by it
  Fd socket_, out_, err_;                                 // the caller's ends
  Fd their_null_, their_socket_, their_out_, their_err_;  // until we know them again in the Worker
  TreeMeter meter_;
  EndsReader ends_;
  std::uint32_t network_ = 0;  // as the relay calls it; 0: it has none, or none any more
  bool attempts_seen_ = true;
  std::optional<NetworkRecord> record_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for answers that may come after us
  Errands::Ticket moving_ = 0, inspecting_ = 0;
  sys::Loop::TimerId deadline_ = 0, watch_ = 0, look_ = 0, patience_ = 0, ending_ = 0;
  Verdict verdict_;
  Millis timeout_{0};
  bool told_ = false;    // we know how it ended
  bool others_ = false;  // and others, dead or alive, may have used what is not in its account
  bool lent_ = false, discarded_ = false;
  pid_t zygote_ = -1;  // that forked it
  DenialBook denials_;
  Fd mnt_;
  std::optional<FolderSnapshot> before_;
  CgroupUsage usage_;
  std::optional<Millis> waited_cpu_ = Millis{0};
  std::optional<Error> error_;
};

}  // namespace pctx
