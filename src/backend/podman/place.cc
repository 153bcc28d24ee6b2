// Where the container is kept on the host.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "base/sha256.h"
#include "broker/address.h"
#include "env/store.h"
#include "sys/files.h"

namespace pctx::backend::podman {
namespace {

Result<void> make_private(const std::string& path, uid_t uid, gid_t gid, mode_t mode) {
  (void)::mkdir(path.c_str(), 0700);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return os_error(fmt::format("cannot make {}", path));
  if (!S_ISDIR(status.st_mode) || (status.st_uid != ::geteuid() && status.st_uid != uid))
    return unavailable(fmt::format("{} is not a folder of this user's", path), "remove it and try again");
  if ((status.st_uid != uid && ::lchown(path.c_str(), uid, gid) != 0) ||
      ((status.st_mode & 07777) != mode && ::chmod(path.c_str(), mode) != 0))
    return os_error(fmt::format("cannot prepare {}", path));
  return {};
}

}  // namespace

std::string named_machine() {
  std::string named;
  for (const char* variable : {"CONTAINER_HOST", "CONTAINER_CONNECTION"})
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      named += fmt::format("{}={}\n", variable, value);
  return named;
}

Result<Place> find_place() {
  Place place;
  // What names the Broker's socket names the container's folder too: it lies beside it.
  const BrokerAddress beside = PCTX_TRY(broker_address(""));
  place.folder = beside.folder.empty() ? beside.socket + ".podman" : beside.folder + "/podman";
  if (const std::string machine = named_machine(); !machine.empty()) {
    place.remote = true;
    // One for each machine: callers of one must not find the way to another.
    const std::string mark = sha256_hex(machine).substr(0, 12);
    place.callers = fmt::format("{}podman-{}", beside.folder.empty() ? beside.socket + "." : beside.folder + "/", mark);
    // Machines have the user's home, and nothing of /run and /tmp.
    const auto store = env::Store::open();
    if (beside.folder.empty() || !store)
      place.folder += "-" + mark;
    else
      place.folder = fmt::format("{}/machine-{}", store->folder(), mark);
  }
  const char* named = std::getenv("PCTX_SANDBOX_CONTAINER");
  place.container = named != nullptr && *named != '\0' ? named : "pctx-sandbox-agent";
  place.rootful = ::geteuid() == 0;
  place.uid = place.rootful ? kFirstId + kUserInside : ::geteuid();
  place.gid = place.rootful ? kFirstId + kUserInside : ::getegid();
  place.run = place.folder + "/run";
  place.support = place.folder + "/support";
  place.lent = place.folder + "/lent";
  place.system = place.folder + "/system";
  PCTX_TRY(make_private(place.folder, ::geteuid(), ::getegid(), 0700));
  PCTX_TRY(make_private(place.run, place.uid, place.gid, 0700));
  // Behind a folder that only this user can enter: the container's user reads the one, and finds its way in the other.
  PCTX_TRY(make_private(place.support, ::geteuid(), ::getegid(), 0755));
  PCTX_TRY(make_private(place.system, ::geteuid(), ::getegid(), 0755));
  PCTX_TRY(make_private(place.lent, ::geteuid(), ::getegid(), 0711));
  return place;
}

BrokerAddress address_of(const Place& place, const std::string& version) {
  if (place.remote) return {place.folder, fmt::format("{}-{}.sock", place.callers, version)};
  return {place.folder, fmt::format("{}/broker-{}.sock", place.run, version), place.uid};
}

Result<BrokerAddress> address(const std::string& version) {
  const Place place = PCTX_TRY(find_place());
  return address_of(place, version);
}

}  // namespace pctx::backend::podman
