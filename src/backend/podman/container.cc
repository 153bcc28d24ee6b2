// The container's command line and image: pure.
#include <fmt/format.h>

#include "backend/podman/podman.h"
#include "net/door.h"
#include "sys/files.h"

namespace pctx::backend::podman {
namespace {

// A header of the oldest archive format that knows links; every name of ours is short.
std::string tar_header(std::string_view name, char type, unsigned mode, std::size_t size, std::string_view link) {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, std::string_view text) { header.replace(at, text.size(), text); };
  put(0, name);
  put(100, fmt::format("{:07o}", mode));
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", size));
  put(136, "00000000000");
  put(148, "        ");
  header[156] = type;
  put(157, link);
  put(257, "ustar");
  put(263, "00");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum));
  header[154] = '\0';
  return header;
}

void add_bind(std::vector<std::string>& words, const std::string& from, const std::string& to, const char* options) {
  words.insert(words.end(), {"--volume", fmt::format("{}:{}:{}", from, to, options)});
}

}  // namespace

std::string image_archive(const std::vector<HostPath>& system, std::string_view program) {
  std::string archive;
  for (const char* folder : {"dev", "etc", "home", "proc", "run", "sys", "tmp", "usr", "var"})
    archive += tar_header(fmt::format("{}/", folder), '5', 0755, 0, "");
  for (const char* folder : {"etc/ssl/", "run/pctx-support/", "run/pctx-lent/"})
    archive += tar_header(folder, '5', 0755, 0, "");
  // Some runtimes give a tmpfs the mode of the folder below it, whatever they are told.
  archive += tar_header("run/pctx/", '5', 01777, 0, "");
  for (const HostPath& entry : system)
    if (entry.kind == PathKind::link) archive += tar_header(entry.path.substr(1), '2', 0777, 0, entry.target);
  archive += tar_header(std::string_view{kProgramInside}.substr(1), '0', 0755, program.size(), "");
  archive += program;
  archive.resize((archive.size() + 511) / 512 * 512 + 1024);
  return archive;
}

std::vector<std::string> container_arguments(const ContainerSpec& spec) {
  const Place& place = spec.place;
  std::vector<std::string> words{spec.podman};
  if (!spec.runtime.empty()) words.insert(words.end(), {"--runtime", spec.runtime});
  words.insert(words.end(), {"run", "--detach", "--replace", "--name", place.container, "--pull", "never"});
  // A standard input of its own, which nobody writes to. Otherwise it is the host's /dev/null, and as root some
  // runtimes (crun 1.8) give that to the container's first user.
  words.emplace_back("--interactive");
  words.insert(words.end(), {"--hostname", "pctx-sandbox", "--no-hosts", "--network", "none", "--stop-timeout", "5",
                             "--log-driver", "k8s-file", "--log-opt", "max-size=1mb"});
  words.insert(words.end(), {"--label", fmt::format("pctx-sandbox={}", spec.version)});
  // The outer wall. The Broker makes user namespaces and mounts in there, for which it needs all of /proc unmasked and
  // must not be root; guests have neither: their own filter refuses both.
  words.insert(words.end(), {"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--security-opt", "unmask=ALL",
                             "--security-opt", fmt::format("seccomp={}", spec.profile), "--read-only",
                             "--read-only-tmpfs=false", "--ipc", "none", "--uts", "private", "--cgroupns", "private"});
  if (!spec.apparmor.empty()) words.insert(words.end(), {"--security-opt", fmt::format("apparmor={}", spec.apparmor)});
  if (place.rootful) {
    const std::string map = fmt::format("0:{}:{}", kFirstId, kIds);
    words.insert(words.end(), {"--uidmap", map, "--gidmap", map});
    words.insert(words.end(), {"--user", fmt::format("{}:{}", kUserInside, kUserInside)});
    words.insert(words.end(), {"--env", fmt::format("{}={}", kOwnUidVariable, place.uid)});
  } else {
    words.insert(words.end(), {"--userns", "keep-id"});
    // On another machine the user may have another id, which is Podman's own choice then.
    if (!place.remote) words.insert(words.end(), {"--user", fmt::format("{}:{}", spec.caller_uid, spec.caller_gid)});
  }
  // Always said: some runtimes raise what is left open beyond what the caller may have, and fail.
  words.insert(words.end(), {"--ulimit", fmt::format("nofile={0}:{0}", spec.files), "--ulimit",
                             fmt::format("nproc={0}:{0}", spec.processes), "--ulimit", "core=0:0"});
  const std::vector<std::string> limits = limit_arguments(spec.limits, spec.disks);
  words.insert(words.end(), limits.begin(), limits.end());
  if (spec.own_image) {
    for (const HostPath& entry : spec.system) {
      if (entry.kind == PathKind::directory) add_bind(words, entry.path, entry.path, "ro");
      if (entry.kind == PathKind::file) add_bind(words, entry.target, entry.path, "ro");
    }
  } else {
    add_bind(words, spec.program, kProgramInside, "ro");
  }
  for (const LentFolder& folder : spec.lent) add_bind(words, folder.path, folder.path, "ro");
  if (!spec.store.empty()) {
    add_bind(words, spec.store, spec.store, "rw");
    words.insert(words.end(), {"--env", fmt::format("PCTX_SANDBOX_CACHE_DIR={}", spec.store)});
  }
  add_bind(words, place.support, kSupportInside, "ro");
  add_bind(words, place.lent, kLentInside, "rw");
  if (place.remote)
    words.insert(words.end(),
                 {"--tmpfs", fmt::format("{}:rw,nosuid,nodev,noexec,notmpcopyup,size=1m,mode=1777", kRunInside)});
  else
    add_bind(words, place.run, kRunInside, "rw,Z");
  words.insert(words.end(), {"--env", fmt::format("PCTX_SANDBOX_SOCKET={}/broker-{}.sock", kRunInside, spec.version)});
  words.insert(words.end(), {"--env", "HOME=/home"});
  if (place.remote)
    words.insert(words.end(), {"--env", fmt::format("PCTX_SANDBOX_DOOR={}", net::kNoDoor)});
  else if (!spec.door.empty())
    words.insert(words.end(), {"--env", fmt::format("PCTX_SANDBOX_DOOR={}/{}", kRunInside, spec.door)});
  words.insert(words.end(), {spec.image, kProgramInside, "serve", "--foreground", "--inside"});
  return words;
}

}  // namespace pctx::backend::podman
