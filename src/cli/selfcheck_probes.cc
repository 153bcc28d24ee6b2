#include "cli/selfcheck_probes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "base/print.h"
#include "sys/apparmor.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

extern char** environ;

namespace pctx::cli {
namespace {

const std::string& text(const Planted& planted, std::string_view key) {
  static const std::string none;
  const auto found = planted.find(key);
  return found == planted.end() ? none : found->second;
}
int number(const Planted& planted, std::string_view key) { return std::atoi(text(planted, key).c_str()); }

Attempt reads_host_file(const Planted& planted) {
  const std::string path = text(planted, "host") + "/secret";
  return by_call(::open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0, path + " can be read");
}

Attempt writes_host_folder(const Planted& planted) {
  const std::string path = text(planted, "host") + "/written";
  return by_call(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600) >= 0, path + " can be written");
}

Attempt writes_lent_file(const Planted& planted) {
  const std::string path = text(planted, "lent") + "/file";
  return by_call(::open(path.c_str(), O_WRONLY | O_CLOEXEC) >= 0, path + " can be written");
}

Attempt reads_environment(const Planted& planted) {
  const std::string& token = text(planted, "token");
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (std::string_view{*variable}.find(token) != std::string_view::npos) return {true, "a variable of the caller's"};
  for (const char* file : {"/proc/self/environ", "/proc/1/environ"})
    if (const auto found = sys::try_read_file(file, 1 << 20); found && found->find(token) != std::string::npos)
      return {true, fmt::format("{} holds a variable of the caller's", file)};
  return {false, "no such variable"};
}

// Kept from before anything else was opened.
int first_inherited = -1;

Attempt uses_descriptor(const Planted&) {
  if (first_inherited >= 0) return {true, fmt::format("descriptor {} was left open", first_inherited)};
  return {false, "none but 0, 1 and 2"};
}

Attempt connects_to_port(const Planted& planted) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(number(planted, "port")));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return by_call(socket >= 0 && ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
                 "a service on this machine's loopback answers");
}

Attempt connects_to_abstract_socket(const Planted& planted) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& token = text(planted, "token");
  const std::size_t size = std::min(token.size(), sizeof address.sun_path - 2);
  std::memcpy(address.sun_path + 1, token.data(), size);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return by_call(socket >= 0 && ::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0,
                 "a socket of this machine answers");
}

Attempt signals_process(const Planted& planted) {
  return by_call(::kill(number(planted, "pid"), 0) == 0, "a process of this machine can be signalled");
}

Attempt sees_process(const Planted& planted) {
  const std::string path = fmt::format("/proc/{}/stat", number(planted, "pid"));
  return by_call(::access(path.c_str(), F_OK) == 0, "a process of this machine is listed");
}

Attempt traces(const Planted&) { return by_call(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0, "ptrace works"); }

Attempt makes_user_namespace(const Planted&) {
  return by_call(::unshare(CLONE_NEWUSER) == 0, "a user namespace was made");
}

Attempt mounts(const Planted& planted) {
  const std::string& where = text(planted, "scratch");
  const auto mount = [&] {
    return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("tmpfs", where.c_str(), "tmpfs", 0, nullptr) == 0;
  };
  return by_call(mount() || (::unshare(CLONE_NEWUSER) == 0 && mount()), "a file system was mounted");
}

Attempt holds_rights(const Planted&) {
  const std::string status = sys::try_read_file("/proc/self/status").value_or("");
  for (std::string_view line : sys::split(status, '\n'))
    if (line.starts_with("Cap") && line.find_first_of("123456789abcdef", 7) != std::string_view::npos)
      return {true, fmt::format("{} is not empty", line.substr(0, 6))};
  if (status.empty()) return {true, "/proc/self/status cannot be read"};
  if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return {true, "set-id programs give rights"};
  return {false, "all five sets are empty, no_new_privs is set"};
}

// Each of these is refused to some people on some hosts; all of them together nowhere but in a box.
Attempt reaches_kernel_surface(const Planted&) {
  perf_event_attr counter{};
  counter.size = sizeof counter;
  counter.type = PERF_TYPE_SOFTWARE;
  counter.exclude_kernel = 1;
  std::array<char, 256> parameters{};
  if (::syscall(SYS_add_key, "user", "pctx-selfcheck", "x", 1, KEY_SPEC_PROCESS_KEYRING) >= 0) return {true, "add_key"};
  if (::syscall(SYS_perf_event_open, &counter, 0, -1, -1, 0) >= 0) return {true, "perf_event_open"};
  if (::syscall(SYS_io_uring_setup, 1, parameters.data()) >= 0) return {true, "io_uring_setup"};
  if (::syscall(SYS_userfaultfd, 1 /* user mode only */) >= 0) return {true, "userfaultfd"};
  return by_call(::syscall(SYS_bpf, 0, parameters.data(), parameters.size()) >= 0, "bpf");
}

Attempt finds_shared_memory(const Planted& planted) {
  return by_call(::shmget(number(planted, "shm"), 0, 0) >= 0, "shared memory of this machine is there");
}

Attempt makes_setuid_file(const Planted& planted) {
  const std::string path = text(planted, "scratch") + "/setuid";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
  return by_call(fd >= 0 && ::fchmod(fd, 04755) == 0, "a set-uid file was made");
}

Attempt escapes_profile(const Planted& planted) {
  const std::string& wanted = text(planted, "profile");
  std::string label = sys::try_read_file("/proc/self/attr/apparmor/current").value_or("");
  if (label.empty()) label = sys::try_read_file("/proc/self/attr/current").value_or("");
  label = label.substr(0, label.find_first_of(std::string_view{"\n\0", 2}));
  const std::string own = sys::confining_profile(label);
  const bool inside = own == wanted || own.ends_with("//&" + wanted) || own.starts_with(wanted + "//&");
  if (inside && label.ends_with("(enforce)")) return {false, label};
  return {true, label.empty() ? "no profile" : label};
}

constexpr Probe kBase[] = {
    {"host-file", "reading a file of this machine", "the box's own root", false, false, reads_host_file},
    {"host-folder", "writing into a folder of this machine", "the box's own root", false, false, writes_host_folder},
    {"lent-file", "writing to a file that is lent read-only", "a read-only mount", false, false, writes_lent_file},
    {"environment", "reading the caller's variables", "an environment of its own", false, false, reads_environment},
    {"descriptors", "using a descriptor that the caller left open", "closed before exec", false, false,
     uses_descriptor},
    {"loopback", "connecting to a service on this machine", "the network namespace", false, true, connects_to_port},
    {"abstract-socket", "connecting to an abstract socket", "the network namespace", false, true,
     connects_to_abstract_socket},
    {"signal", "signalling a process of this machine", "the pid namespace", false, false, signals_process},
    {"processes", "seeing a process of this machine", "an own /proc", false, false, sees_process},
    {"trace", "tracing with ptrace", "the system call filter", false, false, traces},
    {"user-namespace", "making a user namespace", "the system call filter", false, false, makes_user_namespace},
    {"mount", "mounting a file system", "no capability, the system call filter", false, false, mounts},
    {"rights", "holding or gaining a capability", "empty sets, no_new_privs", false, false, holds_rights},
    {"system-calls", "add_key, perf_event_open, io_uring_setup, userfaultfd, bpf", "the system call filter", false,
     false, reaches_kernel_surface},
    {"shared-memory", "attaching shared memory of this machine", "the ipc namespace", false, false,
     finds_shared_memory},
    {"set-uid", "making a set-uid file", "the system call filter", false, false, makes_setuid_file},
    {"apparmor", "running outside of the AppArmor profile", "entered at exec", false, false, escapes_profile},
};

// Each in a process of its own, so that no attack changes the next one's chances.
Attempt isolated(const Probe& probe, const Planted& planted) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {true, "no pipe for the answer"};
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(120);
    const Attempt attempt = probe.attempt(planted);
    const std::string answer = fmt::format("{}{}", attempt.through ? '+' : '-', attempt.seen);
    (void)!::write(ends[1], answer.data(), answer.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::array<char, 512> answer{};
  ssize_t size = -1;
  while (pid > 0 && (size = ::read(ends[0], answer.data(), answer.size())) < 0 && errno == EINTR) {
  }
  ::close(ends[0]);
  int status = 0;
  while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (size > 0) return {answer[0] == '+', std::string{answer.data() + 1, static_cast<std::size_t>(size) - 1}};
  if (pid > 0 && WIFSIGNALED(status)) return {false, fmt::format("killed by signal {}", WTERMSIG(status))};
  return {true, "the probe gave no answer"};
}

void run_probes(std::span<const Probe> probes, const Planted& planted) {
  for (const Probe& probe : probes) {
    const Attempt attempt = isolated(probe, planted);
    print_out("{}\t{}\t{}\n", probe.name, attempt.through ? kThrough : "stopped", attempt.seen);
  }
}

}  // namespace

Attempt by_call(bool succeeded, std::string reached) {
  return succeeded ? Attempt{true, std::move(reached)} : Attempt{false, std::strerror(errno)};
}

std::span<const Probe> base_probes() { return kBase; }

int run_inside(std::span<char*> words) {
  for (int fd = 3; fd < 1024 && first_inherited < 0; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) first_inherited = fd;
  Planted planted;
  for (char* word : words.subspan(1)) {
    const std::string_view pair = word;
    const std::size_t equals = pair.find('=');
    if (equals != std::string_view::npos) planted.emplace(pair.substr(0, equals), pair.substr(equals + 1));
  }
  const std::string_view what = words[0];
  if (what == kBaseProbes || what == kAllProbes) {
    run_probes(base_probes(), planted);
    if (what == kAllProbes) run_probes(extra_probes(), planted);
    flush();
    return 0;
  }
  for (const Trial& trial : trials())
    if (what == trial.name) {
      trial.attack(planted);
      return 0;
    }
  return 2;
}

}  // namespace pctx::cli
