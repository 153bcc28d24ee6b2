#include "pool/inspect.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/fd.h"
#include "base/units.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

constexpr std::size_t kMaxText = 1 << 20;
constexpr std::size_t kGivenToWorker = 4, kGivenToZygote = 3;           // descriptors
constexpr int kKcmpFile = 0, kKcmpVm = 1, kKcmpFiles = 2, kKcmpFs = 3;  // linux/kcmp.h

Error distrusted(const std::string& what) {
  return unavailable(fmt::format("a Worker was not lent: {}", what),
                     "a package that is imported in the Zygote interferes with forking; report it if you trust it");
}

Result<std::string> read_proc(pid_t pid, std::string_view file) {
  return sys::read_file(fmt::format("/proc/{}/{}", pid, file), kMaxText);
}

std::optional<std::string_view> status_field(std::string_view status, std::string_view name) {
  for (std::string_view line : sys::split(status, '\n')) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    line.remove_prefix(name.size() + 1);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    return line;
  }
  return std::nullopt;
}

// The numbers in a folder of /proc: descriptors or threads.
std::optional<std::vector<int>> numbers_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries{::opendir(folder.c_str()), ::closedir};
  if (!entries) return std::nullopt;
  std::vector<int> found;
  while (const dirent* entry = ::readdir(entries.get())) {
    int number = -1;
    const std::string_view name = entry->d_name;
    if (std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc{}) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// How many descriptors a thread has room for: none has a higher number.
std::optional<int> table_size(const std::string& task) {
  const auto status = sys::read_file(task + "/status", kMaxText);
  const auto size = status ? status_field(*status, "FDSize") : std::nullopt;
  int most = 0;
  if (!size || std::from_chars(size->data(), size->data() + size->size(), most).ec != std::errc{}) return std::nullopt;
  return most;
}

// Exactly these, under the numbers from 0 on: a count alone would not notice one that took another's place, such as a
// socket with others' descriptors in its queue.
bool holds_only(pid_t process, pid_t thread, const std::vector<int>& given) {
  const std::string task = fmt::format("/proc/{}/task/{}", process, thread);
  if (const auto open = numbers_in(task + "/fd")) {
    if (open->size() != given.size()) return false;
    for (std::size_t i = 0; i < given.size(); ++i) {
      struct stat ours {
      }, theirs{};
      if (::fstat(given[i], &ours) != 0 || ::stat(fmt::format("{}/fd/{}", task, i).c_str(), &theirs) != 0) return false;
      if (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino) return false;
    }
    return true;
  }
  // That folder is open to its owner and to root, and a subordinate id is neither. The kernel compares for us.
  const auto most = table_size(task);
  if (!most) return false;
  for (int fd = 0; fd < *most; ++fd) {
    const bool expected = fd < static_cast<int>(given.size());
    const long answer =
        ::syscall(SYS_kcmp, ::getpid(), thread, kKcmpFile, expected ? given[static_cast<std::size_t>(fd)] : 0, fd);
    if (expected ? answer != 0 : answer >= 0 || errno != EBADF) return false;
  }
  return true;
}

bool same_place(const std::string& one, const std::string& other) {
  struct stat first {
  }, second{};
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// What is written there by one Worker is read there by the next.
bool has_shared_mapping(std::string_view maps) {
  for (const std::string_view line : sys::split(maps, '\n')) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.size() < space + 5) continue;
    const std::string_view mode = line.substr(space + 1, 4);
    if (mode[1] == 'w' && mode[3] == 's') return true;
  }
  return false;
}

// A fork that is none: the Worker would work in its Zygote's own memory, or with its descriptors.
Result<void> nothing_in_common(pid_t worker, pid_t zygote) {
  for (const int kind : {kKcmpVm, kKcmpFiles, kKcmpFs}) {
    const long answer = ::syscall(SYS_kcmp, worker, zygote, kind, 0, 0);
    if (answer < 0 && errno == ESRCH) return {};  // that Zygote is gone, or the Worker is, which the next step notices
    if (answer < 0)
      return unavailable(fmt::format("a Worker could not be compared with its Zygote (kcmp: {})", std::strerror(errno)),
                         "allow the system call kcmp to the Broker; a kernel has it with CONFIG_KCMP");
    if (answer == 0) return distrusted("it shares memory, descriptors or folders with its Zygote");
  }
  return {};
}

PidNamespace inode(pid_t pid, const char* kind) {
  struct stat status {};
  if (::stat(fmt::format("/proc/{}/ns/{}", pid, kind).c_str(), &status) != 0) return std::nullopt;
  return std::pair{status.st_dev, status.st_ino};
}

// The maker's children in one pid namespace: its own, where the Zygote is, or that of a box.
Result<std::vector<pid_t>> children_in(pid_t maker, const PidNamespace& place) {
  const std::string children = PCTX_TRY(read_proc(maker, fmt::format("task/{}/children", maker)));
  std::vector<pid_t> found;
  if (!place) return found;
  for (const std::string_view word : sys::split(children, ' ')) {
    pid_t pid = -1;
    if (std::from_chars(word.data(), word.data() + word.size(), pid).ec != std::errc{}) continue;
    if (inode(pid, "pid") == place) found.push_back(pid);
  }
  return found;
}

Result<void> same_namespaces(pid_t worker, pid_t init) {
  for (const char* kind : {"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"}) {
    const auto place = inode(init, kind);
    if (!place || inode(worker, kind) != place)
      return distrusted(fmt::format("it is not in its box's {} namespace", kind));
  }
  return {};
}

}  // namespace

Result<pid_t> pid_of(int pidfd) {
  const std::string info = PCTX_TRY(sys::read_file(fmt::format("/proc/self/fdinfo/{}", pidfd), kMaxText));
  pid_t pid = -1;
  if (const auto text = status_field(info, "Pid"))
    (void)std::from_chars(text->data(), text->data() + text->size(), pid);
  if (pid <= 0) return distrusted("its box has ended");
  return pid;
}

bool ends_within(int pidfd, Millis patience) {
  pollfd ended{pidfd, POLLIN, 0};
  return ::poll(&ended, 1, static_cast<int>(patience.count())) == 1;
}

Result<pid_t> find_worker(pid_t maker, pid_t init, const std::set<pid_t>& known) {
  const std::string own = PCTX_TRY(read_proc(init, fmt::format("task/{}/children", init)));
  if (!own.empty()) return distrusted("its box holds more than one process");
  pid_t worker = -1;
  for (const pid_t pid : PCTX_TRY(children_in(maker, inode(init, "pid")))) {
    if (pid == init || known.contains(pid)) continue;
    if (worker > 0) return distrusted("its box holds more than one process");
    worker = pid;
  }
  if (worker < 0) return distrusted("its box is empty");
  return worker;
}

PidNamespace pid_namespace(pid_t pid) { return inode(pid, "pid"); }

// "NSpid: host … maker's own", the innermost last.
Result<pid_t> pid_below(pid_t pid) {
  const std::string status = PCTX_TRY(read_proc(pid, "status"));
  const std::string_view line = status_field(status, "NSpid").value_or("");
  std::vector<pid_t> pids;
  for (const std::string_view word : sys::split(line, '\t')) {
    pid_t each = -1;
    if (std::from_chars(word.data(), word.data() + word.size(), each).ec == std::errc{}) pids.push_back(each);
  }
  if (pids.size() < 2) return distrusted("it has no pid namespace of its own");
  return pids[pids.size() - 2];
}

Result<void> inspect_worker(pid_t worker, pid_t init, pid_t zygote, const std::vector<int>& given,
                            const std::string& workdir) {
  PCTX_TRY(same_namespaces(worker, init));
  const std::string process = fmt::format("/proc/{}", worker);
  const std::string box = fmt::format("/proc/{}/root", init);
  // A namespace says which mounts a path meets, not where the path begins: that may be a folder of the Zygote's.
  if (!same_place(process + "/root", box)) return distrusted("its root is not its box's");
  if (!same_place(process + "/cwd", box + workdir)) return distrusted("it does not stand in its box");
  const std::string status = PCTX_TRY(read_proc(worker, "status"));
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"})
    if (status_field(status, set) != "0000000000000000")
      return distrusted(fmt::format("its capability set {} is not empty", set));
  if (status_field(status, "NoNewPrivs") != "1") return distrusted("no_new_privs is not set");
  if (status_field(status, "Seccomp") != "2") return distrusted("it has no filter");
  if (status_field(status, "Threads") != "1") return distrusted("it has threads before its call");
  const std::string children = PCTX_TRY(read_proc(worker, fmt::format("task/{}/children", worker)));
  if (!children.empty()) return distrusted("it has children before its call");
  if (!holds_only(worker, worker, given)) return distrusted("it holds descriptors that are not its own");
  if (has_shared_mapping(PCTX_TRY(sys::read_file(process + "/maps", 64_MiB))))
    return distrusted("it has a writable mapping that other Workers would share");
  return nothing_in_common(worker, zygote);
}

Result<std::vector<Fd>> open_namespaces(pid_t init, const Plan& plan) {
  std::vector<Fd> opened;
  // The user namespace first: it brings the right to enter the others.
  for (const std::string_view kind : {"user", "pid", "net", "ipc", "uts", "cgroup", "mnt"}) {
    if (kind == "net" && plan.policy.network == Network::host) continue;
    const bool none =
        (kind == "uts" && (plan.namespaces & CLONE_NEWUTS) == 0) || (kind == "cgroup" && !plan.cgroup_namespace);
    const std::string path = none ? "/dev/null" : fmt::format("/proc/{}/ns/{}", init, kind);
    opened.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.back()) return os_error(fmt::format("cannot open the {} namespace of a Worker's box", kind));
  }
  return opened;
}

namespace {

// Whatever runs beside the Zygote in the maker's pid namespace, having lost its parent.
Result<std::vector<pid_t>> strays(pid_t maker, pid_t zygote) {
  std::vector<pid_t> found = PCTX_TRY(children_in(maker, inode(maker, "pid")));
  std::erase(found, zygote);
  return found;
}

}  // namespace

Result<void> inspect_zygote(pid_t zygote, pid_t maker, const std::vector<int>& given) {
  const auto threads = numbers_in(fmt::format("/proc/{}/task", zygote));
  if (!threads || threads->empty()) return distrusted("its Zygote has ended");
  // Threads may have tables, folders and children of their own.
  for (const int thread : *threads) {
    const std::string task = fmt::format("/proc/{}/task/{}", zygote, thread);
    if (!holds_only(zygote, thread, given)) return distrusted("its Zygote keeps descriptors open");
    // With the descriptors of a box it could have moved there itself; it has no other right to leave.
    if (!same_place(task + "/ns/user", fmt::format("/proc/{}/ns/user", maker)))
      return distrusted("its Zygote has left its user namespace");
    if (!same_place(task + "/cwd", task + "/root")) return distrusted("its Zygote has changed its working directory");
    const std::string children = PCTX_TRY(sys::read_file(task + "/children", kMaxText));
    if (!children.empty()) return distrusted("its Zygote has children of its own");
  }
  if (!PCTX_TRY(strays(maker, zygote)).empty()) return distrusted("its Zygote has left a process behind");
  return {};
}

namespace {

bool has_children(const std::string& task) {
  const auto children = sys::try_read_file(task + "/children", kMaxText);
  return children && !children->empty();
}

// Only what is seen counts: of somebody who is about to end, nothing is.
bool opens_or_starts(pid_t process, std::size_t given) {
  for (const int thread : numbers_in(fmt::format("/proc/{}/task", process)).value_or(std::vector<int>{})) {
    const std::string task = fmt::format("/proc/{}/task/{}", process, thread);
    if (has_children(task)) return true;
    if (const auto open = numbers_in(task + "/fd")) {
      if (open->size() > given) return true;
      continue;
    }
    const auto most = table_size(task);
    for (int fd = static_cast<int>(given); fd < most.value_or(0); ++fd)
      if (::syscall(SYS_kcmp, ::getpid(), thread, kKcmpFile, 0, fd) >= 0) return true;
  }
  return false;
}

}  // namespace

bool waits_still(pid_t worker, pid_t init, pid_t maker) {
  const auto box = children_in(maker, inode(init, "pid"));
  const bool alone =
      !box || std::all_of(box->begin(), box->end(), [&](pid_t pid) { return pid == init || pid == worker; });
  return alone && !has_children(fmt::format("/proc/{}/task/{}", init, init)) &&
         !opens_or_starts(worker, kGivenToWorker);
}

bool zygote_waits_still(pid_t zygote, pid_t maker) {
  const auto others = strays(maker, zygote);
  return (!others || others->empty()) && !opens_or_starts(zygote, kGivenToZygote);
}

void end_strays(pid_t maker, pid_t zygote) {
  constexpr int kGenerations = 16;  // their children come to light with their end
  for (int i = 0; i < kGenerations; ++i) {
    const auto found = strays(maker, zygote);
    if (!found || found->empty()) return;
    for (const pid_t pid : *found) {
      const Fd held{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
      // Looked at again: between the list and the descriptor the number may have become somebody else's.
      if (held && inode(pid, "pid") == inode(maker, "pid")) (void)abi::pidfd_send_signal(held.get(), SIGKILL);
    }
    const timespec pause{0, 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace pctx
