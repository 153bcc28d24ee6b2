// How a process in a container without network has relays: they run outside. It connects once, before any guest runs,
// to a door that takes one connection and then has no name any more; over it each new relay gets its control socket.
// The connection is a lifeline too: what is inside need not outlive who is outside.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace pctx::net {

// Outside.
class Door {
 public:
  // Listens at `path`; `uid` is who may come in, as the host sees it.
  static Result<Door> open(const std::string& path, uid_t uid, gid_t gid);
  Door(Door&&) = default;
  Door& operator=(Door&&) = default;
  ~Door();

  int fd() const { return connection_ ? connection_.get() : listener_.get(); }  // readable: call serve()
  // Lets one in, or starts a relay for it. False: it has gone.
  bool serve();

  // Leaves for a process of its own, which ends with whoever came in, or after a while if nobody does. `welcome` is
  // what it does for the one who came in, known by its pid on this host, before that one is told to go on.
  static Result<void> serve_behind(Door door, const std::function<void(pid_t)>& welcome);

 private:
  Door(std::string path, uid_t uid, Fd listener) : path_(std::move(path)), uid_(uid), listener_(std::move(listener)) {}
  void close_name();
  void reap();
  std::string path_;
  uid_t uid_ = 0;
  pid_t came_ = 0;  // who is at the other end of the connection
  Fd listener_, connection_;
  std::vector<pid_t> relays_;  // that run
};

// Inside, where no door can be: on another machine. Relays are refused then.
inline constexpr const char* kNoDoor = "none";
void be_without_door();
bool is_without_door();

// Inside. From here on relays of this process start outside; `die_with_it`: the end of the outside ends this process.
Result<void> enter_door(const std::string& path, bool die_with_it);
// Waits until the other side has done its `welcome`. Without a door, or if nobody is behind it any more, not at all.
void await_welcome();
// -1: there is none, relays are children of this process.
int door();
// Whether somebody is still outside: not after `podman restart`, nor once that process was killed.
bool door_is_open();
// A relay outside with `control` as its end.
Result<void> start_relay_outside(Fd control);

}  // namespace pctx::net
