#include "plan/syscall_policy.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include "sys/syscall_tables.h"

namespace pctx {
namespace {

using enum Condition;

constexpr PolicyEntry kPolicy[] = {
#include "plan/syscall_policy.inc"
};

// Names become numbers while this file is compiled: a run reads two bytes per entry instead of searching strings.
constexpr std::int16_t kAbsent = -1;

constexpr auto resolve(Arch arch) {
  std::array<std::int16_t, std::size(kPolicy)> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<std::int16_t>(syscall_tables::number_of(arch, kPolicy[i].name).value_or(kAbsent));
  }
  return numbers;
}
constexpr auto kX86_64Numbers = resolve(Arch::x86_64);
constexpr auto kAarch64Numbers = resolve(Arch::aarch64);

// Kernel constants that the tests compare with the headers; written down since the headers differ in which they have.
constexpr std::uint64_t kNamespaceFlags = 0x7e02'0000;  // NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET
constexpr std::array<std::uint64_t, 7> kNamespaceKinds{0x2'0000,    0x200'0000,  0x400'0000, 0x800'0000,
                                                       0x1000'0000, 0x2000'0000, 0x4000'0000};
constexpr std::uint64_t kAfUnix = 1, kAfInet = 2;
constexpr std::uint64_t kSockStream = 1, kSockDgram = 2, kSockRaw = 3, kSockSeqpacket = 5, kSockTypeMask = 0xf;
constexpr std::uint64_t kProtoTcp = 6, kProtoUdp = 17;
constexpr std::uint64_t kSolTcp = 6, kTcpUlp = 31, kSolSocket = 1, kSoSendBuffer = 7, kSoReceiveBuffer = 8;
struct SocketOption {
  std::uint64_t level, name;
};
// What the kernel keeps for these is charged to nobody, and no list of sockets has it: pages that are lent to a socket,
// keys of TCP_MD5SIG, TCP_MD5SIG_EXT and TCP_AO_ADD_KEY, IPV6_2292PKTOPTIONS; and lists of sources of a multicast
// group, which are the interface's: those of IP and MCAST, to block, to join and whole. Flow labels of IPv6 are a limit
// of the whole host's.
constexpr SocketOption kUncounted[]{{1, 60}, {6, 14}, {6, 32}, {6, 38}, {41, 6},  {41, 32}, {0, 38}, {0, 39},
                                    {0, 41}, {0, 43}, {0, 46}, {0, 48}, {41, 43}, {41, 46}, {41, 48}};
constexpr std::uint64_t kTcpZerocopyReceive = 35;
// SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF
constexpr std::array<std::uint64_t, 4> kSocketPrograms{26, 50, 51, 52};
// Two access lists of this size for each of 20,000 files, the most of a box by default, are 20 MB.
constexpr std::uint64_t kMostOfAttribute = 512;
constexpr std::uint64_t kTiocsti = 0x5412, kTioclinux = 0x541c, kTioccons = 0x541d, kTiocsetd = 0x5423;
constexpr std::uint64_t kPrSetMm = 35, kPrSchedCore = 62, kPrSetMemoryMerge = 67, kPrFirstRefused = 78;
constexpr std::uint64_t kPrSetThpDisable = 41;
constexpr std::uint64_t kPrSetVma = 0x5356'4d41, kPrSetPtracer = 0x5961'6d61;
constexpr std::uint64_t kFileTypeMask = 0xf000, kFifo = 0x1000, kRegular = 0x8000, kSocketFile = 0xc000;
constexpr std::uint64_t kSetUid = 04000, kSetGid = 02000;
constexpr std::uint64_t kOpenCreate = 0100, kOpenTemporary = 020'000'000;  // O_CREAT, the flag within O_TMPFILE
constexpr std::uint64_t kRlimitCore = 4;
constexpr std::uint64_t kMemfdHuge = 4, kSegmentHuge = 04000;
constexpr std::uint64_t kReadEvents = 0x31;  // IN_ACCESS, IN_CLOSE_NOWRITE, IN_OPEN
constexpr std::uint64_t kNewListener = 8;
constexpr std::uint64_t kSetModeFilter = 1, kPrSetSeccomp = 22, kModeFilter = 2;
constexpr std::uint64_t kNoWait = 8, kDontNeed = 4;  // RWF_NOWAIT, POSIX_FADV_DONTNEED
constexpr std::uint64_t kMadvMergeable = 12, kMadvCold = 20, kMadvPageout = 21;
constexpr std::uint64_t kInit = 1, kPrioProcess = 0, kIoprioProcess = 1;
constexpr std::uint64_t kMpolWithoutNodes = 5;  // of MPOL_PREFERRED and MPOL_LOCAL, the bits; MPOL_DEFAULT has none
// FS_IOC_SET_ENCRYPTION_POLICY, FS_IOC_ADD_ENCRYPTION_KEY, FS_IOC_REMOVE_ENCRYPTION_KEY, the same for all users
constexpr std::array<std::uint64_t, 4> kEncryption{0x800c'6613, 0xc050'6617, 0xc040'6618, 0xc040'6619};
// FS_IOC_GETFSUUID, FS_IOC_GETFSSYSFSPATH, FS_IOC_GETFSMAP, EXT4_IOC_GETFSUUID, BTRFS_IOC_DEV_INFO, BTRFS_IOC_FS_INFO,
// XFS_IOC_FSGEOMETRY, and that of version 4 and 1
constexpr std::array<std::uint64_t, 9> kHostDisks{0x8011'1500, 0x8081'1501, 0xc0c0'583b, 0x8008'662c, 0xd000'941e,
                                                  0x8400'941f, 0x8100'587e, 0x8070'587c, 0x8070'5864};
constexpr std::uint64_t kFSetPipeSize = 1031, kFSetLease = 1024, kFSetDelegation = 1040, kFNotify = 1026,
                        kFOfdSetLock = 37, kFOfdSetLockWait = 38;
constexpr std::uint64_t kCloseRangeUnshare = 2;
constexpr std::uint64_t kCloneVm = 0x100, kCloneFiles = 0x400, kCloneVfork = 0x4000, kCloneThread = 0x1'0000;

ArgTest is(unsigned index, std::uint64_t value) {
  return {static_cast<std::uint8_t>(index), Compare::eq, Width::low32, value, ~std::uint64_t{0}};
}
ArgTest below(unsigned index, std::uint64_t value) {
  return {static_cast<std::uint8_t>(index), Compare::lt, Width::low32, value, ~std::uint64_t{0}};
}
ArgTest masked(unsigned index, std::uint64_t mask, std::uint64_t value) {
  return {static_cast<std::uint8_t>(index), Compare::masked_eq, Width::low32, value, mask};
}
// 2 and 10 differ in one bit.
ArgTest is_inet(unsigned index) { return masked(index, 0xffff'fff7, kAfInet); }
ArgTest is_type(unsigned index, std::uint64_t type) { return masked(index, kSockTypeMask, type); }

// Collects the rules of one call after the other.
class RuleWriter {
 public:
  RuleWriter(std::vector<Rule>& rules, const FilterOptions& options) : rules_(rules), options_(options) {}

  Action refusal(int code) const { return options_.refusal == Refusal::notify ? Action::notify() : Action::fail(code); }

  void write(int number, Condition condition) {
    number_ = number;
    switch (condition) {
      case always:
        return allow();
      case absent:
        return add(Action::fail(ENOSYS));
      case clone_flags:
        refuse_to_wait_as_parent();
        // Whoever shares its descriptors is a thread: locks of a process that has ended, held by another one, are in
        // no table. And a thread shares them: one table of a process is counted.
        allow({masked(0, kNamespaceFlags | kCloneFiles | kCloneThread, 0)});
        allow({masked(0, kNamespaceFlags | kCloneFiles | kCloneThread, kCloneFiles | kCloneThread)});
        return refuse();
      case close_range_flags:
        refuse({masked(2, kCloseRangeUnshare, kCloseRangeUnshare)});
        return allow();
      case socket_kind:
        return write_socket();
      case read_flags:
        // Whether a page of a lent file is in memory tells whether somebody else has read it.
        add(Action::fail(EOPNOTSUPP), {masked(5, kNoWait, kNoWait)});
        return allow();
      case file_advice:
        // Drops what others have cached, and so lets them be watched, and waited for.
        add(Action::fail(0), {is(3, kDontNeed)});
        return allow();
      case copied_pages:
        // A byte in a pipe or a socket keeps the page that it lies in, or 2 MiB of them, after its file has ended.
        return options_.memory_is_accounted ? allow() : add(Action::fail(EINVAL));
      case socketpair_kind:
        write_unix_types();
        return add(refusal(EAFNOSUPPORT));
      case socket_option:
        // TCP_ULP makes the kernel load modules (tls, espintcp) on behalf of the guest; kTLS is only ever an
        // optimisation.
        refuse({is(1, kSolTcp), is(2, kTcpUlp)});
        // Compiled, they count against a limit of the whole host's, without which nobody gets a seccomp filter.
        for (const auto option : kSocketPrograms) refuse({is(1, kSolSocket), is(2, option)});
        // What a closed Unix socket has sent is bounded by that alone where nobody counts it: see socket_memory.cc.
        if (!options_.memory_is_accounted) add(Action::fail(0), {is(1, kSolSocket), is(2, kSoSendBuffer)});
        // And so is what a socket that is in no list has received.
        add(Action::fail(0), {is(1, kSolSocket), is(2, kSoReceiveBuffer)});
        for (const auto& option : kUncounted) add(refusal(ENOPROTOOPT), {is(1, option.level), is(2, option.name)});
        return allow();
      case socket_answer:
        // Maps what was received: such pages are in nobody's count of memory.
        add(refusal(ENOPROTOOPT), {is(1, kSolTcp), is(2, kTcpZerocopyReceive)});
        return allow();
      case ioctl_request:
        for (const auto request : {kTiocsti, kTioclinux, kTioccons, kTiocsetd}) refuse({is(1, request)});
        // Keys of a file system that encrypts outlive the box, and count for whoever lent the folder.
        for (const auto request : kEncryption) refuse({is(1, request)});
        // What disk of the host a lent file lies on, by name or number, and where on it what lies. Older kernels have
        // no such requests.
        for (const auto request : kHostDisks) add(refusal(ENOTTY), {is(1, request)});
        return allow();
      case prctl_option:
        return write_prctl();
      case personality_value:
        for (const std::uint64_t persona : {0x0u, 0x8u, 0x2'0000u, 0x2'0008u, 0xffff'ffffu}) allow({is(0, persona)});
        return refuse();
      case open_mode:
        return write_open(1);
      case openat_mode:
        return write_open(2);
      case chmod_mode:
        refuse_set_id(1);
        return allow();
      case chmodat_mode:
        refuse_set_id(2);
        return allow();
      case own_limits:
        // A limit of our init's could blind it: only its own are a process's business. Reading is free.
        add(Action::fail(0), {is(1, kRlimitCore), {2, Compare::ne, Width::full, 0}});
        allow({is(0, 0)});
        allow({{2, Compare::eq, Width::full, 0}});
        return refuse();
      case set_limit:
        // Answered as done and left at 1: the kernel hands a core with the limit 0 to a crash handler outside the box.
        add(Action::fail(0), {is(0, kRlimitCore)});
        return allow();
      case mknod_mode:
        return write_mknod(1);
      case mknodat_mode:
        return write_mknod(2);
      case own_filters:
        // A listener of the guest's own could let calls of its children wait for ever, out of our supervisor's sight.
        refuse({masked(1, kNewListener, kNewListener)});
        add(refusal(EINVAL), {is(0, kSetModeFilter)});
        return allow();
      case madvise_advice:
        // KSM merges equal pages of different boxes, and the time of a write then tells what the other one holds.
        refuse({is(2, kMadvMergeable)});
        // Whoever owns a lent file could drop it from memory, and see when somebody else reads it again.
        for (const auto advice : {kMadvCold, kMadvPageout}) add(refusal(EINVAL), {is(2, advice)});
        return allow();
      case mapping_flags:
        // A shared object keeps all its pages while one of them is mapped: nobody but a cgroup sees the others.
        if (!options_.memory_is_accounted) refuse({masked(3, kMapSharedAnonymous, kMapSharedAnonymous)});
        // Pages that the host has set aside are in nobody's count of memory.
        refuse({masked(3, kMapHuge, kMapHuge)});
        return allow();
      case memfd_flags:
        return accounted_without(1, kMemfdHuge);
      case segment_flags:
        return accounted_without(2, kSegmentHuge);
      case page_policy:
        // Without nodes "default", "preferred" and "local" mean what pages have without the call: OpenBLAS asks for
        // that, and nothing need be kept for it.
        add(Action::fail(0), {masked(2, ~kMpolWithoutNodes, 0), {3, Compare::eq, Width::full, 0}});
        return refuse();
      case attribute_size:
        allow({below(3, kMostOfAttribute + 1)});
        return add(refusal(E2BIG));
      case file_command:
        // The kernel's table of locks does not say whose the locks of open files are, and nobody charges for them.
        for (const auto command : {kFOfdSetLock, kFOfdSetLockWait}) add(refusal(EINVAL), {is(1, command)});
        if (!options_.memory_is_accounted) refuse({is(1, kFSetPipeSize)});
        refuse({is(1, kFNotify)});
        // Make whoever else opens the file, or from Linux 6.19 on the folder, wait: on the host and in other boxes.
        for (const auto command : {kFSetLease, kFSetDelegation}) refuse({is(1, command)});
        return allow();
      case watch_events:
        // A watch is on the file itself, which a lent one shares with the host and with other boxes.
        allow({masked(2, kReadEvents, 0)});
        return refuse();
      case memory_accounted:
        return options_.memory_is_accounted ? allow() : refuse();
      case semaphores_charged:
        return options_.semaphores_are_charged ? allow() : refuse();
      case zygote_setns:
        if (options_.zygote)
          for (const std::uint64_t kind : kNamespaceKinds) allow({is(1, kind)});
        return refuse();
      case not_zygote:
        return options_.zygote ? add(Action::fail(ENOSYS)) : allow();
      case cpus_free:
        if (options_.pins_cpus) return refuse();
        [[fallthrough]];
      case not_of_init:
        // It ends the box, and must not come after a guest that wants all CPUs.
        refuse({is(0, kInit)});
        return allow();
      case process_priority:
        refuse({is(1, kInit)});
        allow({is(0, kPrioProcess)});
        return refuse();
      case process_io_priority:
        refuse({is(1, kInit)});
        allow({is(0, kIoprioProcess)});
        return refuse();
    }
  }

  // What no entry of the list says, since the list refuses it for other reasons, or for these ones always.
  void write_uncharged(int number, std::string_view name) {
    number_ = number;
    if (name == "clone") refuse_to_wait_as_parent();
    if (name == "clone3") add(Action::fail(ENOSYS));
    // The kernel makes a socket for datagrams of it.
    if (name == "socket" || name == "socketpair") add(refusal(EPERM), {is(0, kAfUnix), is_type(1, kSockRaw)});
    // Memory behind a descriptor; io_uring makes sockets and moves pages besides, and no filter sees it.
    if (name == "memfd_secret" || name == "io_uring_setup" || name == "bpf") refuse();
  }

 private:
  // Whoever waits for the exec of its child shares its memory with it: the watchdog counts that memory once.
  void refuse_to_wait_as_parent() {
    refuse({masked(0, kCloneVfork | kCloneVm, kCloneVfork)});
    refuse({masked(0, kCloneVfork | kCloneThread, kCloneVfork | kCloneThread)});  // a thread is no child
  }

  void add(Action action, std::vector<ArgTest> tests = {}) { rules_.push_back({number_, action, std::move(tests)}); }
  void allow(std::vector<ArgTest> tests = {}) { add(Action::allow(), std::move(tests)); }
  void refuse(std::vector<ArgTest> tests = {}) { add(refusal(EPERM), std::move(tests)); }

  // Protocols are named too: with type alone, SCTP, MPTCP, L2TP and ping sockets would come in, modules loaded on
  // demand.
  void write_socket() {
    write_unix_types();
    for (const auto protocol : {std::uint64_t{0}, kProtoTcp}) {
      allow({is_inet(0), is_type(1, kSockStream), is(2, protocol)});
    }
    for (const auto protocol : {std::uint64_t{0}, kProtoUdp}) {
      allow({is_inet(0), is_type(1, kSockDgram), is(2, protocol)});
    }
    add(refusal(EPERM), {is_inet(0), is_type(1, kSockRaw)});  // as the kernel answers without CAP_NET_RAW
    add(refusal(EPROTONOSUPPORT), {is_inet(0)});
    add(refusal(EPROTONOSUPPORT), {is(0, kAfUnix)});
    add(refusal(EAFNOSUPPORT));
  }

  // Datagrams that wait are charged to their sender; once it is closed, nobody but a cgroup sees them.
  void write_unix_types() {
    for (const auto type : {kSockStream, kSockSeqpacket}) allow({is(0, kAfUnix), is_type(1, type)});
    const std::vector<ArgTest> datagrams{is(0, kAfUnix), is_type(1, kSockDgram)};
    options_.memory_is_accounted ? allow(datagrams) : add(refusal(ESOCKTNOSUPPORT), datagrams);
  }

  void accounted_without(unsigned flags_index, std::uint64_t flag) {
    if (!options_.memory_is_accounted) return refuse();
    refuse({masked(flags_index, flag, flag)});
    allow();
  }

  // PR_SET_MM rewrites what /proc says of the process; PR_SCHED_CORE can keep a neighbour's hyperthread idle;
  // PR_SET_MEMORY_MERGE is MADV_MERGEABLE for all memory. Options
  // from PR_FUTEX_HASH (6.16, takes kernel memory by the slot) on get the answer of an older kernel.
  void write_prctl() {
    for (const auto option : {kPrSetMm, kPrSchedCore, kPrSetMemoryMerge}) refuse({is(0, option)});
    add(refusal(EINVAL), {is(0, kPrSetSeccomp), is(1, kModeFilter)});
    // Of a huge page that is given back but for a few bytes, /proc shows these bytes; the kernel keeps all of it.
    if (!options_.memory_is_accounted) refuse({is(0, kPrSetThpDisable)});
    allow({below(0, kPrFirstRefused)});
    for (const auto option : {kPrSetVma, kPrSetPtracer}) allow({is(0, option)});
    add(Action::fail(EINVAL));
  }

  // On a folder that is lent read-write a set-id file would outlive the box, as the folder owner's.
  void refuse_set_id(unsigned mode_index) {
    for (const auto bit : {kSetUid, kSetGid}) refuse({masked(mode_index, bit, bit)});
  }

  // Without these flags nothing is made, and the mode is whatever the register held: most opens are through here.
  void write_open(unsigned flags_index) {
    allow({masked(flags_index, kOpenCreate | kOpenTemporary, 0)});
    refuse_set_id(flags_index + 1);
    allow();
  }

  // A type of 0 means a regular file. The kernel reads 16 bits of the mode; the mask looks at the upper four of them.
  void write_mknod(unsigned mode_index) {
    refuse_set_id(mode_index);
    for (const auto type : {std::uint64_t{0}, kRegular, kFifo, kSocketFile}) {
      allow({masked(mode_index, kFileTypeMask, type)});
    }
    refuse();
  }

  std::vector<Rule>& rules_;
  const FilterOptions& options_;
  int number_ = -1;
};

// As default_filter() decides, by the rules of this call alone.
Action decide_alone(Arch arch, const seccomp_data& call, const FilterOptions& options) {
  FilterSpec spec;
  spec.arch = arch;
  spec.fallback = Action::fail(EPERM);
  if (const PolicyEntry* entry = policy_entry(syscall_name(arch, call.nr)))
    RuleWriter(spec.rules, options).write(call.nr, entry->condition);
  return decide(spec, call);
}

}  // namespace

std::span<const PolicyEntry> default_policy() { return kPolicy; }

const PolicyEntry* policy_entry(std::string_view name) {
  const auto* entry =
      std::find_if(std::begin(kPolicy), std::end(kPolicy), [&](const auto& each) { return each.name == name; });
  return entry != std::end(kPolicy) ? entry : nullptr;
}

FilterSpec default_filter(Arch arch, const FilterOptions& options) {
  FilterSpec spec;
  spec.arch = arch;
  spec.rules.reserve(std::size(kPolicy) + 64);
  RuleWriter writer(spec.rules, options);
  const auto& numbers = arch == Arch::x86_64 ? kX86_64Numbers : kAarch64Numbers;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != kAbsent) writer.write(numbers[i], kPolicy[i].condition);
  }
  spec.fallback = writer.refusal(EPERM);
  spec.unknown = Action::fail(ENOSYS);
  return spec;
}

std::vector<Rule> limit_rules(Arch arch, const FilterOptions& options) {
  FilterOptions elsewhere = options;  // where cgroups bind everything
  elsewhere.memory_is_accounted = elsewhere.semaphores_are_charged = true;
  elsewhere.pins_cpus = false;
  const FilterSpec ours = default_filter(arch, options), without = default_filter(arch, elsewhere);
  std::vector<Rule> rules;
  for (const Rule& rule : ours.rules)
    if (!rule.action.permits() && std::ranges::find(without.rules, rule) == without.rules.end()) rules.push_back(rule);
  if (options.memory_is_accounted) return rules;
  RuleWriter writer(rules, options);
  for (const std::string_view name :
       {"clone", "clone3", "socket", "socketpair", "memfd_secret", "io_uring_setup", "bpf"})
    if (const auto number = syscall_number(arch, name)) writer.write_uncharged(*number, name);
  return rules;
}

int refusal_errno(Arch arch, const seccomp_data& call) {
  if (syscall_name(arch, call.nr).empty()) return ENOSYS;
  const Action strictest = decide_alone(arch, call, {});
  return strictest.kind == ActionKind::fail ? strictest.data : EPERM;
}

bool sets_filter(Arch arch, const seccomp_data& call) {
  const std::string_view name = syscall_name(arch, call.nr);
  const auto is_value = [&](unsigned index, std::uint64_t value) {
    return static_cast<std::uint32_t>(call.args[index]) == value;
  };
  if (name == "prctl") return is_value(0, kPrSetSeccomp) && is_value(1, kModeFilter);
  return name == "seccomp" && is_value(0, kSetModeFilter) && (call.args[1] & kNewListener) == 0;
}

bool is_refused_as_unaccounted(Arch arch, const seccomp_data& call) {
  return decide_alone(arch, call, {}).kind == ActionKind::fail &&
         decide_alone(arch, call, {.memory_is_accounted = true, .semaphores_are_charged = true}).kind ==
             ActionKind::allow;
}

std::vector<std::string_view> refused_launch_calls(const FilterSpec& spec) {
  std::vector<std::string_view> refused;
  // In the order of use: hand the listener over, close, report a failure, become the guest, or leave.
  for (const std::string_view name : {"sendmsg", "close", "write", "execve", "execveat", "exit_group"}) {
    seccomp_data call{};
    call.nr = syscall_number(spec.arch, name).value_or(-1);
    call.arch = audit_arch(spec.arch);
    if (!decide(spec, call).permits()) refused.push_back(name);
  }
  return refused;
}

}  // namespace pctx
