// The machine's life: found, started or made. It stays until somebody stops it; the Broker in it leaves by itself.
#include "backend/lima/lima.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "backend/carried.h"
#include "backend/tether.h"
#include "base/print.h"
#include "base/sha256.h"
#include "base/units.h"
#include "env/store.h"
#include "sys/files.h"
#include "sys/process.h"
#include "wire/packet.h"

namespace pctx::backend::lima {
namespace {

// Fetching an image and booting it for the first time, on a slow line and without hardware support.
constexpr Millis kMakePatience{1'800'000}, kWordPatience{60'000};
constexpr std::size_t kMostWords = 256_KiB;
constexpr int kAnswerMillis = 5000;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

Result<std::string> limactl_program() {
  std::string found = sys::find_program("limactl");
  if (found.empty()) return unavailable("Lima is not installed", install_command());
  if (::geteuid() == 0) return unavailable("Lima does not run as root", "call as an ordinary user");
  return found;
}

Result<sys::Finished> limactl(std::vector<std::string> words, Millis patience) {
  words.insert(words.begin(), PCTX_TRY(limactl_program()));
  return sys::run_program(words, -1, kMostWords, patience);
}

// Its log, as it prints it: the last line that is no news of progress.
Error failure(std::string_view what, const sys::Finished& done, const std::string& instance) {
  std::string last;
  for (std::string_view line : sys::split(done.err, '\n'))
    if (line.find("level=fatal") != line.npos || line.find("level=error") != line.npos || last.empty()) last = line;
  return unavailable(fmt::format("{} (Lima says: {})", what, last.substr(0, 600)),
                     fmt::format("try 'limactl start {0}' by hand, or 'limactl delete --force {0}'", instance));
}

Result<void> make_private(const std::string& path) {
  (void)::mkdir(path.c_str(), 0700);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() ||
      (status.st_mode & 077) != 0)
    return unavailable(fmt::format("{} is not a folder that only this user can enter", path), "remove it");
  return {};
}

Result<void> write_whole(const std::string& path, std::string_view text, mode_t mode) {
  const std::string fresh = fmt::format("{}.{}", path, ::getpid());
  {
    const Fd fd = PCTX_TRY(sys::open_at(AT_FDCWD, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode));
    PCTX_TRY(sys::write_all(fd.get(), text));
  }
  return ::rename(fresh.c_str(), path.c_str()) == 0 ? Result<void>{} : os_error(fmt::format("cannot write {}", path));
}

// The machine runs this very program, by its content: another version has another name.
Result<std::string> have_program(const Place& place) {
  const std::string bytes = PCTX_TRY(sys::read_file("/proc/self/exe", 512_MiB));
  std::string path = fmt::format("{}-{}", place.program, sha256_hex(bytes).substr(0, 16));
  if (::access(path.c_str(), X_OK) != 0) PCTX_TRY(write_whole(path, bytes, 0755));
  return path;
}

bool answers(const BrokerAddress& address) {
  const auto broker = connect_broker(address);
  if (!broker || !wire::send(broker->get(), R"({"status": {}})")) return false;
  pollfd answer{broker->get(), POLLIN, 0};
  wire::Packet packet;
  return ::poll(&answer, 1, kAnswerMillis) > 0 && wire::receive(broker->get(), packet) == wire::Received::packet;
}

BrokerAddress address_of(const Place& place, const std::string& version) {
  return {place.shared, fmt::format("{}-{}.sock", place.callers, version)};
}

std::vector<std::string> inside(const Place& place, const std::string& program) {
  return {sys::find_program("limactl"), "shell", "--workdir", "/", place.instance, program};
}

Machine machine_for(const Place& place) {
  Machine machine{.shared = place.shared, .environments = place.environments};
  machine.image = variable("PCTX_SANDBOX_LIMA_IMAGE");
  machine.kernel = variable("PCTX_SANDBOX_LIMA_KERNEL");
  machine.initrd = variable("PCTX_SANDBOX_LIMA_INITRD");
  struct sysinfo host {};
  machine.memory = ::sysinfo(&host) == 0 ? std::uint64_t{host.totalram} * host.mem_unit / 2 : 2_GiB;
  machine.memory = std::clamp<std::uint64_t>(machine.memory, 1_GiB, 4_GiB);
  machine.cpus = static_cast<unsigned>(std::clamp(::sysconf(_SC_NPROCESSORS_ONLN), 1L, 4L));
  return machine;
}

Result<State> look_at(const Place& place) {
  const auto listed = PCTX_TRY(limactl({"list", "--json"}, kWordPatience));
  if (listed.status != 0) return failure("Lima does not list its machines", listed, place.instance);
  return state_of(listed.out, place.instance);
}

Result<void> have_machine(const Place& place, std::vector<std::string>& notices) {
  const State state = PCTX_TRY(look_at(place));
  if (state == State::running) return {};
  if (state == State::broken)
    return unavailable(fmt::format("the machine {} is broken or about to change", place.instance),
                       fmt::format("look at 'limactl list', or 'limactl delete --force {}'", place.instance));
  std::vector<std::string> words{"start", "--tty=false"};
  if (state == State::absent) {
    const std::string file = place.shared + "/machine.yaml";
    PCTX_TRY(write_whole(file, template_text(machine_for(place)), 0600));
    words.insert(words.end(), {"--name", place.instance, file});
    print_error("pctx-sandbox: making the virtual machine {} with Lima, which takes some minutes\n", place.instance);
    notices.push_back(fmt::format("made the virtual machine {}", place.instance));
  } else {
    words.push_back(place.instance);
  }
  const auto done = PCTX_TRY(limactl(std::move(words), kMakePatience));
  // "Degraded" is a failure to Lima, of forwarded ports for one; we need its shell and its folders only.
  if (done.status != 0 && PCTX_TRY(look_at(place)) != State::running)
    return failure(fmt::format("the machine {} did not start", place.instance), done, place.instance);
  return {};
}

}  // namespace

Result<Place> find_place() {
  Place place;
  const std::string named = variable("PCTX_SANDBOX_INSTANCE");
  place.instance = named.empty() ? "pctx-sandbox" : named;
  const auto store = PCTX_TRY(env::Store::open());
  const BrokerAddress beside = PCTX_TRY(broker_address(""));
  place.shared = fmt::format("{}/lima-{}", store.folder(), place.instance);
  place.environments = store.folder() + "/env";
  place.support = place.shared + "/support";
  place.lent = place.shared + "/lent";
  place.program = place.shared + "/pctx-sandbox";
  place.callers = fmt::format("{}lima-{}", beside.folder.empty() ? beside.socket + "." : beside.folder + "/",
                              sha256_hex(place.instance).substr(0, 12));
  for (const std::string& folder : {place.shared, place.support, place.lent}) PCTX_TRY(make_private(folder));
  return place;
}

Result<BrokerAddress> address(const std::string& version) { return address_of(PCTX_TRY(find_place()), version); }

Result<Reached> reach(const Wanted& wanted) {
  PCTX_TRY(limactl_program());
  for (const std::string& folder : wanted.lent)
    if (!folder.starts_with("/usr/"))
      return usage_error(fmt::format("the machine does not have {}", folder),
                         "call with the system's own Python, or with a folder that is copied (mnt_dir, --ro, --rw)");
  const Place place = PCTX_TRY(find_place());
  Reached reached{
      .address = address_of(place, wanted.version), .support = place.support, .support_seen = place.support};
  reached.lent = reached.lent_seen = place.lent;
  if (answers(reached.address)) return reached;
  // One starts it, the others wait for it and find it done.
  const Fd lock = PCTX_TRY(sys::open_at(AT_FDCWD, place.shared + "/lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  while (::flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) return os_error("cannot wait for another start of the machine");
  if (answers(reached.address)) return reached;
  PCTX_TRY(have_machine(place, reached.notices));
  std::vector<std::string> command = inside(place, PCTX_TRY(have_program(place)));
  command.emplace_back("carry");
  PCTX_TRY(carry_behind(reached.address, {.command = std::move(command), .patience = kWordPatience * 5}));
  return reached;
}

Result<int> execute(const Wanted& wanted, const Command& command) {
  PCTX_TRY(reach(wanted));
  const Place place = PCTX_TRY(find_place());
  const std::string program = PCTX_TRY(have_program(place));
  const std::string door = PCTX_TRY(random_socket("/tmp"));
  std::vector<std::string> hold = inside(place, program);
  hold.insert(hold.end(), {"carry", "--hold", door});
  const Tether held = PCTX_TRY(hold_outside(hold));
  std::vector<std::string> words = inside(place, "env");
  for (const auto& [name, value] : command.variables) words.push_back(fmt::format("{}={}", name, value));
  words.insert(words.end(), {fmt::format("{}={}", kTether, door), program});
  words.insert(words.end(), command.words.begin(), command.words.end());
  return run_with_our_streams(words);
}

Standing look() {
  if (sys::find_program("limactl").empty()) return {false, "Lima is not installed", install_command()};
  const auto version = limactl({"--version"}, kWordPatience);
  if (!version) return {false, version.error().what, version.error().hint};
  if (version->status != 0) return {false, "'limactl --version' fails", "try it by hand"};
  return {true, version->out.substr(0, version->out.find('\n')), ""};
}

}  // namespace pctx::backend::lima
