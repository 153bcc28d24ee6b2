// Everything the child needs between clone and exec, built before the clone: plain pointers into memory that the parent
// keeps, no ownership, nothing to construct or destroy.
#pragma once

#include <linux/filter.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "launch/child_network.h"
#include "plan/plan.h"

namespace pctx {

// Where the child is; a failure carries one of these back, and the parent words the message.
enum class Step : std::uint8_t {
  handshake,
  namespaces,
  clone_bind,
  verify_device,
  ids,
  root,
  attach,
  root_op,
  proc,
  setting,
  pivot,
  hostname,
  loopback,
  network,
  cgroup,
  cgroup_namespace,
  init,
  fork,
  terminal,
  descriptors,
  workdir,
  affinity,
  rlimit,
  keyring,
  apparmor,
  capabilities,
  no_new_privs,
  landlock,
  seccomp,
  exec,
};

// One message on the status socket, in either direction. Descriptors travel beside it.
enum class Message : std::uint32_t {
  failure = 1,  // step, index, value = errno
  ended = 2,    // value = wait status of the guest
  signal = 3,   // parent: value = signal for the guest
  go,           // parent: the ids are mapped
  cgroups,      // parent: + descriptors of the v1 `tasks` files
  listener,     // + seccomp listener
  probes,       // + /proc of the box, + a directory of its scratch space
  sockets,      // + a socket that lists the box's sockets
  terminal,     // + pty master
  network,      // + what the relay serves, see child_network.h
  namespaces,   // guest to pid 1: + its namespaces
  ready,        // maker: the template stands
  cut_zygote,   // to the maker: value = first pid, index = tag; + status, in, out, err, tasks…
  cut_worker,   // to the maker: the same; + status, tasks…
  cut,          // maker: index = tag, value = errno; + pidfd of the box's init
  blind,        // to the maker
  blinded,      // maker: value = 0 if it was done
  orphan,       // maker: a Worker has ended; pad and index = its pid as the maker sees it, value = wait status
  spent,        // from the maker, before orphan: what that process has used, in milliseconds of CPU
  binder,       // maker: + the socket of what lends folders
  mounted,      // binder: index = tag, value = errno
  reaped,       // maker: index = tag of a box that is gone, value = milliseconds of CPU time
};
// init.cc includes nothing of the engine and has these two numbers of its own.
static_assert(static_cast<int>(Message::ended) == 2 && static_cast<int>(Message::signal) == 3);

struct StatusFrame {
  Message kind;
  Step step;
  std::uint8_t pad;
  std::uint16_t index;
  std::int32_t value;
};
static_assert(sizeof(StatusFrame) == 12);

// Descriptor numbers that the init program finds open, and what it is called in `ps`.
inline constexpr int kInitStatusFd = 3;
inline constexpr int kInitReadyFd = 4;

struct ChildOp {
  RootOpKind kind;
  bool directory;
  bool device;
  unsigned mode;
  std::uint64_t size;
  std::uint64_t attributes;
  const char* target;
  const char* text;
  std::size_t text_size;
  unsigned major, minor;
  const char* const* options;  // tmpfs: key, value, …, nullptr
  ino_t inode;                 // bind: what `tree` must be, 0 for any
  dev_t holder;
  int tree;  // bind: a detached mount, made by the parent (id-mapped) or by the child; -1: not yet
};

struct ChildRule {
  const char* path;
  std::uint64_t access;
};

struct ChildPlan {
  int status;         // our end of the status socket
  int guest_channel;  // v1: where the guest receives Message::cgroups; else -1
  int std_fds[3];
  ChildOp* ops;
  std::size_t op_count;
  const char* const* root_options;
  const char* const* scratch_options;  // of a box that is cut from a template
  const char* attach_point;
  const char* const* settings;  // path, value, …, nullptr
  int late_namespaces;          // CLONE_NEW* that the child makes itself
  bool new_network;
  const ChildNetwork* network;  // nullptr: nothing but loopback
  bool new_uts, cgroup_namespace, cgroup_namespace_optional;
  uid_t uid;
  bool drop_groups, set_ids;
  const char* hostname;
  std::size_t hostname_size;
  const void* init_image;
  std::size_t init_size;
  bool terminal, send_probes;
  bool folder;     // a maker's: leave a binder behind
  winsize window;  // of the caller's terminal
  const char* workdir;
  bool pin, spread;  // the guest stays on `cpus`; there is more than one in `allowed`
  cpu_set_t allowed, cpus;
  const ResourceLimit* rlimits;
  std::size_t rlimit_count;
  bool keyring;
  const char* apparmor;  // text for attr/exec, or nullptr
  std::uint64_t landlock_handled, landlock_scoped;
  std::size_t landlock_size;
  const ChildRule* rules;
  std::size_t rule_count;
  sock_fprog filter;  // len 0: no filter
  bool listener;
  const char* const* candidates;  // paths to try in order, nullptr at the end
  const char* const* argv;
  const char* const* envp;
};
static_assert(std::is_trivially_copyable_v<ChildPlan> && std::is_trivially_destructible_v<ChildPlan>);

// Runs in the child and never returns. It forks at once: pid 1 of the box builds its root and becomes init, while the
// guest's process (child_guest.cc) makes the namespaces that take the kernel long and gives up its rights. They meet
// three times over `sync`: the guest tells that its namespaces are there, pid 1 that the root is, and the end of pid
// 1's side, when it has become init, lets the guest run.
[[noreturn]] void run_child(ChildPlan& plan) noexcept;
[[noreturn]] void run_guest(const ChildPlan& plan, int sync, int host_proc) noexcept;

// For both halves.
[[noreturn]] void fail(const ChildPlan& plan, Step step, std::size_t index = 0) noexcept;
inline constexpr std::size_t kMaxFrameFds = 8;
bool send_frame(int socket, const StatusFrame& frame, const int* fds = nullptr, std::size_t count = 0) noexcept;
// One frame with at most kMaxFrameFds descriptors; returns what recvmsg does.
std::ptrdiff_t receive_frame(int socket, StatusFrame& frame, int* fds, std::size_t& count, int flags) noexcept;
std::size_t receive(int channel, Message expected, int* fds) noexcept;
void await_go(const ChildPlan& plan) noexcept;
void loopback_up(const ChildPlan& plan) noexcept;
// For limits that no cgroup binds, the supervisor looks in from outside.
void send_probes(const ChildPlan& plan, int root, int proc) noexcept;
void send_socket_probe(const ChildPlan& plan) noexcept;
void become_guest_ids(const ChildPlan& plan) noexcept;
[[noreturn]] void become_init(const ChildPlan& plan, int init, int sync) noexcept;
// Receives Message::cgroups on `channel` and enters them.
void join_cgroups(const ChildPlan& plan, int channel) noexcept;

}  // namespace pctx
