// A process that closes descriptors for somebody who must not wait: the kernel takes milliseconds for the last copy of
// a packet socket.
#pragma once

#include <sys/types.h>

#include "base/fd.h"
#include "base/result.h"

namespace pctx {

class Closer {
 public:
  Closer() = default;
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  // Unless it runs already. The caller has a single thread.
  Result<void> start();
  // Hands a duplicate over; the caller closes its own at once and cheaply. If the process is gone, another one takes
  // its place; if none is to be had, the caller's close is the last.
  void close(int fd);

 private:
  Result<void> replace();

  Fd socket_;
  pid_t pid_ = -1;
};

}  // namespace pctx
