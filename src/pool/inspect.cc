#include "pool/inspect.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/fd.h"
#include "base/units.h"
#include "sys/files.h"

namespace pctx {
namespace {

constexpr std::size_t kMaxText = 1 << 20;
constexpr int kWorkerDescriptors = 4;  // 0, 1, 2 and the socket
constexpr int kZygoteDescriptors = 3;

Error distrusted(const std::string& what) {
  return unavailable(fmt::format("a Worker was not lent: {}", what),
                     "a package that is imported in the Zygote interferes with forking; report it if you trust it");
}

Result<std::string> read_proc(pid_t pid, std::string_view file) {
  return sys::read_file(fmt::format("/proc/{}/{}", pid, file), kMaxText);
}

std::optional<std::string_view> field(std::string_view status, std::string_view name) {
  for (std::string_view line : sys::split(status, '\n')) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    line.remove_prefix(name.size() + 1);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    return line;
  }
  return std::nullopt;
}

int count_descriptors(pid_t pid) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries{::opendir(fmt::format("/proc/{}/fd", pid).c_str()), ::closedir};
  if (!entries) return -1;
  int count = 0;
  while (const dirent* entry = ::readdir(entries.get()))
    if (entry->d_name[0] != '.') ++count;
  return count;
}

std::optional<std::pair<dev_t, ino_t>> inode(pid_t pid, const char* kind) {
  struct stat status {};
  if (::stat(fmt::format("/proc/{}/ns/{}", pid, kind).c_str(), &status) != 0) return std::nullopt;
  return std::pair{status.st_dev, status.st_ino};
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
  if (const auto text = field(info, "Pid")) (void)std::from_chars(text->data(), text->data() + text->size(), pid);
  if (pid <= 0) return distrusted("its box has ended");
  return pid;
}

Result<pid_t> find_worker(pid_t maker, pid_t init, const std::set<pid_t>& known) {
  const std::string children = PCTX_TRY(read_proc(maker, fmt::format("task/{}/children", maker)));
  const std::string own = PCTX_TRY(read_proc(init, fmt::format("task/{}/children", init)));
  if (!own.empty()) return distrusted("its box holds more than one process");
  const auto place = inode(init, "pid");
  pid_t worker = -1;
  for (const std::string_view word : sys::split(children, ' ')) {
    pid_t pid = -1;
    if (std::from_chars(word.data(), word.data() + word.size(), pid).ec != std::errc{}) continue;
    if (pid == init || known.contains(pid) || inode(pid, "pid") != place) continue;
    if (worker > 0) return distrusted("its box holds more than one process");
    worker = pid;
  }
  if (worker < 0) return distrusted("its box is empty");
  return worker;
}

bool share_pid_namespace(pid_t one, pid_t other) {
  const auto place = inode(other, "pid");
  return place && inode(one, "pid") == place;
}

// "NSpid: host … maker's own", the innermost last.
Result<pid_t> pid_below(pid_t pid) {
  const std::string status = PCTX_TRY(read_proc(pid, "status"));
  const std::string_view line = field(status, "NSpid").value_or("");
  std::vector<pid_t> pids;
  for (const std::string_view word : sys::split(line, '\t')) {
    pid_t each = -1;
    if (std::from_chars(word.data(), word.data() + word.size(), each).ec == std::errc{}) pids.push_back(each);
  }
  if (pids.size() < 2) return distrusted("it has no pid namespace of its own");
  return pids[pids.size() - 2];
}

Result<void> inspect_worker(pid_t worker, pid_t init) {
  PCTX_TRY(same_namespaces(worker, init));
  const std::string status = PCTX_TRY(read_proc(worker, "status"));
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"})
    if (field(status, set) != "0000000000000000") return distrusted(fmt::format("its capability set {} is not empty", set));
  if (field(status, "NoNewPrivs") != "1") return distrusted("no_new_privs is not set");
  if (field(status, "Seccomp") != "2") return distrusted("it has no filter");
  if (field(status, "Threads") != "1") return distrusted("it has threads before its call");
  const std::string children = PCTX_TRY(read_proc(worker, fmt::format("task/{}/children", worker)));
  if (!children.empty()) return distrusted("it has children before its call");
  if (count_descriptors(worker) != kWorkerDescriptors) return distrusted("it holds descriptors beyond its own");
  return {};
}

Result<NamespaceFds> open_namespaces(pid_t init) {
  NamespaceFds opened;
  std::size_t at = 0;
  // The user namespace first: it brings the right to enter the others.
  for (const char* kind : {"user", "pid", "net", "ipc", "uts", "cgroup", "mnt"}) {
    opened.fds[at] = Fd{::open(fmt::format("/proc/{}/ns/{}", init, kind).c_str(), O_RDONLY | O_CLOEXEC)};
    if (!opened.fds[at++]) return os_error(fmt::format("cannot open the {} namespace of a Worker's box", kind));
  }
  return opened;
}

Result<void> inspect_zygote(pid_t zygote) {
  const std::string maps = PCTX_TRY(sys::read_file(fmt::format("/proc/{}/maps", zygote), 64_MiB));
  for (const std::string_view line : sys::split(maps, '\n')) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.size() < space + 5) continue;
    const std::string_view mode = line.substr(space + 1, 4);
    if (mode[1] == 'w' && mode[3] == 's') return distrusted("its Zygote has a writable mapping that Workers would share");
  }
  if (count_descriptors(zygote) != kZygoteDescriptors) return distrusted("its Zygote keeps descriptors open");
  // A process that it left halfway into a box would be a child of its.
  const std::string children = PCTX_TRY(read_proc(zygote, fmt::format("task/{}/children", zygote)));
  if (!children.empty()) return distrusted("its Zygote has children of its own");
  return {};
}

}  // namespace pctx
