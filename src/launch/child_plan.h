// Everything the child needs between clone and exec: plain pointers into memory that it shares with the parent, no
// ownership, nothing to construct or destroy. The first fields are there when it is born, the others when
// Message::planned comes (see embryo.h).
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
  uts,
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
  end = 4,      // parent: everybody is to be killed, and waited for
  tree,         // parent: + a detached mount for the operation `index`
  planned,      // parent: the plan is in the memory that we share
  go,           // parent: the ids are mapped
  cgroups,      // parent: + descriptors of the v1 `tasks` files
  listener,     // + seccomp listener
  probes,       // + /proc of the box, + its list of file locks, + a directory of its scratch space
  store,        // + a file system in memory beside that
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
  reaped,       // maker: index = tag of a box that is gone, value = milliseconds of CPU time, pad = 1 if they are all
  lacking,      // the box goes on without what `step` makes, value = errno
};
// init.cc includes nothing of the engine and has these numbers of its own.
static_assert(static_cast<int>(Message::ended) == 2 && static_cast<int>(Message::signal) == 3 &&
              static_cast<int>(Message::end) == 4);

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
  bool inside;
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
  int tree;  // bind: a detached mount, from the parent (id-mapped) or made by the child; -1: not yet
};

struct ChildRule {
  const char* path;
  std::uint64_t access;
};

struct ChildPlan {
  int status;         // our end of the status socket
  int guest_channel;  // where the guest's process hears of the plan, and of its cgroups; -1: it knows all
  int std_fds[3];
  int late_namespaces;  // CLONE_NEW* that the guest's process makes itself
  bool spread;          // there is more than one CPU in `allowed`
  cpu_set_t allowed;

  // From here on as planned.
  bool joins_cgroups;  // v1: Message::cgroups follows
  ChildOp* ops;
  std::size_t op_count;
  const char* const* root_options;
  const char* const* scratch_options;  // of a box that is cut from a template
  const char* attach_point;
  const char* const* settings;          // path, value, …, nullptr
  const char* const* network_settings;  // the same, of a network namespace
  bool new_network;
  const ChildNetwork* network;  // nullptr: nothing but loopback
  bool new_uts, uts_optional, cgroup_namespace, cgroup_namespace_optional;
  uid_t uid;
  bool drop_groups, set_ids;
  bool shares_user;  // the user namespace is the host's
  const char* hostname;
  std::size_t hostname_size;
  const void* init_image;
  std::size_t init_size;
  bool terminal, send_probes;
  bool folder;     // a maker's: leave a binder behind
  winsize window;  // of the caller's terminal
  const char* workdir;
  bool pin;  // the guest stays on `cpus`
  cpu_set_t cpus;
  const ResourceLimit* rlimits;
  std::size_t rlimit_count;
  bool files_last;  // that on descriptors comes after the filter, which allows it
  bool keyring;
  bool small_pages;            // no huge ones, which only a cgroup counts in full
  const char* launch_profile;  // AppArmor: text for attr/current of those who make the box, or nullptr
  const char* guest_profile;   // text for the guest's, or nullptr
  bool profile_at_exec;        // that goes to attr/exec; else to attr/current, since no exec may leave the launch's
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

// Runs in the child and never returns. It forks at once, before anything is planned: pid 1 of the box builds its root
// and becomes init, while the guest's process (child_guest.cc) makes the namespaces that take the kernel long and gives
// up its rights. They meet three times over `sync`: the guest tells that its namespaces are there, pid 1 that the root
// is, and the end of pid 1's side, when it has become init, lets the guest run.
[[noreturn]] void run_child(ChildPlan& plan) noexcept;
[[noreturn]] void run_guest(const ChildPlan& plan, int sync, int host_proc) noexcept;

// For both halves.
[[noreturn]] void fail(const ChildPlan& plan, Step step, std::size_t index = 0) noexcept;
inline constexpr std::size_t kMaxFrameFds = 8;
bool send_frame(int socket, const StatusFrame& frame, const int* fds = nullptr, std::size_t count = 0) noexcept;
// One frame with at most kMaxFrameFds descriptors; returns what recvmsg does. Where they have no room, none is left
// open, and it fails with EMFILE.
std::ptrdiff_t receive_frame(int socket, StatusFrame& frame, int* fds, std::size_t& count, int flags) noexcept;
// For a step that a box can do without: says so and returns, unless it is not to.
void do_without(const ChildPlan& plan, Step step, bool optional) noexcept;
void name_host(const ChildPlan& plan) noexcept;
std::size_t receive(const ChildPlan& plan, int channel, Message expected, int* fds) noexcept;
void await_plan(const ChildPlan& plan) noexcept;
void await_go(const ChildPlan& plan) noexcept;
void loopback_up(const ChildPlan& plan) noexcept;
// For limits that no cgroup binds, the supervisor looks in from outside. Before the masks: one hides the locks.
void send_probes(const ChildPlan& plan, int root, int proc) noexcept;
void send_socket_probe(const ChildPlan& plan) noexcept;
void become_guest_ids(const ChildPlan& plan) noexcept;
[[noreturn]] void become_init(const ChildPlan& plan, int init, int sync) noexcept;
// AppArmor's file in the /proc that `proc` is: of our own profile, or of that after the next exec.
int open_profile(const ChildPlan& plan, int proc, bool at_exec) noexcept;
// Writes it there, and closes it.
void write_profile(const ChildPlan& plan, int fd, const char* text) noexcept;
// At once, where there is one for those who make boxes.
void enter_launch_profile(const ChildPlan& plan, int proc) noexcept;
// Receives Message::cgroups on `channel` and enters them.
void join_cgroups(const ChildPlan& plan, int channel) noexcept;

}  // namespace pctx
