// One connection of a caller: at most one lease at a time, and its end is the end of the lease's Worker.
#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "pool/pool.h"

namespace pctx {

class Session {
 public:
  enum class Phase { idle, waiting, leased };

  explicit Session(Fd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool send(std::string_view text, const std::vector<int>& fds = {}) { return wire::send(fd(), text, fds); }
  bool send_error(std::string_view kind, const Error& error);
  bool send_report(const std::string& text);  // of any size: one that is too long for a packet goes as a file beside it

  Phase phase = Phase::idle;
  std::string pool;          // key of the pool it waits for or has a Worker of
  Worker* worker = nullptr;  // leased
  bool started = false;      // its `ended` is owed
  bool told = false;         // and has been sent before the box was gone
  bool done = false;         // the caller has its answer
  std::string report;        // how a Worker ended whose start nobody has announced yet
  std::string next;          // text of the lease to take once this one has ended
  sys::Loop::TimerId patience = 0;

 private:
  Fd socket_;
};

// What a caller may say. Strict: anything else ends the connection.
struct Request {
  bool start = false, done = false, status = false, stop = false;
  std::optional<Millis> timeout;     // with start: instead of the policy's
  std::optional<std::string> mount;  // a folder for the Worker that is leased
  std::optional<PoolSpec> lease;
  std::string lease_text;
  Millis queue_timeout{60'000};
};
Result<Request> parse_request(const std::string& text);

}  // namespace pctx
