// Turns a Plan into a running Box: one clone, id maps, and the handshake with the child. The caller's single thread
// stays free while the box builds itself.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "launch/child_plan.h"
#include "plan/plan.h"

namespace pctx {

struct Command {
  std::vector<std::string> argv;
};

struct Spawned {
  pid_t pid = -1;  // of the box's init, as the host sees it
  Fd pidfd;
  Fd status;         // StatusFrames
  Fd guest_channel;  // v1: the guest's way into its cgroups
};

// What the child does; it never returns.
using ChildMain = void (*)(ChildPlan&) noexcept;

// `std_fds` are the guest's 0, 1 and 2. `cgroup` is the directory to start in (v2), or -1.
Result<Spawned> spawn(const Plan& plan, const Command& command, std::array<int, 3> std_fds, int cgroup,
                      ChildMain child_main = run_child);

// A message with descriptors for a box that is being made; `what` they are, in words.
Result<void> hand_over(int socket, const StatusFrame& frame, std::span<const int> fds, const char* what);
// v1: hands over the `tasks` descriptors that the box joins by. Must follow spawn there.
Result<void> admit(const Spawned& box, std::span<const int> tasks);

// The next frame of a box or a maker, without waiting. `end`: it has closed its side.
enum class FrameRead { frame, nothing, end };
using FrameFds = std::array<Fd, kMaxFrameFds>;
FrameRead read_frame(int socket, StatusFrame& frame, FrameFds& fds);

// Tells a box's init to kill everybody and to wait for them, so that its usage is the box's. False if it cannot hear
// us. Should it not be gone in time, it is to be killed itself: the kernel ends the box then, and counts nobody.
bool order_end(int status);
inline constexpr Millis kEndPatience{1000};

// Words for a failure that the child reported.
Error describe_failure(const StatusFrame& frame, const Plan& plan, const Command& command);
// Message::lacking, in the layers that the Receipt names.
void note_lack(const StatusFrame& frame, std::array<LayerState, kLayers.size()>& layers);

// Whose files are shown as whose. It is handed to the kernel as a user namespace, which a process must hold until we
// have its descriptor; to end that process takes a while, and comes when this is let go. Serves every folder of one
// owner.
class IdMapping {
 public:
  static Result<IdMapping> make(std::uint32_t from_uid, std::uint32_t from_gid, std::uint32_t uid, std::uint32_t gid);
  IdMapping(IdMapping&& other) noexcept
      : names_(std::move(other.names_)),
        pidfd_(std::move(other.pidfd_)),
        stack_(std::move(other.stack_)),
        holder_(std::exchange(other.holder_, -1)) {}
  IdMapping& operator=(IdMapping&&) = delete;
  ~IdMapping();
  int get() const { return names_.get(); }
  Fd take() && { return std::move(names_); }

 private:
  static constexpr std::size_t kStack = 16 << 10;
  IdMapping() = default;
  Fd names_, pidfd_;
  std::unique_ptr<char[]> stack_;
  pid_t holder_ = -1;
};

// A detached mount of `source` in which its owner's files are shown as those of another (privileged hosts, kernel
// 5.12).
Result<Fd> idmapped_tree(const LentPath& source, int mapping);

// Writes the maps of the process `pid`, itself or by newuidmap and newgidmap.
Result<void> write_id_maps(pid_t pid, const IdMap& ids);

}  // namespace pctx
