// One rootless container for each user, with a Broker in it: Podman makes the outer wall, our boxes the inner one.
// docs/podman.md says what the container has and has not.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "sys/host.h"

namespace pctx::backend::podman {

Standing look();
Result<BrokerAddress> address(const std::string& version);
Result<Reached> reach(const Wanted& wanted);
Result<int> execute(const Wanted& wanted, const Command& command);

inline constexpr Backend kPodman{.name = "podman",
                                 .means = "boxes in one container of this user's",
                                 .look = look,
                                 .address = address,
                                 .reach = reach,
                                 .execute = execute};

inline constexpr const char* kImage = "localhost/pctx-sandbox-agent:latest";
inline constexpr const char* kProgramInside = "/pctx-sandbox";
// Folders of the container; those of the host are in Place.
inline constexpr const char* kRunInside = "/run/pctx";
inline constexpr const char* kSupportInside = "/run/pctx-support";
inline constexpr const char* kLentInside = "/run/pctx-lent";

// As root, the container's ids are ones that no account has, nor any box of the namespaces backend; its user is the
// 1000th of them.
inline constexpr std::uint32_t kFirstId = 0x70800000, kIds = 65536, kUserInside = 1000;

// Where one user's container is kept on the host: a folder that nobody else can enter.
struct Place {
  std::string folder;     // ours alone: lock, stamps, the system call profile
  std::string run;        // the container writes here: the Broker's socket
  std::string support;    // read-only in the container: our guest code
  std::string lent;       // copies of folders that callers lend
  std::string container;  // its name
  bool rootful = false;
  uid_t uid = 0;  // of the container's user, on the host
  gid_t gid = 0;
};
Result<Place> find_place();

// Everything that the container's command line depends on.
struct ContainerSpec {
  Place place;
  uid_t caller_uid = 0;
  gid_t caller_gid = 0;
  std::string podman, runtime;  // runtime: empty for Podman's own choice
  std::string image;            // an id, or the name that the user gave
  bool own_image = true;        // ours has no system of its own: the host's is lent
  std::string program;          // of the host, lent where the image is not ours
  std::string profile;          // file
  std::string apparmor;         // the name of a loaded profile; empty where Podman confines nothing by AppArmor
  std::string version, door;    // door: name below `run`, empty for none
  std::string ipc = "none";     // its own, and no /dev/shm; Podman before 4.0 knows "private" only
  std::vector<HostPath> system;
  std::vector<std::string> lent;
  std::string environments, store;  // read-only and read-write; either may be empty
  std::uint64_t files = 1024, processes = 1024;
  std::uint64_t memory = 0;  // 0: no limits of the container's own
  unsigned cpus = 1;
};
std::vector<std::string> container_arguments(const ContainerSpec& spec);

// The container's own system call filter, as OCI JSON: what guests may call, and what making boxes takes.
std::string seccomp_profile();

// The bytes of the image: an empty root, the host's links at its top, and `program`.
std::string image_archive(const std::vector<HostPath>& system, std::string_view program);

// The AppArmor profile that the container must have here; empty for none, an error if it is not loaded.
Result<std::string> apparmor_profile();

// What Podman's words mean, and what to do. `user` is the caller's name.
enum class Trouble { other, no_image, in_the_way, no_limits, runtime_hybrid, older_podman };
Trouble trouble_in(std::string_view words);
Error explain_failure(std::string_view words, const std::string& user);
// The line that installs Podman here.
std::string install_command();

}  // namespace pctx::backend::podman
