#include "box/denials.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/printable.h"
#include "box/refused_call.h"
#include "plan/refusal.h"
#include "sys/syscalls.h"

namespace pctx {
namespace {

constexpr std::uint64_t kMostHeld = 4096;  // of one box, whatever its limit of threads
constexpr std::size_t kMostAsked = 64;
constexpr std::chrono::seconds kReaderPatience{1};

pid_t caller_of(const seccomp_notif& call) { return static_cast<pid_t>(call.pid); }

std::string error_name(int code) {
  const char* name = ::strerrorname_np(code);
  return name != nullptr ? name : std::to_string(code);
}

Denial denial_of(const seccomp_data& call, const RefusalAnswer& answer, const std::string& text) {
  const std::string_view name = syscall_name(kHostArch, call.nr);
  return {name.empty() ? fmt::format("#{}", call.nr) : std::string{name},
          text.empty() ? asked_for(name, call) : printable_path(text), error_name(answer.code), answer.reason};
}

// What these calls do, as far as it matters here, is all in registers, which nobody can change between our answer and
// the call: the guest cannot trace.
bool granted(const Plan& plan, const seccomp_data& call, DenialBook& book) {
  if (makes_filter(plan, call)) return book.grant_filter();
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
  const auto of_call = std::ranges::count(kinds_, refused.syscall, &Denial::syscall);
  if (kinds_.size() < kMaxKinds && static_cast<std::size_t>(of_call) < kMaxOfCall) {
    kinds_.push_back(std::move(refused));
    return;
  }
  ++left_out_;
  if (left_out_of_.size() < kMaxKinds || left_out_of_.contains(refused.syscall)) ++left_out_of_[refused.syscall];
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
  DenialBook* book = book_of(call);
  if (book != nullptr && granted(*plan_, call.data, *book)) {
    seccomp_notif_resp response{};
    response.id = call.id;
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    send(response);  // at once: the allowance says how many there can be
    return true;
  }
  Refused refused{call, answer_refusal(*plan_, call.data), now + kReaderPatience};
  const auto text = text_address(syscall_name(kHostArch, call.data.nr), call.data);
  if (book != nullptr && text && asked_.size() < kMostAsked && reader_.ask(call.id, caller_of(call), *text))
    asked_.emplace(call.id, std::move(refused));
  else
    refuse(refused, "", now);
  return true;
}

DenialBook* DenialLog::book_of(const seccomp_notif& call) { return book_of_ ? book_of_(caller_of(call)) : &book_; }

void DenialLog::refuse(const Refused& refused, const std::string& text, Clock::time_point now) {
  DenialBook* book = book_of(refused.call);
  if (book != nullptr) book->add(denial_of(refused.call.data, refused.answer, text));
  seccomp_notif_resp response{};
  response.id = refused.call.id;
  response.error = -refused.answer.code;
  const auto turn = (book != nullptr ? book->pace() : nobodys_).turn(now);
  if (turn <= now)
    send(response);
  else
    held_.emplace(turn, response);
  if (turn - now > Pace::kStep * static_cast<int>(std::min(plan_->policy.limits.pids, kMostHeld)))
    not_before_ = now + Pace::kStep;
}

void DenialLog::hear(Clock::time_point now) {
  while (const auto answer = reader_.hear()) {
    const auto found = asked_.find(answer->id);
    if (found == asked_.end()) continue;
    const Refused refused = std::move(found->second);
    asked_.erase(found);
    // A process that has ended meanwhile may have left its number to another.
    std::uint64_t id = refused.call.id;
    const bool stands = ::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
    refuse(refused, stands ? answer->text : "", now);
  }
}

void DenialLog::close() {
  const auto now = Clock::now();
  hear(now);
  for (const auto& [id, refused] : std::exchange(asked_, {})) refuse(refused, "", now);
  listener_.reset();
  held_.clear();
}

void DenialLog::send(seccomp_notif_resp& response) {
  (void)::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &response);
}

void DenialLog::answer_due(Clock::time_point now) {
  const auto over = [&](const auto& each) { return each.second.until <= now; };
  if (std::ranges::any_of(asked_, over)) {
    reader_.give_up();
    for (const auto& [id, refused] : std::exchange(asked_, {})) refuse(refused, "", now);
  }
  while (!held_.empty() && held_.begin()->first <= now) {
    send(held_.begin()->second);
    held_.erase(held_.begin());
  }
}

std::optional<DenialLog::Clock::time_point> DenialLog::wakes(Clock::time_point now) const {
  std::optional<Clock::time_point> first;
  if (!held_.empty()) first = held_.begin()->first;
  if (now < not_before_) first = first ? std::min(*first, not_before_) : not_before_;
  for (const auto& [id, refused] : asked_) first = first ? std::min(*first, refused.until) : refused.until;
  return first;
}

}  // namespace pctx
