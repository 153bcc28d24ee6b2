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
#include "base/units.h"
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
  std::string system;     // copies of the system's single files
  std::string container;  // its name
  bool rootful = false;
  // Podman is a client of one on another machine. That has our folders, but no socket of ours leads there: callers find
  // the end of a stream at `callers`.
  bool remote = false;
  std::string callers;
  uid_t uid = 0;  // of the container's user, on the host
  gid_t gid = 0;
};
Result<Place> find_place();
BrokerAddress address_of(const Place& place, const std::string& version);
// What CONTAINER_HOST or CONTAINER_CONNECTION names; empty: containers run here.
std::string named_machine();

// A folder or file of the host that the container has at its own path, read-only.
struct LentFolder {
  std::string path;
  std::uint64_t device = 0, inode = 0;  // a bind goes with these, not with the path
};
std::vector<LentFolder> read_folders(std::string_view note);
std::string write_folders(const std::vector<LentFolder>& folders);
// `system`: what the container has of the host anyway.
bool has_folder(const std::vector<LentFolder>& folders, const std::vector<HostPath>& system, const std::string& wanted);
Result<std::vector<LentFolder>> folders_to_lend(std::vector<LentFolder> folders, const std::vector<HostPath>& system,
                                                const std::vector<std::string>& wanted);

// Of the container itself.
struct ContainerLimits {
  std::uint64_t memory = 0, pids = 0;
  std::uint32_t cpus = 1000;                // thousandths
  std::uint64_t io_read = 0, io_write = 0;  // bytes per second of each disk; 0: no limit
  bool named = false;                       // by the user: what cannot be had is an error
  bool none = false;                        // Podman may not set any
};
// What PCTX_SANDBOX_CONTAINER_LIMITS says, over the defaults.
Result<ContainerLimits> read_limits(std::string_view text, ContainerLimits defaults);
std::vector<std::string> limit_arguments(const ContainerLimits& limits, const std::vector<std::string>& disks);
std::string shown_limits(const ContainerLimits& limits);
std::vector<std::string> disks_of_the_host();
// Which limits can be had here, by what 'podman info' says of cgroups: their version and controllers ("[cpu memory]").
std::string shown_controllers(std::string_view version, std::vector<std::string_view> controllers);

// Everything that the container's command line depends on.
struct ContainerSpec {
  Place place;
  uid_t caller_uid = 0;
  gid_t caller_gid = 0;
  std::string podman, runtime;                   // runtime: empty for Podman's own choice
  std::string image;                             // an id, or the name that the user gave
  bool own_image = true;                         // ours has no system of its own: the host's is lent
  std::string program;                           // of the host, lent where the image is not ours
  std::string profile;                           // file
  std::string apparmor;                          // a loaded profile; empty where Podman confines nothing by AppArmor
  std::string version, door;                     // door: name below `run`, empty for none
  std::vector<HostPath> system;                  // the target of a file is its copy in `place.system`
  std::vector<LentFolder> lent;                  // read-only
  std::string store;                             // of Environments, read-write; empty where they are built outside
  std::uint64_t files = 1024, processes = 1024;  // rlimits
  ContainerLimits limits;
  std::vector<std::string> disks;
};
std::vector<std::string> container_arguments(const ContainerSpec& spec);

// The folder, below /sys/fs/cgroup, that Podman made for the container of a process, by its /proc/PID/cgroup; empty if
// Podman made none for it and the process is somewhere among others.
std::string container_cgroup(const std::string& table);
// Lets the container's user divide the container's cgroup among boxes, and nobody in there change its limits. `first`
// is its first process, which is alone in it yet. An error: all is as before.
Result<void> hand_cgroup_over(pid_t first, uid_t uid, gid_t gid);

// The container's own system call filter, as OCI JSON: what guests may call, and what making boxes takes.
std::string seccomp_profile();

// The bytes of the image: an empty root, the host's links at its top, and `program`.
std::string image_archive(const std::vector<HostPath>& system, std::string_view program);

// On another machine: the way of callers to the Broker, once that answers, and one command.
Result<void> carry_callers(const Place& place, const BrokerAddress& address);
Result<int> execute_remotely(const Place& place, const Command& command);
// The line that runs a command in the container. `hangs_by` is the variable that ties it to this process.
std::vector<std::string> exec_words(const Place& place, const Command& command, const std::string& hangs_by);

// How long a command of Podman's may take, and how much of what it says is read.
inline constexpr Millis kPodmanPatience{120'000};
inline constexpr std::size_t kMostWords = 64_KiB;
// Whom a message is for: a name that a shell takes as it is, and the start of 65536 subordinate ids that nobody has.
struct Caller {
  std::string name;
  std::uint32_t free_ids = 0;
};
Caller caller();
// The AppArmor profile that the container must have here; empty for none, an error if it is not loaded.
Result<std::string> apparmor_profile();

// What Podman's words mean, and what to do. `user` is the caller's name.
enum class Trouble { other, no_image, in_the_way, no_limits, runtime_hybrid };
Trouble trouble_in(std::string_view words);
// Podman started the container, and says in passing that it leaves limits out.
bool leaves_limits_out(std::string_view words);
Error explain_failure(std::string_view words, const Caller& caller);
// Whether this is a Podman that our containers can be started with, by the version that it names.
Result<void> check_version(std::string_view version);
// The line that installs Podman here.
std::string install_command();

}  // namespace pctx::backend::podman
