// Which system calls a guest may make when nobody says otherwise. The list is data (syscall_policy.inc), each entry
// with its reason; this module turns it into a FilterSpec and owns the meaning of the argument conditions.
//
// Answers to what is refused: EPERM for calls that Linux 6.18 has; ENOSYS for numbers that it has not, so that programs
// built for a newer kernel fall back; for sockets the errno of a kernel that lacks the family or protocol.
#pragma once

#include <linux/seccomp.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/filter.h"
#include "sys/syscalls.h"

namespace pctx {

// Of mmap()'s flags; written down since the headers differ in which they have.
inline constexpr std::uint64_t kMapSharedAnonymous = 0x21, kMapHuge = 0x4'0000;

enum class Condition : std::uint8_t {
  always,
  absent,              // answers ENOSYS
  clone_flags,         // no flag that makes a namespace; threads share descriptors, and nobody else does
  close_range_flags,   // not CLOSE_RANGE_UNSHARE
  attribute_size,      // no large ones; the size is argument 3
  page_policy,         // the default policy, which is answered as done; no other
  read_flags,          // not RWF_NOWAIT
  file_advice,         // POSIX_FADV_DONTNEED is answered as done
  copied_pages,        // answers EINVAL unless memory is accounted
  socket_kind,         // unix, TCP, UDP; unix datagrams if memory is accounted
  socketpair_kind,     // unix; datagrams if memory is accounted
  socket_option,       // not TCP_ULP, no program, nothing that holds memory; sizes of buffers are answered as done
  socket_answer,       // not TCP_ZEROCOPY_RECEIVE
  ioctl_request,       // not those that reach out of a terminal or name a disk; no keys of file systems
  prctl_option,        // known and harmless options
  personality_value,   // plain Linux, with and without UNAME26 and SHORT_INODE
  open_mode,           // no set-id bits on a new file; flags are argument 1
  openat_mode,         // the same; flags are argument 2
  chmod_mode,          // no set-id bits; mode is argument 1
  chmodat_mode,        // the same; mode is argument 2
  own_limits,          // limits of the caller itself; that on core dumps stays
  set_limit,           // all but that on core dumps
  mknod_mode,          // regular files, FIFOs, sockets; mode is argument 1
  mknodat_mode,        // the same; mode is argument 2
  own_filters,         // not NEW_LISTENER; filters as the supervisor grants them, see makes_filter()
  madvise_advice,      // not MADV_MERGEABLE; pages are not sent away
  mapping_flags,       // not huge pages; not shared anonymous memory, unless accounted; see shared_allowance()
  memfd_flags,         // only if memory is accounted, and not of huge pages
  segment_flags,       // the same
  file_command,        // no F_NOTIFY, lease, lock of an open file; F_SETPIPE_SZ if memory is accounted
  watch_events,        // none that somebody who only reads causes
  memory_accounted,    // only if memory is accounted
  semaphores_charged,  // only if the cgroup pays for them
  zygote_setns,        // only for a Zygote: one kind of namespace at a time, by a descriptor that it was given
  not_zygote,          // only if it is none: with a pidfd it could enter the box of a Worker that is at work
  cpus_free,           // only if affinity does not bind the CPU limit; not of init; the process is argument 0
  not_of_init,         // the process, argument 0, is not init
  process_priority,    // of one process, which is not init; no group's and no user's
  process_io_priority  // the same
};

struct PolicyEntry {
  std::string_view name;
  Condition condition;
  std::string_view reason;
};

enum class Refusal : std::uint8_t {
  error,   // the kernel answers at once
  notify,  // the supervisor hears of the call, records it and answers refusal_errno()
};

// The defaults are the strict answers: a caller that forgets one loses a convenience, not a limit.
struct FilterOptions {
  bool memory_is_accounted = false;     // a cgroup charges all memory; else whatever outlives its mappings is refused
  bool pins_cpus = true;                // the CPU limit is an affinity mask, which the guest could widen
  bool zygote = false;                  // forks into boxes of others; see the conditions
  bool semaphores_are_charged = false;  // to that cgroup, as Linux does from 5.15 on
  Refusal refusal = Refusal::error;
};

// Every entry, in the order of the file; entries that an architecture lacks are skipped when a filter is made.
std::span<const PolicyEntry> default_policy();
// nullptr: it is not listed.
const PolicyEntry* policy_entry(std::string_view name);

FilterSpec default_filter(Arch arch, const FilterOptions& options);

// What would keep a limit from binding under these options, because neither a cgroup nor a watchdog sees it: what
// default_filter() refuses for that reason alone, and calls off our list that come to the same. None of them allows.
std::vector<Rule> limit_rules(Arch arch, const FilterOptions& options);

// The errno that a call refused by default_filter() gets; under Refusal::notify the supervisor answers with it.
int refusal_errno(Arch arch, const seccomp_data& call);
// A filter of the guest's own, without a listener.
bool sets_filter(Arch arch, const seccomp_data& call);
// A call that is refused for no other reason than that no cgroup charges the memory.
bool is_refused_as_unaccounted(Arch arch, const seccomp_data& call);

// The calls that the launcher or our init makes after the filter is in place, and that `spec` would not let pass. With
// such a filter no guest can start.
std::vector<std::string_view> refused_launch_calls(const FilterSpec& spec);

}  // namespace pctx
