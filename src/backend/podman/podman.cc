// The container's life: found, repaired or started. Every Podman command takes a tenth of a second, so the way on which
// nothing is wrong runs one of them at most.
#include "backend/podman/podman.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include <fmt/format.h>

#include "backend/copies.h"
#include "backend/namespaces.h"
#include "base/json.h"
#include "base/print.h"
#include "base/units.h"
#include "broker/address.h"
#include "env/store.h"
#include "env/tree.h"
#include "net/door.h"
#include "sys/files.h"
#include "sys/process.h"
#include "wire/packet.h"

namespace pctx::backend::podman {
namespace {

constexpr Millis kBrokerPatience{60'000};
constexpr int kAnswerMillis = 3000, kWokenMillis = 300, kBusyMillis = 30'000;
constexpr std::uint64_t kMostFiles = 65536, kMostProcesses = 16384;
constexpr const char* kStampLabel = "pctx-sandbox-program";

Result<std::string> podman_program() {
  std::string found = sys::find_program("podman");
  if (found.empty()) return unavailable("Podman is not installed", install_command());
  return found;
}

Result<sys::Finished> podman(std::vector<std::string> words, int input = -1) {
  words.insert(words.begin(), PCTX_TRY(podman_program()));
  return sys::run_program(words, input, kMostWords, kPodmanPatience);
}

enum class Answer { yes, no_relay, silence, nobody };

// A container that is paused takes connections, and says nothing.
Answer ask(const BrokerAddress& address, int millis) {
  const auto broker = connect_broker(address);
  if (!broker || !wire::send(broker->get(), R"({"status": {}})")) return Answer::nobody;
  pollfd answer{broker->get(), POLLIN, 0};
  if (::poll(&answer, 1, millis) <= 0) return Answer::silence;
  wire::Packet packet;
  if (wire::receive(broker->get(), packet) != wire::Received::packet) return Answer::nobody;
  // Somebody typed `podman restart`, or the process outside was killed: a way to the relay is had by a new start only.
  const auto status = Json::parse(packet.text, nullptr, false);
  return status.is_object() && status.value("relay", true) ? Answer::yes : Answer::no_relay;
}

std::string image_of_the_user() {
  const char* named = std::getenv("PCTX_SANDBOX_IMAGE");
  return named != nullptr ? named : "";
}

std::string limits_of_the_user() {
  const char* named = std::getenv("PCTX_SANDBOX_CONTAINER_LIMITS");
  return named != nullptr ? named : "";
}

Error limits_refused(std::string_view words) {
  std::string said{words.substr(0, std::min<std::size_t>(words.size(), 600))};
  said.resize(said.find_last_not_of('\n') + 1);
  std::replace(said.begin(), said.end(), '\n', ' ');
  return unavailable(
      fmt::format("Podman may not set the container's limits for this user (it says: {})", said),
      "unset PCTX_SANDBOX_CONTAINER_LIMITS; limits without root take cgroup v2 with delegated controllers");
}

// Copies for callers that were killed: nobody else knows of them.
void sweep_lent(const Place& place) {
  const auto folder = sys::open_at(AT_FDCWD, place.lent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!folder) return;
  for (const std::string& name : env::names_below(folder->get(), ".")) {
    const std::size_t dash = name.find('-');
    const int pid = dash == std::string::npos ? 0 : std::atoi(name.c_str() + dash + 1);
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) (void)env::remove_tree(folder->get(), name);
  }
}

// Small files beside the lock that say what the container and its image were made from.
std::string read_note(const Place& place, const char* name) {
  return sys::try_read_file(sys::join(place.folder, name), 64_KiB).value_or("");
}

Result<void> write_note(const Place& place, const char* name, std::string_view text) {
  const std::string path = sys::join(place.folder, name), fresh = path + ".new";
  {
    const Fd fd = PCTX_TRY(sys::open_at(AT_FDCWD, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600));
    PCTX_TRY(sys::write_all(fd.get(), text));
  }
  return ::rename(fresh.c_str(), path.c_str()) == 0 ? Result<void>{} : os_error(fmt::format("cannot write {}", path));
}

// Changes whenever the program does.
std::string program_stamp(const std::string& version) {
  struct stat status {};
  (void)::stat("/proc/self/exe", &status);
  return fmt::format("{} {} {} {}.{}", version, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                     status.st_mtim.tv_nsec);
}

// Where this caller's Environments are; empty if a container cannot have them.
std::string store_folder() {
  const auto store = env::Store::open();
  return store && store->folder().find_first_of(":,\n") == std::string::npos ? store->folder() : "";
}

// What the host lends every container; an image of the user's own has a system of its own.
std::vector<HostPath> lent_system() {
  return image_of_the_user().empty() ? probe_host().system : std::vector<HostPath>{};
}

// Single files of the system are lent as copies: a bind holds the file, and whoever installs something puts another one
// in its place, after which no box can be made from that bind. Other content, another name: a container that runs keeps
// what it has.
Result<std::string> copy_of_system_file(const Place& place, const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return os_error(path);
  std::string name = path.substr(1);
  std::replace(name.begin(), name.end(), '/', '-');
  const std::string copy =
      fmt::format("{}/{}.{}.{}.{}", place.system, name, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  if (::access(copy.c_str(), R_OK) == 0) return copy;
  const std::string fresh = copy + ".new";
  (void)::unlink(fresh.c_str());
  PCTX_TRY(copy_file(path, fresh, ::geteuid(), ::getegid()));
  if (::chmod(fresh.c_str(), 0644) != 0 || ::rename(fresh.c_str(), copy.c_str()) != 0)
    return os_error(fmt::format("cannot prepare {}", copy));
  return copy;
}

// Those of containers before this one.
void sweep_system(const ContainerSpec& spec) {
  const auto folder = sys::open_at(AT_FDCWD, spec.place.system, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!folder) return;
  for (const std::string& name : env::names_below(folder->get(), ".")) {
    const std::string path = sys::join(spec.place.system, name);
    if (std::none_of(spec.system.begin(), spec.system.end(), [&](const HostPath& each) { return each.target == path; }))
      (void)::unlinkat(folder->get(), name.c_str(), 0);
  }
}

class Agent {
 public:
  Agent(Place place, const Wanted& wanted) : place_(std::move(place)), wanted_(wanted) {
    address_ = address_of(place_, wanted_.version);
  }

  Result<Reached> reach();

 private:
  bool has_what_is_wanted() const;
  Answer ask_broker(int millis = kAnswerMillis) const { return podman::ask(address_, millis); }
  Reached reached() const;
  Result<void> revive();
  Result<void> start();
  Result<ContainerSpec> specify();
  Result<std::string> have_image(bool afresh);
  Result<void> expect_podman();
  Result<std::string> copy_program() const;
  Result<void> wait_for_broker();
  std::vector<LentFolder> noted_folders() const { return read_folders(read_note(place_, "lent-folders")); }

  Place place_;
  const Wanted& wanted_;
  BrokerAddress address_;
  std::string stale_;  // an image that a newer one has taken the name of
  std::vector<std::string> notices_;
};

Reached Agent::reached() const {
  Reached reached{.address = address_, .support = place_.support, .support_seen = kSupportInside, .lent = place_.lent};
  reached.lent_seen = kLentInside;
  for (const LentFolder& each : noted_folders()) reached.as_they_are.push_back(each.path);
  for (const HostPath& each : lent_system())
    if (each.kind == PathKind::directory) reached.as_they_are.push_back(each.path);
  reached.user = place_.uid;
  reached.notices = notices_;
  reached.limits = read_note(place_, "limits");
  return reached;
}

bool Agent::has_what_is_wanted() const {
  if (read_note(place_, "image-of-the-user") != image_of_the_user() ||
      read_note(place_, "limits-of-the-user") != limits_of_the_user())
    return false;
  const std::vector<LentFolder> folders = noted_folders();
  const std::vector<HostPath> system = lent_system();
  const auto has = [&](const std::string& each) { return has_folder(folders, system, each); };
  const std::string store = store_folder();
  if (!store.empty() && !has(store + "/env") && !has(store + "/podman")) return false;
  return std::all_of(wanted_.lent.begin(), wanted_.lent.end(), has);
}

Result<Reached> Agent::reach() {
  const Answer before = has_what_is_wanted() ? ask_broker() : Answer::nobody;
  if (before == Answer::yes) return reached();
  // One repairs or starts, the others wait for it and find it done.
  const Fd lock = PCTX_TRY(sys::open_at(AT_FDCWD, place_.folder + "/lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  while (::flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) return os_error("cannot wait for another start of the container");
  PCTX_TRY(podman_program());
  // One that was silent a moment ago is paused, or somebody has woken it up.
  const Answer answer = ask_broker(before == Answer::silence ? kWokenMillis : kAnswerMillis);
  if (answer == Answer::yes && has_what_is_wanted()) return reached();
  // The container may run, and only the way to it be gone.
  if (place_.remote && answer == Answer::nobody && has_what_is_wanted() && carry_callers(place_, address_) &&
      ask_broker() == Answer::yes)
    return reached();
  if (answer == Answer::silence) {
    PCTX_TRY(revive());
    // On a machine that is busy beyond measure; replacing the container would end the calls that run in it.
    if (has_what_is_wanted() && ask_broker(kBusyMillis) == Answer::yes) return reached();
  }
  PCTX_TRY(start());
  return reached();
}

// Somebody paused it: whoever calls now wants it to go on.
Result<void> Agent::revive() {
  const auto state = PCTX_TRY(podman::podman({"inspect", "--format", "{{.State.Status}}", place_.container}));
  if (!state.out.starts_with("paused")) return {};
  const auto done = PCTX_TRY(podman::podman({"unpause", place_.container}));
  if (done.status != 0) return explain_failure(done.err, caller());
  return {};
}

// The id of the image for this program; made if there is none, or if it is an older one.
Result<std::string> Agent::have_image(bool afresh) {
  if (std::string named = image_of_the_user(); !named.empty()) return named;
  const std::string stamp = program_stamp(wanted_.version), note = read_note(place_, "image");
  const std::size_t line = note.find('\n');
  if (!afresh && line != std::string::npos && note.substr(0, line) == stamp) return note.substr(line + 1);
  // The note goes with a reboot, the image stays.
  const std::string label = fmt::format("{{{{.Id}}}} {{{{index .Labels \"{}\"}}}}", kStampLabel);
  const auto there = PCTX_TRY(podman::podman({"image", "inspect", "--format", label, kImage}));
  const std::size_t space = there.out.find(' ');
  const std::string before = there.status == 0 ? there.out.substr(0, space) : "";
  if (!before.empty() && there.out.substr(space + 1) == stamp + "\n") {
    PCTX_TRY(write_note(place_, "image", fmt::format("{}\n{}", stamp, before)));
    return before;
  }
  const std::string program = PCTX_TRY(sys::read_file("/proc/self/exe", 512_MiB));
  const std::string archive = image_archive(probe_host().system, program);
  const Fd file{::memfd_create("pctx-image", MFD_CLOEXEC)};
  if (!file) return os_error("cannot make the image");
  PCTX_TRY(sys::write_all(file.get(), archive));
  (void)::lseek(file.get(), 0, SEEK_SET);
  print_error("pctx-sandbox: building the image {} from this program ({})\n", kImage, format_size(archive.size()));
  const auto done =
      PCTX_TRY(podman::podman({"import", "--quiet", "--change", fmt::format("LABEL {}=\"{}\"", kStampLabel, stamp),
                               "--change", fmt::format("LABEL pctx-sandbox={}", wanted_.version), "-", kImage},
                              file.get()));
  if (done.status != 0) return explain_failure(done.err, caller());
  std::string id = done.out.substr(0, done.out.find('\n'));
  if (id.starts_with("sha256:")) id = id.substr(7);
  PCTX_TRY(write_note(place_, "image", fmt::format("{}\n{}", stamp, id)));
  notices_.push_back(fmt::format("built the image {}, {}", kImage, format_size(archive.size())));
  if (before != id) stale_ = before;
  return id;
}

Result<ContainerSpec> Agent::specify() {
  ContainerSpec spec;
  spec.place = place_;
  spec.caller_uid = ::geteuid();
  spec.caller_gid = ::getegid();
  spec.podman = PCTX_TRY(podman_program());
  spec.version = wanted_.version;
  spec.profile = place_.folder + "/seccomp.json";
  spec.apparmor = PCTX_TRY(apparmor_profile());
  spec.own_image = image_of_the_user().empty();
  if (!spec.own_image) {
    std::array<char, 4096> self{};
    if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return os_error("cannot find this program");
    spec.program = place_.remote ? PCTX_TRY(copy_program()) : self.data();
  }
  spec.system = probe_host().system;
  if (spec.own_image)
    for (HostPath& entry : spec.system)
      if (entry.kind == PathKind::file) entry.target = PCTX_TRY(copy_of_system_file(place_, entry.path));
  std::vector<std::string> wanted = wanted_.lent;
  if (const std::string store = store_folder(); !store.empty()) {
    if (look_at_namespaces().usable) {
      wanted.push_back(store + "/env");
      // Below a folder that others cannot enter; the container's user must find its way to one Environment.
      if (place_.rootful) (void)::chmod(wanted.back().c_str(), 0711);
    } else {
      // Nobody outside can build in a box: they are built in the container, in a folder that is the container's.
      spec.store = store + "/podman";
      (void)::mkdir(spec.store.c_str(), 0700);
      if (place_.rootful && ::lchown(spec.store.c_str(), place_.uid, place_.gid) != 0)
        return os_error(fmt::format("cannot prepare {}", spec.store));
    }
  }
  spec.lent = PCTX_TRY(folders_to_lend(noted_folders(), lent_system(), wanted));
  std::erase_if(spec.lent, [&](const LentFolder& each) { return each.path == spec.store; });
  rlimit files{}, processes{};
  (void)::getrlimit(RLIMIT_NOFILE, &files);
  (void)::getrlimit(RLIMIT_NPROC, &processes);
  spec.files = std::min<std::uint64_t>(files.rlim_max, kMostFiles);
  spec.processes = std::min<std::uint64_t>(processes.rlim_max, kMostProcesses);
  struct sysinfo machine {};
  ContainerLimits limits;
  if (::sysinfo(&machine) == 0) limits.memory = std::uint64_t{machine.totalram} * machine.mem_unit / 4 * 3;
  limits.cpus = static_cast<std::uint32_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))) * 1000;
  limits.pids = spec.processes;
  spec.limits = PCTX_TRY(read_limits(limits_of_the_user(), limits));
  spec.processes = std::min(spec.processes, spec.limits.pids);
  spec.disks = disks_of_the_host();
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word) return os_error("no random numbers");
  spec.door = fmt::format("door-{:016x}.sock", word);
  return spec;
}

Result<void> Agent::start() {
  PCTX_TRY(expect_podman());
  sweep_lent(place_);
  ContainerSpec spec = PCTX_TRY(specify());
  PCTX_TRY(write_note(place_, "seccomp.json", seccomp_profile()));
  spec.image = PCTX_TRY(have_image(false));
  for (int attempt = 0;; ++attempt) {
    // A new one each time: whoever came in through the last one is gone.
    std::optional<net::Door> door;
    if (!place_.remote) door = PCTX_TRY(net::Door::open(sys::join(place_.run, spec.door), place_.uid, place_.gid));
    const auto done = PCTX_TRY(sys::run_program(container_arguments(spec), -1, kMostWords, kPodmanPatience));
    if (done.status == 0) {
      if (leaves_limits_out(done.err)) {
        if (spec.limits.named) {
          (void)podman::podman({"rm", "--force", "--ignore", place_.container});
          return limits_refused(done.err);
        }
        spec.limits.none = true;
      }
      // Where the cgroup cannot be had, limits inside bind without one, and the receipts say so.
      const auto welcome = [&](pid_t first) { (void)hand_cgroup_over(first, place_.uid, place_.gid); };
      if (door) PCTX_TRY(net::Door::serve_behind(*std::move(door), welcome));
      break;
    }
    const Trouble trouble = trouble_in(done.err);
    if (attempt >= 4) return explain_failure(done.err, caller());
    if (trouble == Trouble::no_image && spec.own_image) {
      spec.image = PCTX_TRY(have_image(true));
    } else if (trouble == Trouble::runtime_hybrid && spec.runtime.empty() && !place_.remote &&
               !sys::find_program("runc").empty()) {
      spec.runtime = "runc";
    } else if (trouble == Trouble::in_the_way) {
      // Half removed, or being removed: Podman's own clean-up runs beside us.
      (void)podman::podman({"rm", "--force", "--ignore", place_.container});
    } else if (trouble == Trouble::no_limits && spec.limits.named) {
      return limits_refused(done.err);
    } else if (trouble == Trouble::no_limits && !spec.limits.none) {
      spec.limits.none = true;
    } else {
      return explain_failure(done.err, caller());
    }
  }
  if (spec.limits.none)
    notices_.push_back("the container has no limits of its own: Podman may not set cgroups for this user");
  sweep_system(spec);
  // The image before has no name any more, and no container of ours.
  if (!stale_.empty()) (void)podman::podman({"rmi", stale_});
  std::string folders = write_folders(spec.lent);
  if (!spec.store.empty()) folders += write_folders(PCTX_TRY(folders_to_lend({}, {}, {spec.store})));
  PCTX_TRY(write_note(place_, "lent-folders", folders));
  PCTX_TRY(write_note(place_, "image-of-the-user", image_of_the_user()));
  PCTX_TRY(write_note(place_, "limits-of-the-user", limits_of_the_user()));
  PCTX_TRY(write_note(place_, "limits", shown_limits(spec.limits)));
  return wait_for_broker();
}

// A machine that is stopped is told from everything else that may be wrong; and a folder of a user is no folder of
// root's.
Result<void> Agent::expect_podman() {
  const auto info = PCTX_TRY(podman::podman({"info", "--format", "{{.Version.Version}} {{.Host.Security.Rootless}}"}));
  if (info.status != 0) return explain_failure(info.err, caller());
  const std::size_t space = std::min(info.out.find(' '), info.out.size());
  PCTX_TRY(check_version(std::string_view{info.out}.substr(0, space)));
  const bool rootless = std::string_view{info.out}.substr(space).starts_with(" true");
  if (!place_.remote || rootless != place_.rootful) return {};
  return place_.rootful
             ? unavailable("the Podman of the other machine runs as an ordinary user, and the caller is root",
                           "call it as that user")
             : unavailable("the Podman of the other machine runs as root, and the caller does not",
                           "use its rootless connection ('podman machine set --rootful=false')");
}

Result<std::string> Agent::copy_program() const {
  const std::string program = PCTX_TRY(sys::read_file("/proc/self/exe", 512_MiB));
  PCTX_TRY(write_note(place_, "pctx-sandbox", program));
  std::string path = place_.folder + "/pctx-sandbox";
  if (::chmod(path.c_str(), 0755) != 0) return os_error(fmt::format("cannot prepare {}", path));
  return path;
}

Result<void> Agent::wait_for_broker() {
  if (place_.remote) return carry_callers(place_, address_);
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  auto looked = began;
  while (Clock::now() - began < kBrokerPatience) {
    if (const Answer answer = ask_broker(); answer == Answer::yes || answer == Answer::no_relay) return {};
    const timespec pause{0, 3'000'000};
    ::nanosleep(&pause, nullptr);
    if (Clock::now() - looked < std::chrono::seconds{2}) continue;
    looked = Clock::now();
    const auto state = PCTX_TRY(podman::podman({"inspect", "--format", "{{.State.Status}}", place_.container}));
    if (state.status == 0 && (state.out.starts_with("running") || state.out.starts_with("created"))) continue;
    const auto words = PCTX_TRY(podman::podman({"logs", "--tail", "5", place_.container}));
    return unavailable(
        fmt::format("the container {} ended as soon as it started: {}{}", place_.container, words.out, words.err),
        "see 'pctx-sandbox doctor'");
  }
  return unavailable(fmt::format("the Broker in the container {} does not answer", place_.container),
                     fmt::format("look at 'podman logs {}'", place_.container));
}

}  // namespace

Result<Reached> reach(const Wanted& wanted) { return Agent{PCTX_TRY(find_place()), wanted}.reach(); }

}  // namespace pctx::backend::podman
