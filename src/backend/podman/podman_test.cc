#include "backend/podman/podman.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/namespaces.h"
#include "base/json.h"

namespace pctx::backend::podman {
namespace {

ContainerSpec example() {
  ContainerSpec spec;
  spec.place = {"/run/u/podman",      "/run/u/podman/run",    "/run/u/podman/support",
                "/run/u/podman/lent", "/run/u/podman/system", "agent"};
  spec.caller_uid = spec.caller_gid = 1001;
  spec.podman = "/usr/bin/podman";
  spec.image = "0123";
  spec.profile = "/run/u/podman/seccomp.json";
  spec.version = "9.9.9";
  spec.system = {{"/usr", PathKind::directory, ""},
                 {"/bin", PathKind::link, "usr/bin"},
                 {"/etc/ld.so.cache", PathKind::file, "/run/u/podman/system/copy"}};
  spec.limits = {.memory = 1 << 30, .pids = 1000, .cpus = 1500};
  return spec;
}

bool has(const std::vector<std::string>& words, std::initializer_list<std::string> wanted) {
  return std::search(words.begin(), words.end(), wanted.begin(), wanted.end()) != words.end();
}

TEST(PodmanContainer, HasNoRightsAndNoNetwork) {
  const auto words = container_arguments(example());
  EXPECT_TRUE(has(words, {"--cap-drop", "ALL"}));
  EXPECT_TRUE(has(words, {"--security-opt", "no-new-privileges"}));
  EXPECT_TRUE(has(words, {"--security-opt", "seccomp=/run/u/podman/seccomp.json"}));
  EXPECT_TRUE(has(words, {"--network", "none"}));
  EXPECT_TRUE(has(words, {"--read-only"}));
  EXPECT_TRUE(has(words, {"--pull", "never"}));
  EXPECT_TRUE(has(words, {"--memory", "1073741824b", "--memory-swap", "1073741824b"}));
  EXPECT_FALSE(has(words, {"--privileged"}));
  for (const std::string& word : words) {
    EXPECT_EQ(word.find("label=disable"), std::string::npos);
    EXPECT_EQ(word.find("apparmor="), std::string::npos);
  }
}

TEST(PodmanContainer, OnAnotherMachineNoSocketIsSharedAndThereIsNoDoor) {
  ContainerSpec spec = example();
  spec.door = "door-1.sock";
  const auto here = container_arguments(spec);
  spec.place.remote = true;
  const auto there = container_arguments(spec);
  const auto speaks_of = [](const std::vector<std::string>& words, const std::string& text) {
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& word) { return word.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(speaks_of(here, spec.place.run + ":/run/pctx:rw"));
  EXPECT_FALSE(speaks_of(there, spec.place.run + ":/run/pctx:rw"));
  EXPECT_TRUE(has(there, {"--tmpfs"}));
  EXPECT_TRUE(has(there, {"--env", "PCTX_SANDBOX_DOOR=none"}));
  EXPECT_FALSE(speaks_of(there, "door-1"));
  EXPECT_TRUE(has(here, {"--user", "1001:1001"}));
  EXPECT_FALSE(has(there, {"--user"}));
  EXPECT_TRUE(has(there, {"--network", "none"}));
}

TEST(PodmanContainer, IsConfinedByTheProfileThatLetsBoxesBeMade) {
  ContainerSpec spec = example();
  spec.apparmor = "lets-boxes";
  EXPECT_TRUE(has(container_arguments(spec), {"--security-opt", "apparmor=lets-boxes"}));
}

TEST(PodmanContainer, LendsTheSystemReadOnlyAndLinksAsLinks) {
  const auto words = container_arguments(example());
  EXPECT_TRUE(has(words, {"--volume", "/usr:/usr:ro"}));
  EXPECT_FALSE(has(words, {"--volume", "/bin:/bin:ro"}));
  EXPECT_TRUE(has(words, {"--volume", "/run/u/podman/system/copy:/etc/ld.so.cache:ro"}));
}

TEST(PodmanLimits, AreReadOverTheDefaults) {
  const ContainerLimits defaults{.memory = 1 << 30, .pids = 1000, .cpus = 2000};
  const auto none = read_limits("", defaults);
  ASSERT_TRUE(none.has_value());
  EXPECT_FALSE(none->named);
  const auto some = read_limits("memory=2G,io-read=50M,cpus=0.5", defaults);
  ASSERT_TRUE(some.has_value());
  EXPECT_TRUE(some->named);
  EXPECT_EQ(some->memory, std::uint64_t{2} << 30);
  EXPECT_EQ(some->pids, 1000U);
  const auto words = limit_arguments(*some, {"/dev/a", "/dev/b"});
  EXPECT_TRUE(has(words, {"--cpus", "0.5", "--pids-limit", "1000"}));
  EXPECT_TRUE(has(words, {"--device-read-bps", "/dev/a:52428800", "--device-read-bps", "/dev/b:52428800"}));
  EXPECT_EQ(std::count(words.begin(), words.end(), "--device-write-bps"), 0);
  EXPECT_NE(shown_limits(*some).find("disks read 50 MiB a second, disks write unlimited"), std::string::npos);
  for (const char* wrong : {"memory", "memory=x", "memory=1", "disk=1G", "cpus=-1", "cpus=0", "pids=1", "pids=many"})
    EXPECT_FALSE(read_limits(wrong, defaults).has_value()) << wrong;
}

TEST(PodmanLimits, ThatPodmanLeavesOutAreNoticed) {
  EXPECT_TRUE(leaves_limits_out("Resource limits are not supported and ignored on cgroups V1 rootless systems"));
  EXPECT_FALSE(leaves_limits_out(""));
  EXPECT_TRUE(limit_arguments({.none = true}, {"/dev/a"}).empty());
}

class LentFolders : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(top_.data()), nullptr); }
  void TearDown() override {
    for (const char* name : {"/a,b", "/a", "/b", ""}) (void)::rmdir((top_ + name).c_str());
  }
  std::string make(const char* name) {
    std::string path = top_ + name;
    EXPECT_EQ(::mkdir(path.c_str(), 0755), 0) << path;
    return path;
  }
  std::string top_ = "/tmp/pctx-folders-XXXXXX";
  const std::vector<HostPath> system_{{"/usr", PathKind::directory, ""}};
};

TEST_F(LentFolders, AreKnownByWhatTheyAreAndNotByTheirNameAlone) {
  const std::string a = make("/a");
  auto folders = folders_to_lend({}, system_, {a, "/usr/lib", a});
  ASSERT_TRUE(folders.has_value());
  ASSERT_EQ(folders->size(), 1U);  // the system is there anyway
  const auto known = read_folders(write_folders(*folders));
  EXPECT_TRUE(has_folder(known, system_, a));
  EXPECT_TRUE(has_folder(known, system_, a + "/below"));
  EXPECT_TRUE(has_folder(known, system_, "/usr/lib"));
  EXPECT_FALSE(has_folder(known, {}, "/usr/lib"));
  EXPECT_FALSE(has_folder(known, system_, a + "b"));
  const std::string b = make("/b");  // holds the place, so that the next one is another
  ASSERT_EQ(::rmdir(a.c_str()), 0);
  ASSERT_EQ(::rename(b.c_str(), a.c_str()), 0);
  EXPECT_FALSE(has_folder(known, system_, a));
  const auto again = folders_to_lend(known, system_, {});
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(has_folder(*again, system_, a));
}

TEST_F(LentFolders, StayForLaterCallersUntilTheyAreGone) {
  const std::string a = make("/a"), b = make("/b");
  const auto first = folders_to_lend({}, system_, {a});
  const auto second = folders_to_lend(*first, system_, {b});
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(has_folder(*second, system_, a) && has_folder(*second, system_, b));
  ASSERT_EQ(::rmdir(a.c_str()), 0);
  EXPECT_EQ(folders_to_lend(*second, system_, {})->size(), 1U);
  const auto above = folders_to_lend(*second, system_, {top_});
  ASSERT_EQ(above->size(), 1U);
  EXPECT_EQ(above->front().path, top_);
}

TEST_F(LentFolders, AreRefusedByNamesThatPodmanWouldMisread) {
  EXPECT_FALSE(folders_to_lend({}, system_, {make("/a,b")}).has_value());
  EXPECT_FALSE(folders_to_lend({}, system_, {"/"}).has_value());
  EXPECT_FALSE(folders_to_lend({}, system_, {"relative"}).has_value());
  EXPECT_FALSE(folders_to_lend({}, system_, {top_ + "/nowhere"}).has_value());
  EXPECT_TRUE(read_folders("no number\n\n7\n").size() <= 1);
}

TEST(PodmanLimits, OfRunsTakeACgroupThatCanBeDivided) {
  EXPECT_EQ(shown_controllers("v2", {"[cpu", "memory", "pids]"}),
            "can limit memory, CPUs, processes of the container and of each run in it");
  EXPECT_EQ(shown_controllers("v2", {"[cpu]"}),
            "can limit CPUs of the container; limits of a run in it bind without cgroups");
  EXPECT_EQ(shown_controllers("v1", {"[blkio", "memory", "pids]"}),
            "can limit memory, processes, disks of the container; limits of a run in it bind without cgroups");
  EXPECT_EQ(shown_controllers("v1", {"[]"}), "cannot limit the container");
}

TEST(PodmanCgroup, IsOneThatPodmanMade) {
  EXPECT_EQ(container_cgroup("0::/machine.slice/libpod-1a.scope/container\n"),
            "/machine.slice/libpod-1a.scope/container");
  EXPECT_EQ(container_cgroup("0::/libpod_parent/libpod-1a\n"), "/libpod_parent/libpod-1a");
  // Left in its caller's, or in the hierarchies of v1.
  EXPECT_EQ(container_cgroup("0::/user.slice/user-1.slice/session-2.scope\n"), "");
  EXPECT_EQ(container_cgroup("4:memory:/machine.slice/libpod-1a.scope\n0::/\n"), "");
  EXPECT_EQ(container_cgroup(""), "");
}

TEST(PodmanCgroup, IsNotHandedOverWhereOthersAreInIt) {
  // This process is in no container of Podman's, or not alone in it.
  EXPECT_FALSE(hand_cgroup_over(::getpid(), ::geteuid(), ::getegid()));
}

TEST(PodmanContainer, IsTheCallersUserOrNobodysButNeverRoot) {
  ContainerSpec spec = example();
  EXPECT_TRUE(has(container_arguments(spec), {"--userns", "keep-id", "--user", "1001:1001"}));
  spec.place.rootful = true;
  const auto words = container_arguments(spec);
  EXPECT_TRUE(has(words, {"--uidmap", "0:1887436800:65536"}));
  EXPECT_TRUE(has(words, {"--user", "1000:1000"}));
}

TEST(PodmanContainer, AnImageOfTheUsersHasItsOwnSystem) {
  ContainerSpec spec = example();
  spec.own_image = false;
  spec.program = "/opt/pctx-sandbox";
  const auto words = container_arguments(spec);
  EXPECT_FALSE(has(words, {"--volume", "/usr:/usr:ro"}));
  EXPECT_TRUE(has(words, {"--volume", "/opt/pctx-sandbox:/pctx-sandbox:ro"}));
}

TEST(PodmanProfile, LetsBoxesBeMadeAndLittleElse) {
  const auto profile = Json::parse(seccomp_profile());
  const auto lists = [&](int index, const char* name) {
    const auto& names = profile["syscalls"][static_cast<std::size_t>(index)]["names"];
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const char* name : {"read", "clone", "unshare", "mount", "pivot_root", "seccomp"})
    EXPECT_TRUE(lists(0, name)) << name;
  for (const char* name :
       {"bpf", "ptrace", "kexec_load", "init_module", "io_uring_setup", "perf_event_open", "reboot"}) {
    EXPECT_FALSE(lists(0, name)) << name;
    EXPECT_TRUE(lists(1, name)) << name;
  }
  EXPECT_EQ(profile["syscalls"][1]["errnoRet"], 1);
  EXPECT_EQ(profile["defaultErrnoRet"], 38);
}

TEST(PodmanImage, IsAnArchiveWithTheProgramInIt) {
  const std::string archive = image_archive({{"/bin", PathKind::link, "usr/bin"}}, "PROGRAM");
  EXPECT_EQ(archive.size() % 512, 0U);
  EXPECT_EQ(archive.substr(257, 5), "ustar");
  const std::size_t at = archive.find("PROGRAM");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(archive.substr(at - 512, 12), "pctx-sandbox");
  EXPECT_NE(archive.find("usr/bin"), std::string::npos);
}

struct Said {
  const char* words;
  const char* cause;
  const char* fix;
};

TEST(PodmanTrouble, IsExplained) {
  for (const Said& said : {
           Said{"Error: no subuid ranges found for user \"u\" in /etc/subuid", "subordinate ids",
                "usermod --add-subuids 231072-296607 --add-subgids 231072-296607 u "},
           Said{"Error: crun: cgroups in hybrid mode not supported: OCI runtime error", "crun", "runc"},
           Said{"Error: writing blob: no space left on device", "full", "prune"},
           Said{"Error: 'overlay' is not supported over overlayfs, a mount_program is required", "inside a container",
                "volume"},
           Said{"Error: something new\n", "something new", "podman info"},
       }) {
    const Error error = explain_failure(said.words, {"u", 231072});
    EXPECT_NE(error.what.find(said.cause), std::string::npos) << error.what;
    EXPECT_NE(error.hint.find(said.fix), std::string::npos) << error.hint;
  }
}

TEST(PodmanTrouble, IsToldApart) {
  EXPECT_EQ(trouble_in("Error: 0123: image not known"), Trouble::no_image);
  EXPECT_EQ(trouble_in("Error: the container name \"x\" is already in use"), Trouble::in_the_way);
  EXPECT_EQ(trouble_in("Error: crun: cgroups in hybrid mode not supported"), Trouble::runtime_hybrid);
  EXPECT_EQ(trouble_in("Error: crun: controller `memory` is not available under /sys/fs/cgroup"), Trouble::no_limits);
  EXPECT_EQ(trouble_in("Error: whatever"), Trouble::other);
}

TEST(PodmanVersion, FourIsTheOldest) {
  for (const char* version : {"4.0.0", "4.3.1", "4.9.3+ds1", "5.4.2", "5.0.0-dev", "10.0.0"})
    EXPECT_TRUE(check_version(version).has_value()) << version;
  for (const char* version : {"3.4.4", "3.4.4+ds1", "1.6.4"}) {
    const auto checked = check_version(version);
    ASSERT_FALSE(checked.has_value()) << version;
    EXPECT_EQ(checked.error().what, fmt::format("Podman {} is too old: 4.0 or newer is needed", version));
    EXPECT_NE(checked.error().hint.find("--backend namespaces"), std::string::npos);
  }
  for (const char* version : {"", "4", "<no", "-4.0.0", "99999999999.0"})
    EXPECT_FALSE(check_version(version).has_value()) << version;
}

TEST(Backends, AutoIsNamespacesUnlessTheyAreRefusedAndPodmanWorks) {
  const Standing works{true, "works", ""}, fails{false, "refused", "fix"};
  EXPECT_EQ(decide(works, works).backend->name, "namespaces");
  EXPECT_EQ(decide(fails, works).backend->name, "podman");
  EXPECT_EQ(decide(fails, works).reason, "refused; works");
  EXPECT_EQ(decide(fails, fails).backend->name, "namespaces");
}

TEST(Backends, AreFoundByName) {
  for (const Backend& each : backends()) EXPECT_EQ(*find(each.name), &each);
  const auto unknown = find("docker");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().hint.find("podman"), std::string::npos);
}

}  // namespace
}  // namespace pctx::backend::podman
