#include "box/denials.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "box/refused_call.h"
#include "box/terminal.h"
#include "plan/refusal.h"
#include "sys/syscalls.h"

namespace pctx {
namespace {

constexpr std::uint64_t kMostHeld = 4096;  // of one box, whatever its limit of threads

// The guest may change its memory while we read: the text is for a report and decides nothing.
std::string read_text(pid_t pid, std::uint64_t address) {
  std::array<char, 256> text{};
  // Up to the page's end first: the next page may not be there.
  const std::size_t in_page = 4096 - address % 4096;
  const iovec local{text.data(), std::min(text.size() - 1, in_page)};
  const iovec remote{reinterpret_cast<void*>(address), local.iov_len};
  const ssize_t got = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (got <= 0) return "";
  return printable_path(std::string_view{text.data(), ::strnlen(text.data(), static_cast<std::size_t>(got))});
}

std::string error_name(int code) {
  const char* name = ::strerrorname_np(code);
  return name != nullptr ? name : std::to_string(code);
}

Denial describe(const seccomp_notif& call, const RefusalAnswer& answer) {
  const std::string_view name = syscall_name(kHostArch, call.data.nr);
  const TextAt text_at = [&](std::uint64_t address) { return read_text(static_cast<pid_t>(call.pid), address); };
  return {name.empty() ? fmt::format("#{}", call.data.nr) : std::string{name}, asked_for(name, call.data, text_at),
          error_name(answer.code), answer.reason};
}

// What mmap() does is all in registers, which nobody can change between our answer and the call: the guest cannot
// trace.
bool granted(const Plan& plan, const seccomp_data& call, DenialBook& book) {
  const auto shared = shared_mapping(plan, call);
  if (!shared || ::sysconf(_SC_PAGESIZE) != 4096) return false;  // with larger pages huge ones are larger, too
  return book.grant_shared(*shared, shared_allowance(plan));
}

}  // namespace

void DenialBook::add(Denial refused) {
  for (Denial& known : kinds_)
    if (known.syscall == refused.syscall && known.detail == refused.detail && known.answer == refused.answer) {
      ++known.count;
      return;
    }
  if (kinds_.size() < kMaxKinds)
    kinds_.push_back(std::move(refused));
  else
    ++left_out_;
}

bool DenialBook::grant_shared(std::uint64_t bytes, std::uint64_t allowance) {
  if (bytes > allowance || shared_ > allowance - bytes) return false;
  shared_ += bytes;
  return true;
}

bool DenialLog::serve(Clock::time_point now) {
  seccomp_notif call;
  std::memset(&call, 0, sizeof call);
  if (::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) return errno == EINTR || errno == ENOENT;
  DenialBook* book = book_of_ ? book_of_(static_cast<pid_t>(call.pid)) : &book_;
  seccomp_notif_resp response{};
  response.id = call.id;
  if (book != nullptr && granted(*plan_, call.data, *book)) {
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    send(response);  // at once: the allowance says how many there can be
    return true;
  }
  const RefusalAnswer answer = answer_refusal(*plan_, call.data);
  response.error = -answer.code;
  if (book != nullptr) book->add(describe(call, answer));
  const auto turn = (book != nullptr ? book->pace() : nobodys_).turn(now);
  if (turn <= now)
    send(response);
  else
    held_.emplace(turn, response);
  if (turn - now > Pace::kStep * static_cast<int>(std::min(plan_->policy.limits.pids, kMostHeld)))
    not_before_ = now + Pace::kStep;
  return true;
}

void DenialLog::send(seccomp_notif_resp& response) {
  (void)::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &response);
}

void DenialLog::answer_due(Clock::time_point now) {
  while (!held_.empty() && held_.begin()->first <= now) {
    send(held_.begin()->second);
    held_.erase(held_.begin());
  }
}

std::optional<DenialLog::Clock::time_point> DenialLog::wakes(Clock::time_point now) const {
  std::optional<Clock::time_point> first;
  if (!held_.empty()) first = held_.begin()->first;
  if (now < not_before_) first = first ? std::min(*first, not_before_) : not_before_;
  return first;
}

}  // namespace pctx
