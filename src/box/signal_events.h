// Which signals of the supervisor's reach the guest, as events that its loop can wait for.
#pragma once

#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "base/fd.h"

namespace pctx {

// Signals become readable events for the time of the run; what they did before is put back.
class SignalEvents {
 public:
  SignalEvents() {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    // What our caller ignores for us (nohup, trap '' INT, a job in the background of a script) is not for the guest
    // either: a signal that is not blocked stays ignored.
    for (int signal : kForwarded) {
      struct sigaction action {};
      if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) ::sigaddset(&wanted, signal);
    }
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) ::sigaddset(&wanted, signal);
    ::sigaddset(&wanted, SIGWINCH);
    ::sigprocmask(SIG_BLOCK, &wanted, &before_);
    for (std::size_t i = 0; i < kIgnored.size(); ++i) ignored_before_[i] = ::signal(kIgnored[i], SIG_IGN);
    fd_ = Fd{::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK)};
  }
  ~SignalEvents() {
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    for (std::size_t i = 0; i < kIgnored.size(); ++i) ::signal(kIgnored[i], ignored_before_[i]);
  }
  SignalEvents(const SignalEvents&) = delete;
  SignalEvents& operator=(const SignalEvents&) = delete;

  int fd() const { return fd_.get(); }
  struct Event {
    int signal = 0;      // 0: no more
    bool typed = false;  // as a key of our terminal, not sent by a process
  };
  Event next() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return {};
    return {static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
  }

 private:
  // And the real-time ones. The others stop a process, or say that something is wrong with the one that gets them.
  static constexpr std::array kForwarded{SIGINT,  SIGTERM,   SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,   SIGALRM,
                                         SIGPROF, SIGVTALRM, SIGPOLL, SIGPWR,  SIGURG,  SIGSTKFLT, SIGCONT};

  // A closed reader is an error to handle; and a supervisor that the terminal could stop would watch over nothing.
  static constexpr std::array kIgnored{SIGPIPE, SIGTTIN, SIGTTOU, SIGTSTP};

  sigset_t before_{};
  std::array<sighandler_t, kIgnored.size()> ignored_before_{};
  Fd fd_;
};

}  // namespace pctx
