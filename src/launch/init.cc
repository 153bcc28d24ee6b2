// pid 1 of a box: reaps orphans, passes signals on, reports how the guest ended, and takes the box down with it when
// the guest ends, the supervisor says so, or the supervisor goes. A program of its own without libc: it starts in a few
// pages, holds nothing of the caller's, and is not dumpable, so the guest can neither read nor trace it.
//
// Descriptors (child_plan.h): 3 is the status socket, 4 the ready pipe that the guest waits on.
#include <stddef.h>  // before linux/signal.h, which needs size_t in older headers

#include <linux/prctl.h>
#include <linux/signal.h>
#include <linux/wait.h>

namespace {

#if defined(__x86_64__)
long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
               : "rcx", "r11", "memory");
  return result;
}
enum {
  kClose = 3,
  kRead = 0,
  kWrite = 1,
  kPpoll = 271,
  kWait4 = 61,
  kKill = 62,
  kPrctl = 157,
  kExitGroup = 231,
  kSignalfd4 = 289,
  kCapset = 126
};
#elif defined(__aarch64__)
long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
}
enum {
  kClose = 57,
  kRead = 63,
  kWrite = 64,
  kPpoll = 73,
  kWait4 = 260,
  kKill = 129,
  kPrctl = 167,
  kExitGroup = 94,
  kSignalfd4 = 74,
  kCapset = 91
};
#else
#error "port the system calls of init"
#endif

// The same layout as StatusFrame; this file includes nothing of the engine on purpose.
struct Frame {
  unsigned kind;
  unsigned char step, pad;
  unsigned short index;
  int value;
};
enum : unsigned { kEnded = 2, kSignal = 3, kEnd = 4 };
constexpr int kStatus = 3;
constexpr int kReady = 4;
constexpr long kNoProcess = -3;  // ESRCH
constexpr long kNoChild = -10;   // ECHILD
constexpr int kGuest = 2;        // the first process that pid 1 of a new namespace forks

struct PollFd {
  int fd;
  short events, revents;
};

[[noreturn]] void leave(int code) {
  for (;;) call(kExitGroup, code);
}

// One that has ended; 0 if there is none yet, or an error.
long next_dead(int& status) { return call(kWait4, -1, reinterpret_cast<long>(&status), 1 /* WNOHANG */, 0); }

void drain(int signals) {
  char drained[128];
  call(kRead, signals, reinterpret_cast<long>(drained), sizeof drained);
}

// The kernel kills what we leave behind, but waits for nobody then: what those have used is lost. We kill and wait
// ourselves, and our own usage is the box's; exit code 0 says that it is. Should we not be allowed to, or should it
// take too long, the kernel's way is still there.
[[noreturn]] void end_everybody(int signals) {
  long killed = 0;
  for (int idle = 0; idle < 5000 && (killed == 0 || killed == kNoProcess);) {
    // Again and again: until the guest's process has taken on its ids the kernel refuses, and answers as if it had not.
    killed = call(kKill, -1, SIGKILL);
    int status = 0;
    long pid;
    while ((pid = next_dead(status)) > 0) idle = 0;
    // Not everybody in a box is ours to wait for: a Worker is its maker's, and what it leaves comes to us after its
    // end.
    if (pid == kNoChild && (killed = call(kKill, -1, SIGKILL)) == kNoProcess) leave(0);
    PollFd fd{signals, 1 /* POLLIN */, 0};
    const long moment[2] = {0, 200'000};
    if (call(kPpoll, reinterpret_cast<long>(&fd), 1, reinterpret_cast<long>(moment), 0) > 0)
      drain(signals);
    else
      ++idle;
  }
  leave(1);
}

void reap(int signals) {
  int status = 0;
  long pid;
  while ((pid = next_dead(status)) > 0) {
    if (pid != kGuest) continue;
    Frame frame{kEnded, 0, 0, 0, status};
    call(kWrite, kStatus, reinterpret_cast<long>(&frame), sizeof frame);
    // The end of the main process ends the box. Mostly nobody else is left.
    if (next_dead(status) == kNoChild) leave(0);
    end_everybody(signals);
  }
}

// What a terminal's keys send is for the whole group, as at any terminal: a shell waits for the command that it runs.
// The group is there when the guest leads its session, which it cannot leave.
long send(int signal) {
  const bool from_a_key = signal == SIGINT || signal == SIGQUIT;
  const long sent = from_a_key ? call(kKill, -kGuest, signal) : kNoProcess;
  return sent == kNoProcess ? call(kKill, kGuest, signal) : sent;
}

// Until the guest's process has taken on its ids, which are ours too, the kernel refuses; it does so within moments.
void forward(int signal) {
  for (int attempt = 0; attempt < 5000 && send(signal) == -1 /* EPERM */; ++attempt) {
    const long millisecond[2] = {0, 1'000'000};
    call(kPpoll, 0, 0, reinterpret_cast<long>(millisecond), 0);
  }
}

}  // namespace

extern "C" [[noreturn]] void _start() {
  call(kPrctl, PR_SET_DUMPABLE, 0);
  const struct {
    unsigned version;
    int pid;
  } header{0x20080522, 0};
  const unsigned none[6] = {};
  call(kCapset, reinterpret_cast<long>(&header), reinterpret_cast<long>(none));
  call(kClose, kReady);                               // the guest may start
  unsigned long child_signal = 1UL << (SIGCHLD - 1);  // blocked since before the clone
  const int signals = static_cast<int>(call(kSignalfd4, -1, reinterpret_cast<long>(&child_signal), 8, 0));
  for (;;) {
    PollFd fds[2] = {{kStatus, 1 /* POLLIN */, 0}, {signals, 1, 0}};
    // Whoever manages to break our waiting ends the box, not our watch over it.
    const long ready = call(kPpoll, reinterpret_cast<long>(fds), 2, 0, 0);
    if (ready < 0 && ready != -4 /* EINTR */) leave(1);
    if (fds[1].revents != 0) drain(signals);
    reap(signals);
    if (fds[0].revents != 0) {
      Frame frame;
      if (call(kRead, kStatus, reinterpret_cast<long>(&frame), sizeof frame) != sizeof frame) leave(1);
      if (frame.kind == kSignal) forward(frame.value);
      if (frame.kind == kEnd) end_everybody(signals);
    }
  }
}
