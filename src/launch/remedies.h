// What this host lacks for a box, and the exact lines that give it. Pure: facts in, remedies out; `facts.h` gathers the
// facts, `doctor` shows the remedies, `setup` runs those that are root's to run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/probe.h"
#include "policy/layer.h"
#include "sys/diagnose.h"
#include "sys/host.h"

namespace pctx {

enum class PackageManager { none, apt, dnf, pacman };

inline constexpr int kOldestMajor = 5, kOldestMinor = 10;

// Everything that the advice depends on, as one identity sees it.
struct HostFacts {
  HostFeatures host;
  std::array<ProbedLayer, kLayers.size()> layers;  // what trying gave
  bool maps_own_id = true;                         // false: the layer `user` does not work, for that reason alone
  Container container = Container::none;
  // Switches of the kernel; absent where it has none of that name.
  std::optional<long> max_user_namespaces, userns_clone, apparmor_restricts_userns;
  bool proc_masked = false;              // something is mounted over parts of /proc
  std::string lsm;                       // the active security modules, empty if that cannot be read
  std::optional<bool> selinux_enforces;  // absent: no SELinux in this kernel
  std::string own_profile;               // the AppArmor profile that we run under, empty for none
  bool guest_profile = false;            // loaded, whether or not we may use it
  std::string launcher_profile;          // what is installed as ours, empty for nothing
  bool apparmor_parser = false;
  CgroupVersion cgroups = CgroupVersion::none;  // mounted, whether or not any is lent to us
  std::vector<std::string> controllers;         // that are lent to us, or to this user's systemd
  bool systemd = false;                         // it runs this host
  bool user_manager = false;                    // and an instance of it this user
  std::string user;                             // empty if unknown
  bool any_user = false;                        // tried as nobody, for ordinary users in general
  std::uint32_t free_subordinate_id = 100000;   // start of 65536 ids that nobody has
  PackageManager packages = PackageManager::none;
  std::string program;  // our own path

  const ProbedLayer& layer(Layer which) const { return layers[index(which)]; }
  bool works(Layer which) const { return layer(which).works; }
};

// One thing to do: a file to write, or a command.
struct Instruction {
  std::string file, content;
  std::string command;
  // The shell line that does it; a here-document for a file, so that it can be read before it is run.
  std::string line(std::string_view sudo = "") const;
};

enum class Doer {
  setup,      // root of this host, once: `pctx-sandbox setup`
  caller,     // whoever starts us: another way of calling, no change to the host
  container,  // whoever starts the container
  boot,       // the boot loader, or another kernel
};

struct Remedy {
  std::string about;    // a layer's name, or "kernel"
  bool blocks = false;  // without it no box runs
  Doer doer = Doer::setup;
  std::string why;
  std::vector<Instruction> steps;
};

// In the order in which they should be done: what blocks comes first.
std::vector<Remedy> remedies(const HostFacts& facts);

// What `setup` would run for root and, where one is known, for the user on whose behalf it runs. Nothing twice.
std::vector<Remedy> setup_actions(const HostFacts& root, const std::optional<HostFacts>& user);

// The launcher profile that names `program` too, and whatever was added to the installed one; nullopt if AppArmor would
// not take the path literally.
std::optional<std::string> launcher_profile_for(const std::string& program, const std::string& installed);

// How to call ourselves behind sudo, whose PATH knows few folders.
std::string own_name(const std::string& program);
const char* name(Container container);

}  // namespace pctx
