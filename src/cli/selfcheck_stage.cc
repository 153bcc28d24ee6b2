#include "cli/selfcheck_stage.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "sys/files.h"

namespace pctx::cli {
namespace {

constexpr const char* kVariable = "PCTX_SELFCHECK_TOKEN";
constexpr int kInheritedFd = 37;
constexpr std::size_t kMostReported = 4 << 20;
constexpr auto kLongestStage = std::chrono::seconds{300};

void remove_tree(const std::string& folder) {
  for (const char* name : {"/secret", "/written", "/lent/file", "/scratch/setuid", "/scratch/filled"})
    (void)::unlink((folder + name).c_str());
  (void)::rmdir((folder + "/lent").c_str());
  (void)::rmdir((folder + "/scratch").c_str());
  (void)::rmdir(folder.c_str());
}

void reap(int pid) {
  while (pid > 0 && ::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<void> Stage::make_folder() {
  const char* place = std::getenv("TMPDIR");
  std::string name = fmt::format("{}/pctx-selfcheck.XXXXXX", place != nullptr && *place == '/' ? place : "/tmp");
  if (::mkdtemp(name.data()) == nullptr) return os_error(fmt::format("cannot make {}", name));
  folder_ = name;
  for (const char* below : {"", "/lent", "/scratch"})
    if (((*below != '\0') && ::mkdir((folder_ + below).c_str(), 0755) != 0) ||
        ::chmod((folder_ + below).c_str(), 0755) != 0)
      return os_error(fmt::format("cannot make {}{}", folder_, below));
  for (const char* file : {"/secret", "/lent/file"}) {
    const Fd fd = PCTX_TRY(sys::open_at(AT_FDCWD, folder_ + file, O_WRONLY | O_CREAT | O_EXCL, 0644));
    PCTX_TRY(sys::write_all(fd.get(), token_));
  }
  // Left open on purpose, over exec too.
  const int secret = ::open((folder_ + "/secret").c_str(), O_RDONLY);
  descriptor_ = Fd{::fcntl(secret, F_DUPFD, kInheritedFd)};
  ::close(secret);
  if (!descriptor_) return os_error("cannot open a file of the check's own");
  return {};
}

Result<void> Stage::make_sockets() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  port_ = Fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!port_ || ::bind(port_.get(), name, size) != 0 || ::listen(port_.get(), 16) != 0 ||
      ::getsockname(port_.get(), name, &size) != 0)
    return os_error("cannot listen on this machine's loopback");
  planted_["port"] = std::to_string(ntohs(address.sin_port));
  sockaddr_un abstract{};
  abstract.sun_family = AF_UNIX;
  std::memcpy(abstract.sun_path + 1, token_.data(), token_.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + token_.size());
  abstract_ = Fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!abstract_ || ::bind(abstract_.get(), reinterpret_cast<const sockaddr*>(&abstract), length) != 0 ||
      ::listen(abstract_.get(), 16) != 0)
    return os_error("cannot listen on an abstract socket");
  return {};
}

Result<void> Stage::make_process() {
  sys::Pipe alive = PCTX_TRY(sys::make_pipe());
  process_ = ::fork();
  if (process_ < 0) return os_error("cannot start a process");
  if (process_ == 0) {
    alive.write_end.reset();
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    char byte;
    (void)!::read(alive.read_end.get(), &byte, 1);
    ::_exit(0);
  }
  lifeline_ = std::move(alive.write_end);
  planted_.emplace("patience", "1");
  planted_["pid"] = std::to_string(process_);
  return {};
}

Result<void> Stage::make_memory() {
  key_t key = 0;
  for (int attempt = 0; attempt < 16 && memory_ < 0; ++attempt) {
    (void)!::getrandom(&key, sizeof key, 0);
    key = (key & 0x7fffffff) | 1;
    memory_ = ::shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600);
  }
  if (memory_ < 0) return os_error("cannot make shared memory");
  planted_["shm"] = std::to_string(key);
  const Fd posix{::open(("/dev/shm/" + token_).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)};
  if (!posix) return os_error("cannot make a file in /dev/shm");
  return {};
}

Result<Stage> Stage::plant() {
  Stage stage;
  std::uint64_t number = 0;
  (void)!::getrandom(&number, sizeof number, 0);
  stage.token_ = fmt::format("pctx-selfcheck-{:016x}", number);
  PCTX_TRY(stage.make_folder());
  if (::setenv(kVariable, stage.token_.c_str(), 1) != 0) return os_error("cannot set a variable");
  PCTX_TRY(stage.make_sockets());
  PCTX_TRY(stage.make_process());
  PCTX_TRY(stage.make_memory());
  stage.planted_["token"] = stage.token_;
  stage.planted_["host"] = stage.folder_;
  stage.planted_["lent"] = stage.folder_ + "/lent";
  stage.planted_["scratch"] = stage.folder_ + "/scratch";
  return stage;
}

Stage::~Stage() {
  if (folder_.empty()) return;  // moved from
  lifeline_.reset();
  reap(process_);
  if (memory_ >= 0) (void)::shmctl(memory_, IPC_RMID, nullptr);
  (void)::unlink(("/dev/shm/" + token_).c_str());
  (void)::unlink((folder_ + "/scratch/" + token_).c_str());
  (void)::unsetenv(kVariable);
  remove_tree(folder_);
}

bool Stage::daemon_is_left() const {
  bool found = false;
  DIR* entries = ::opendir("/proc");
  while (const dirent* entry = entries != nullptr ? ::readdir(entries) : nullptr) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 1 || pid == ::getpid()) continue;
    const std::string line = sys::try_read_file(fmt::format("/proc/{}/cmdline", pid)).value_or("");
    using namespace std::string_view_literals;
    if (line.find("\0linger\0"sv) == std::string::npos || line.find(token_) == std::string::npos) continue;
    found = true;
    (void)::kill(pid, SIGKILL);
  }
  if (entries != nullptr) ::closedir(entries);
  return found;
}

Result<OpenRun> OpenRun::start(std::string_view what, const Planted& planted) {
  std::vector<std::string> words{"pctx-sandbox", "selfcheck", std::string{kInside}, std::string{what}};
  for (const auto& [key, value] : planted) words.push_back(fmt::format("{}={}", key, value));
  std::vector<char*> argv;
  for (std::string& each : words) argv.push_back(each.data());
  argv.push_back(nullptr);
  sys::Pipe pipe = PCTX_TRY(sys::make_pipe());
  OpenRun run;
  run.pid_ = ::fork();
  if (run.pid_ < 0) return os_error("cannot start a process");
  if (run.pid_ == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)::dup2(pipe.write_end.get(), STDOUT_FILENO);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  run.output_ = std::move(pipe.read_end);
  return run;
}

OpenRun::OpenRun(OpenRun&& other) noexcept : pid_(std::exchange(other.pid_, -1)), output_(std::move(other.output_)) {}

OpenRun::~OpenRun() {
  if (pid_ > 0) (void)::kill(pid_, SIGKILL);
  reap(pid_);
}

std::string OpenRun::finish() {
  std::string text;
  const auto until = std::chrono::steady_clock::now() + kLongestStage;
  while (text.size() < kMostReported && std::chrono::steady_clock::now() < until) {
    pollfd more{output_.get(), POLLIN, 0};
    if (::poll(&more, 1, 100) <= 0) continue;
    std::array<char, 65536> buffer;
    const ssize_t size = ::read(output_.get(), buffer.data(), buffer.size());
    if (size == 0 || (size < 0 && errno != EINTR)) break;
    if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace pctx::cli
