// Attacks that end their box or are seen after it, and the extended suite.
#include <fcntl.h>
#include <linux/netlink.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "cli/selfcheck_probes.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx::cli {
namespace {

// The limits that attacks pass. Our own program, which lies in the box's scratch space, fits below.
constexpr std::uint64_t kMemory = 96_MiB, kDisk = 24_MiB, kOutput = 64_KiB, kProcesses = 16;
constexpr Millis kTime{300};

std::string path_of(const Planted& planted, std::string_view folder, std::string_view name) {
  const auto found = planted.find(folder);
  return fmt::format("{}/{}", found == planted.end() ? "/nowhere" : found->second, name);
}

void wait_seconds(long seconds) {
  timespec left{seconds, 0};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// A watchdog, where no cgroup counts, looks a few times a second, on a busy host more seldom: in a box an attack goes
// on for a while before it says that it came through. In the open one nothing comes.
void hold_on(const Planted& planted) {
  const auto seconds = planted.find("patience");
  wait_seconds(seconds == planted.end() ? 1 : std::atoi(seconds->second.c_str()));
}

void say_through() { (void)sys::write_all(STDOUT_FILENO, kThrough); }

void take_memory(const Planted& planted) {
  constexpr std::size_t kTaken = 3 * kMemory, kPage = 4096;
  auto* memory =
      static_cast<char*>(::mmap(nullptr, kTaken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) return;
  for (std::size_t at = 0; at < kTaken; at += kPage) memory[at] = 1;
  hold_on(planted);
  say_through();
}

void take_processes(const Planted& planted) {
  constexpr std::size_t kTaken = 3 * kProcesses;
  std::size_t made = 0;
  for (std::size_t i = 0; i < kTaken; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
      wait_seconds(60);
      ::_exit(0);
    }
    if (pid > 0) ++made;
  }
  if (made < kTaken) return;
  hold_on(planted);
  say_through();
}

void take_disk(const Planted& planted) {
  const std::string path = path_of(planted, "scratch", "filled");
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const std::string block(1 << 20, 'x');
  std::uint64_t written = 0;
  while (fd >= 0 && written < 2 * kDisk) {
    const ssize_t size = ::write(fd, block.data(), block.size());
    if (size <= 0) return;
    written += static_cast<std::uint64_t>(size);
  }
  if (fd >= 0) say_through();
}

void flood_output(const Planted&) {
  const std::string block(kOutput, 'x');
  for (int i = 0; i < 16; ++i)
    if (!sys::write_all(STDOUT_FILENO, block)) return;
  say_through();
}

void overstay(const Planted& planted) {
  for (int signal = 1; signal < 32; ++signal) (void)::signal(signal, SIG_IGN);
  hold_on(planted);
  say_through();
}

// Leaves a process behind that has cut every tie; who asks for it later knows it by the token on its command line.
void leave_daemon(const Planted& planted) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t pid = ::fork();
  if (pid == 0) {
    (void)::setsid();
    for (int signal = 1; signal < 32; ++signal) (void)::signal(signal, SIG_IGN);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) (void)::dup2(nothing, fd);
    const std::string token = "token=" + planted.find("token")->second;
    const std::string inside{kInside};
    ::execl("/proc/self/exe", "pctx-sandbox", "selfcheck", inside.c_str(), "linger", token.c_str(),
            static_cast<char*>(nullptr));
    ::_exit(1);
  }
  // It is there once the pipe has closed by its exec.
  ::close(ends[1]);
  char byte;
  while (pid > 0 && ::read(ends[0], &byte, 1) < 0 && errno == EINTR) {
  }
}

void linger(const Planted&) { wait_seconds(30); }

void leave_file(const Planted& planted) {
  (void)::open(path_of(planted, "scratch", planted.find("token")->second).c_str(), O_WRONLY | O_CREAT, 0600);
}

void find_left_file(const Planted& planted) {
  if (::access(path_of(planted, "scratch", planted.find("token")->second).c_str(), F_OK) == 0) say_through();
}

void spin(const Planted&) {
  timespec used{};
  while (used.tv_sec < 2)
    if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0) return;
  say_through();
}

constexpr Trial kTrials[] = {
    {"memory", "taking three times the memory", "the limit of memory", false,
     [](Policy& policy) { policy.limits.memory = kMemory; }, take_memory, "no memory was given"},
    {"processes-limit", "making three times the processes", "the limit of processes", false,
     [](Policy& policy) { policy.limits.pids = kProcesses; }, take_processes, "fork fails"},
    {"disk", "filling twice the disk", "the limit of the scratch space", false,
     [](Policy& policy) { policy.limits.disk = kDisk; }, take_disk, "writing fails"},
    {"output", "printing 16 times the output", "the limit of output", false,
     [](Policy& policy) { policy.limits.output = kOutput; }, flood_output, "writing fails"},
    {"time", "staying past the deadline, deaf to signals", "the clock outside", false,
     [](Policy& policy) { policy.limits.timeout = kTime; }, overstay, "ended early"},
    {"daemon", "leaving a process behind", "the end of the pid namespace", false, nullptr, leave_daemon,
     "none is left"},
    {"leave-file", nullptr, nullptr, false, nullptr, leave_file, ""},
    {"next-run", "finding what the run before left in /tmp", "a file system for each box", false, nullptr,
     find_left_file, "nothing is there"},
    {"cpu-time", "using ten times the CPU time", "the limit of CPU time", true,
     [](Policy& policy) { policy.limits.cpu_time = Millis{200}; }, spin, "ended early"},
    {"linger", nullptr, nullptr, false, nullptr, linger, ""},
};

// --- the extended suite ---

template <int kFlag>
Attempt makes_namespace(const Planted&) {
  return by_call(::unshare(CLONE_NEWUSER | kFlag) == 0, "it was made");
}

Attempt makes_namespace_by_clone3(const Planted&) {
  abi::CloneArgs args{};
  args.flags = CLONE_NEWUSER;
  args.exit_signal = SIGCHLD;
  const long pid = abi::clone3(args);
  if (pid == 0) ::_exit(0);
  return by_call(pid > 0, "it was made");
}

Attempt makes_namespace_by_clone(const Planted&) {
  const long pid = ::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid == 0) ::_exit(0);
  return by_call(pid > 0, "it was made");
}

Attempt reads_other_memory(const Planted&) {
  static int secret = 42;
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    wait_seconds(20);
    ::_exit(0);
  }
  int copy = 0;
  const iovec here{&copy, sizeof copy}, there{&secret, sizeof secret};
  Attempt attempt =
      by_call(::process_vm_readv(child, &here, 1, &there, 1, 0) == sizeof copy, "another process's memory was read");
  if (child > 0) ::kill(child, SIGKILL);
  return attempt;
}

Attempt opens_unusual_socket(const Planted&) {
  if (::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE) >= 0) return {true, "netlink"};
  if (::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0) >= 0) return {true, "packet"};
  if (::socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0) return {true, "vsock"};
  return by_call(::socket(AF_ALG, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) >= 0, "alg");
}

Attempt finds_posix_memory(const Planted& planted) {
  const std::string path = "/dev/shm/" + planted.find("token")->second;
  return by_call(::open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0, path + " can be read");
}

Attempt takes_file_handle(const Planted&) {
  alignas(8) char handle[256]{};
  const unsigned room = 128;
  std::memcpy(handle, &room, sizeof room);
  int mount = 0;
  return by_call(::syscall(SYS_name_to_handle_at, AT_FDCWD, "/", handle, &mount, 0) == 0, "a file handle was made");
}

Attempt changes_root(const Planted&) {
  return by_call(::chroot("/") == 0 || (::unshare(CLONE_NEWUSER) == 0 && ::chroot("/") == 0), "chroot works");
}

Attempt reaches_session_keys(const Planted&) {
  // KEYCTL_GET_KEYRING_ID of the session's keyring, made if it is not there.
  return by_call(::syscall(SYS_keyctl, 0, -3, 1) >= 0, "the session's keyring answers");
}

constexpr const char* kFilter = "the system call filter";
constexpr Probe kExtra[] = {
    {"namespace-pid", "making a pid namespace", kFilter, true, false, makes_namespace<CLONE_NEWPID>},
    {"namespace-mount", "making a mount namespace", kFilter, true, false, makes_namespace<CLONE_NEWNS>},
    {"namespace-network", "making a network namespace", kFilter, true, false, makes_namespace<CLONE_NEWNET>},
    {"namespace-ipc", "making an ipc namespace", kFilter, true, false, makes_namespace<CLONE_NEWIPC>},
    {"namespace-uts", "making a uts namespace", kFilter, true, false, makes_namespace<CLONE_NEWUTS>},
    {"namespace-cgroup", "making a cgroup namespace", kFilter, true, false, makes_namespace<CLONE_NEWCGROUP>},
    {"clone", "making a user namespace by clone", kFilter, true, false, makes_namespace_by_clone},
    {"clone3", "making a user namespace by clone3", kFilter, true, false, makes_namespace_by_clone3},
    {"other-memory", "reading another process's memory", kFilter, true, false, reads_other_memory},
    {"sockets", "netlink, packet, vsock and alg sockets", kFilter, true, false, opens_unusual_socket},
    {"posix-memory", "opening shared memory of this machine", "an own /dev/shm", true, false, finds_posix_memory},
    {"file-handle", "making a file handle", kFilter, true, false, takes_file_handle},
    {"chroot", "changing the root", "no capability", true, false, changes_root},
    {"session-keys", "reaching the session's keyring", kFilter, true, false, reaches_session_keys},
};

}  // namespace

std::span<const Trial> trials() { return kTrials; }
std::span<const Probe> extra_probes() { return kExtra; }

}  // namespace pctx::cli
