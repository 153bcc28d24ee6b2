#include "box/text_reader.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "sys/blocked_signals.h"
#include "sys/files.h"
#include "wire/packet.h"

namespace pctx {
namespace {

constexpr std::size_t kMostHeldUp = 4;

struct Question {
  std::uint64_t id;
  std::uint64_t address;
  pid_t pid;
};

struct Reply {
  std::uint64_t id;
  std::uint32_t size;
  char text[TextReader::kLongest];
};

// The guest may change its memory while we read: the text is for a report and decides nothing.
Reply read_text(const Question& question) noexcept {
  Reply reply{question.id, 0, {}};
  // Up to the page's end first: the next page may not be there.
  const std::size_t in_page = 4096 - question.address % 4096;
  const iovec local{reply.text, std::min(sizeof reply.text, in_page)};
  const iovec remote{reinterpret_cast<void*>(question.address), local.iov_len};
  const ssize_t got = ::process_vm_readv(question.pid, &local, 1, &remote, 1, 0);
  if (got > 0) reply.size = static_cast<std::uint32_t>(::strnlen(reply.text, static_cast<std::size_t>(got)));
  return reply;
}

// A copy of a process that has one thread: nothing is half done in it.
[[noreturn]] void run_reader(int socket) noexcept {
  sys::close_all_but({&socket, 1});
  (void)::prctl(PR_SET_NAME, "pctx-reader");
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Question question{};
  for (;;) {
    const ssize_t got = ::recv(socket, &question, sizeof question, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof question) ::_exit(0);
    const Reply reply = read_text(question);
    if (::send(socket, &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply) ::_exit(0);
  }
}

bool has_ended(pid_t pid) noexcept { return ::waitpid(pid, nullptr, WNOHANG) != 0; }

}  // namespace

// Once the guests are dead nobody waits any longer. One that lives on is none of our business.
TextReader::~TextReader() {
  constexpr int kTries = 1000;
  constexpr timespec kPause{0, 1'000'000};
  give_up();
  for (int i = 0; i < kTries && !waiting_.empty(); ++i) {
    std::erase_if(waiting_, has_ended);
    if (!waiting_.empty()) ::nanosleep(&kPause, nullptr);
  }
}

bool TextReader::start() {
  auto ends = wire::pair(SOCK_SEQPACKET);
  if (!ends) return false;
  const sys::BlockedSignals blocked;  // what ends our process group must not leave a call without an answer
  pid_ = ::fork();
  if (pid_ == 0) run_reader(ends->second.get());
  if (pid_ < 0) return false;
  socket_ = std::move(ends->first);
  ++started_;
  return true;
}

bool TextReader::all_wait() {
  std::erase_if(waiting_, has_ended);
  return waiting_.size() >= kMostHeldUp;
}

bool TextReader::ask(std::uint64_t id, pid_t pid, std::uint64_t address) {
  const Question question{id, address, pid};
  // Somebody may have killed it since.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!socket_ && (all_wait() || !start())) return false;
    if (::send(socket_.get(), &question, sizeof question, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof question) return true;
    if (errno == EAGAIN) return false;
    give_up();
  }
  return false;
}

std::optional<TextReader::Answer> TextReader::hear() {
  Reply reply{};
  if (!socket_) return std::nullopt;
  const ssize_t got = ::recv(socket_.get(), &reply, sizeof reply, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (got != sizeof reply) {
    give_up();
    return std::nullopt;
  }
  return Answer{reply.id, std::string{reply.text, std::min<std::size_t>(reply.size, sizeof reply.text)}};
}

void TextReader::give_up() {
  socket_.reset();
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waiting_.push_back(std::exchange(pid_, -1));
}

}  // namespace pctx
