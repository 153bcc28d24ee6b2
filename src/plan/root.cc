// The box's root: what it holds and in which order it is built.
#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "plan/network.h"
#include "plan/plan.h"
#include "sys/files.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

constexpr std::uint64_t kLent = abi::kMountRdonly | abi::kMountNosuid | abi::kMountNodev;
constexpr std::uint64_t kWritable = abi::kMountNosuid | abi::kMountNodev;
constexpr const char* kUser = "sandbox";

// The host's would tell little and cost a mount each. Names that programs ask for, by the numbers of IANA.
constexpr const char* kServices =
    "ftp 21/tcp\nssh 22/tcp\ntelnet 23/tcp\nsmtp 25/tcp mail\ndomain 53/tcp\ndomain 53/udp\ntftp 69/udp\n"
    "http 80/tcp www\nkerberos 88/tcp\nkerberos 88/udp\npop3 110/tcp\nntp 123/udp\nimap2 143/tcp imap\n"
    "snmp 161/udp\nldap 389/tcp\nldap 389/udp\nhttps 443/tcp\nhttps 443/udp\nsubmissions 465/tcp smtps\n"
    "syslog 514/udp\nsubmission 587/tcp\nldaps 636/tcp\nimaps 993/tcp\npop3s 995/tcp\nmysql 3306/tcp\n"
    "postgresql 5432/tcp\nredis 6379/tcp\nhttp-alt 8080/tcp\n";
constexpr const char* kProtocols =
    "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6 41 IPv6\nipv6-icmp 58 IPv6-ICMP\n";

struct Device {
  const char* name;
  unsigned major, minor;
};
constexpr std::array<Device, 6> kDevices{
    {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}};

// What an ordinary uid could still read there and has no business with: keys, addresses, interrupts by device and by
// processor (programs need /proc/stat, which has their sums by number), hardware, boot parameters, locks (those of open
// files are everybody's); and what would matter if the uid were root's. The rest of /proc is read-only.
struct Mask {
  const char* name;
  bool directory;
};
constexpr std::array<Mask, 17> kProcMasks{{{"acpi", true},
                                           {"asound", true},
                                           {"irq", true},
                                           {"scsi", true},
                                           {"cmdline", false},
                                           {"interrupts", false},
                                           {"kallsyms", false},
                                           {"kcore", false},
                                           {"key-users", false},
                                           {"keys", false},
                                           {"kmsg", false},
                                           {"latency_stats", false},
                                           {"locks", false},
                                           {"sched_debug", false},
                                           {"softirqs", false},
                                           {"sysrq-trigger", false},
                                           {"timer_list", false}}};

class RootBuilder {
 public:
  explicit RootBuilder(Plan& plan) : plan_(plan) {}

  void directory(std::string target, unsigned mode = 0755) {
    for (std::size_t at = target.find('/'); at != std::string::npos; at = target.find('/', at + 1))
      make(target.substr(0, at), 0755);
    make(std::move(target), mode);
  }
  void file(std::string target, std::string content) {
    parent(target);
    add({.kind = RootOpKind::file, .target = std::move(target), .text = std::move(content), .mode = 0644});
  }
  void zeros(std::string target, std::uint64_t size) {
    parent(target);
    add({.kind = RootOpKind::file, .target = std::move(target), .mode = 0444, .size = size});
  }
  void link(std::string target, std::string to) {
    parent(target);
    add({.kind = RootOpKind::link, .target = std::move(target), .text = std::move(to)});
  }
  void bind(std::string source, std::string target, bool is_directory, std::uint64_t attributes, bool inside = false) {
    if (!inside) is_directory ? directory(target) : parent(target);
    add({.kind = RootOpKind::bind,
         .target = std::move(target),
         .text = std::move(source),
         .attributes = attributes,
         .directory = is_directory,
         .inside = inside});
  }
  void device(const Device& device) {
    bind(fmt::format("/dev/{}", device.name), fmt::format("dev/{}", device.name), false,
         abi::kMountNosuid | abi::kMountNoexec);
    RootOp& op = plan_.root.back();
    op.device = true;
    op.major = device.major;
    op.minor = device.minor;
  }
  // A writable part of the root's own file system: one size and inode limit for all of them together.
  // `inside`: a folder that it has from the start.
  void scratch(std::string target, unsigned mode, std::string inside = "") {
    directory(target, mode);
    add({.kind = RootOpKind::scratch,
         .target = std::move(target),
         .text = std::move(inside),
         .attributes = kWritable,
         .mode = mode});
  }
  void add(RootOp op) { plan_.root.push_back(std::move(op)); }

 private:
  void parent(const std::string& target) {
    if (const std::size_t slash = target.rfind('/'); slash != std::string::npos) directory(target.substr(0, slash));
  }
  void make(std::string target, unsigned mode) {
    for (const RootOp& op : plan_.root)
      if (op.kind == RootOpKind::directory && op.target == target) return;
    add({.kind = RootOpKind::directory, .target = std::move(target), .mode = mode});
  }
  Plan& plan_;
};

std::string relative(const std::string& absolute) { return absolute.substr(1); }

void system_tree(RootBuilder& root, const HostFeatures& host) {
  for (const HostPath& entry : host.system) {
    // Links at the top (/bin → usr/bin) and for the clock are rebuilt; where they lead is lent already. /etc/localtime
    // leads into /usr/share/zoneinfo.
    if (entry.kind == PathKind::link)
      root.link(relative(entry.path), entry.target);
    else
      root.bind(entry.path, relative(entry.path), entry.kind == PathKind::directory, kLent);
  }
}

void synthetic_etc(RootBuilder& root, const Plan& plan) {
  const Policy& policy = plan.policy;
  const std::string name = policy.uid == 0 ? "root" : kUser;
  root.file("etc/passwd",
            fmt::format("{}:x:{}:{}:Sandbox:{}:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", name,
                        policy.uid, policy.uid, plan.home));
  root.file("etc/group", fmt::format("{}:x:{}:\nnogroup:x:65534:\n", name, policy.uid));
  root.file("etc/hosts", fmt::format("127.0.0.1 localhost {0}\n::1 localhost {0}\n", policy.hostname));
  root.file("etc/hostname", policy.hostname + "\n");
  root.file("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n");
  root.file("etc/services", kServices);
  root.file("etc/protocols", kProtocols);
  root.link("etc/mtab", "/proc/self/mounts");
  root.link("etc/os-release", "../usr/lib/os-release");
  if (policy.network == Network::host)
    root.bind("/etc/resolv.conf", "etc/resolv.conf", false, kLent);
  else
    root.file("etc/resolv.conf", plan.network ? fmt::format("nameserver {}\n", kNameServer) : "");
}

// Without mount_setattr only the top of a lent tree becomes read-only: what is mounted inside it would stay writable.
Result<void> check_submounts(const Plan& plan, const HostFeatures& host) {
  for (const RootOp& op : plan.root)
    for (const std::string& point : host.mount_points)
      if (op.kind == RootOpKind::bind && op.directory && point.size() > op.text.size() && point.starts_with(op.text) &&
          point[op.text.size()] == '/')
        return unavailable(fmt::format("{} has something mounted at {}, which Linux {} cannot make read-only with it",
                                       op.text, point, host.kernel),
                           "use Linux 5.12 or later, or lend folders without mounts in them");
  return {};
}

// What the caller puts into the box, and where: a file or folder that is lent, or an empty one in memory.
struct Placed {
  std::string target;
  const LentPath* lent = nullptr;
  bool writable = false;
  const Tmpfs* tmpfs = nullptr;
  bool inside = false;  // in something lent
  bool hold = false;    // a folder on the way to something
};

// Where a place is once the box's own links are followed, for example /var/tmp/x: places are compared by their names.
std::string behind_links(const Plan& plan, const std::string& place) {
  std::string target = relative(place);
  const auto leads_on = [&](const RootOp& op) {
    return op.kind == RootOpKind::link && (target + "/").starts_with(op.target + "/");
  };
  // As many as the kernel would follow: those of the host's root are as the host has them.
  for (int followed = 0; followed < 40; ++followed) {
    const auto op = std::find_if(plan.root.begin(), plan.root.end(), leads_on);
    if (op == plan.root.end()) break;
    const auto folder = std::filesystem::path{"/" + op->target}.parent_path();
    const auto led_to = folder / op->text / std::filesystem::path{target.substr(op->target.size())}.relative_path();
    target = relative(led_to.lexically_normal().string());
    if (target.ends_with('/')) target.pop_back();
  }
  return target;
}

// A place of the caller's, by the option or key that names it.
Result<std::string> place(const Plan& plan, std::string_view key, const std::string& written) {
  std::string target = behind_links(plan, written);
  if (target != relative(written) && is_reserved("/" + target))
    return usage_error(fmt::format("{}: {} is /{} in the box, which is made by the sandbox itself",
                                   plan.policy.names.of(key), written, target),
                       "choose another place in the box, for example /data");
  return target;
}

// What is lent read-only below a folder that may be written is no less so if a folder on the way to it cannot be moved
// away, and another be made in its place: on the host the other would be at the path that was to be kept. A folder on
// which something is mounted, itself for example, cannot.
void hold_ways(std::vector<Placed>& all) {
  std::set<std::string> ways;
  for (const Placed& each : all) {
    if (each.writable || each.lent == nullptr || !each.inside) continue;
    for (std::size_t end = each.target.find('/'); end != std::string::npos; end = each.target.find('/', end + 1)) {
      const std::string way = each.target.substr(0, end);
      const auto holds = [&](const Placed& other) { return way.starts_with(other.target + "/"); };
      const auto nearest = std::find_if(all.rbegin(), all.rend(), holds);
      const bool is_placed = std::ranges::find(all, way, &Placed::target) != all.end();
      if (nearest != all.rend() && nearest->writable && !is_placed) ways.insert(way);
    }
  }
  for (const std::string& way : ways) all.push_back({.target = way, .inside = true, .hold = true});
}

// Whatever lies in another one comes after it, however they were named: else it would be hidden, and what is lent
// read-only there be writable.
Result<std::vector<Placed>> placed_by_caller(const Plan& plan, const CompileInputs& inputs) {
  std::vector<Placed> all;
  if (inputs.mnt) all.push_back({.target = "mnt", .lent = &*inputs.mnt, .writable = true});
  for (std::size_t i = 0; i < plan.policy.binds.size(); ++i) {
    const Bind& bind = plan.policy.binds[i];
    all.push_back({.target = PCTX_TRY(place(plan, bind.key(), bind.target)),
                   .lent = &inputs.binds[i],
                   .writable = bind.writable});
  }
  for (const Tmpfs& tmpfs : plan.policy.tmpfs)
    all.push_back({.target = PCTX_TRY(place(plan, "files.tmpfs", tmpfs.target)), .tmpfs = &tmpfs});
  const auto depth = [](const Placed& each) { return std::count(each.target.begin(), each.target.end(), '/'); };
  std::stable_sort(all.begin(), all.end(),
                   [&](const auto& one, const auto& other) { return depth(one) < depth(other); });
  for (auto each = all.begin(); each != all.end(); ++each) {
    if (std::any_of(all.begin(), each, [&](const Placed& other) { return other.target == each->target; }))
      return usage_error(fmt::format("two things would lie at /{}", each->target),
                         "choose another place for one of them, for example /data");
    const auto holds = [&](const Placed& other) { return each->target.starts_with(other.target + "/"); };
    const auto nearest = std::find_if(std::make_reverse_iterator(each), all.rend(), holds);
    if (nearest == all.rend()) continue;
    each->inside = nearest->tmpfs == nullptr;
    if (nearest->inside && !each->inside)
      return usage_error(fmt::format("/{} would lie in a --tmpfs that lies in a lent folder", each->target),
                         "choose another place for one of them, for example /data");
  }
  hold_ways(all);
  std::stable_sort(all.begin(), all.end(),
                   [&](const auto& one, const auto& other) { return depth(one) < depth(other); });
  return all;
}

// A folder cannot be mounted over a file, nor a file over a folder, and nothing lies below a file.
Result<void> check_places(const Plan& plan, const CompileInputs& inputs) {
  for (std::size_t i = 0; i < plan.policy.binds.size(); ++i) {
    const Bind& bind = plan.policy.binds[i];
    const std::string target = behind_links(plan, bind.target);
    const bool folder = inputs.binds[i].directory;
    for (const RootOp& op : plan.root) {
      const bool file_there = op.kind == RootOpKind::file || (op.kind == RootOpKind::bind && !op.directory);
      const bool folder_there = op.kind == RootOpKind::directory || op.kind == RootOpKind::scratch;
      const bool in_the_way = op.target == target ? (folder ? file_there : folder_there)
                                                  : file_there && target.starts_with(op.target + "/");
      if (in_the_way)
        return usage_error(
            fmt::format("{}: {} cannot be a {}: /{} is a {} in the box", plan.policy.names.of(bind.key()), bind.target,
                        folder ? "folder" : "file", op.target, file_there ? "file" : "folder"),
            "choose another place, for example /data");
    }
  }
  return {};
}

}  // namespace

std::string host_place(const Plan& plan, const std::string& path) {
  const std::string target = behind_links(plan, std::filesystem::path{path}.lexically_normal().string());
  // What lies in another place comes after it.
  const auto holds = [&](const RootOp& op) {
    return op.kind != RootOpKind::directory && op.kind != RootOpKind::hold && sys::is_at_or_inside(target, op.target);
  };
  const auto op = std::find_if(plan.root.rbegin(), plan.root.rend(), holds);
  if (op == plan.root.rend() || op->kind != RootOpKind::bind) return "";
  return op->text + target.substr(op->target.size());
}

Result<void> plan_root(Plan& plan, const HostFeatures& host, const CompileInputs& inputs) {
  const Policy& policy = plan.policy;
  plan.root.reserve(128);  // what a usual box needs, and some: they are large to move
  RootBuilder root{plan};
  plan.attach_point = host.attach_point;
  plan.home = fmt::format("/home/{}", kUser);
  system_tree(root, host);
  synthetic_etc(root, plan);
  root.directory("run");
  root.directory("var/empty");
  root.link("var/tmp", "../tmp");
  root.link("var/run", "../run");
  root.scratch("tmp", 01777);
  root.scratch(relative(plan.home), 0755, kCacheFolder);

  for (const Device& device : kDevices) {
    // Mapped shared, the device is memory that only a cgroup counts. A file of zeros reads the same.
    if (std::string_view{device.name} == "zero" && host.cgroup.version == CgroupVersion::none)
      root.zeros("dev/zero", 1ULL << 40);
    else
      root.device(device);
  }
  root.scratch("dev/shm", 01777);
  root.link("dev/fd", "/proc/self/fd");
  root.link("dev/stdin", "/proc/self/fd/0");
  root.link("dev/stdout", "/proc/self/fd/1");
  root.link("dev/stderr", "/proc/self/fd/2");
  root.directory("dev/pts");
  root.add({.kind = RootOpKind::devpts, .target = "dev/pts", .attributes = abi::kMountNosuid | abi::kMountNoexec});
  root.link("dev/ptmx", "pts/ptmx");

  root.directory("proc");
  if (!inputs.missing.test(index(Layer::proc))) {
    root.add({.kind = RootOpKind::proc,
              .target = "proc",
              .attributes = abi::kMountRdonly | abi::kMountNosuid | abi::kMountNodev | abi::kMountNoexec});
    for (const Mask& mask : kProcMasks)
      root.add({.kind = RootOpKind::mask, .target = fmt::format("proc/{}", mask.name), .directory = mask.directory});
  }

  if (!inputs.mnt) root.directory("mnt");
  for (const Placed& placed : PCTX_TRY(placed_by_caller(plan, inputs))) {
    if (placed.hold) {
      root.add({.kind = RootOpKind::hold, .target = placed.target, .directory = true, .inside = true});
      continue;
    }
    if (placed.tmpfs != nullptr) {
      if (!placed.inside) root.directory(placed.target);
      root.add({.kind = RootOpKind::tmpfs,
                .target = placed.target,
                .text = fmt::format("size={},nr_inodes={},mode=1777", placed.tmpfs->size, policy.limits.inodes),
                .attributes = kWritable,
                .inside = placed.inside});
      continue;
    }
    root.bind(placed.lent->path, placed.target, placed.lent->directory, placed.writable ? kWritable : kLent,
              placed.inside);
    plan.root.back().lent = *placed.lent;
    plan.root.back().idmap = host.privileged && plan.ids.host_uid != placed.lent->uid;
  }
  // Our own entries must not eat the guest's share.
  plan.root_options = fmt::format("size={},nr_inodes={},mode=0755", policy.limits.disk + 128_KiB,
                                  policy.limits.inodes + plan.root.size() + 8);
  plan.scratch_options = fmt::format("size={},nr_inodes={},mode=0755", policy.limits.disk, policy.limits.inodes + 8);
  PCTX_TRY(check_places(plan, inputs));
  return check_submounts(plan, host);
}

}  // namespace pctx
