#include "box/head_start.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys/host.h"

namespace pctx {

bool outputs_are_one() {
  struct stat out {};
  struct stat err {};
  const auto can_be_written = [](int fd) { return (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY; };
  return ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
         out.st_ino == err.st_ino && can_be_written(STDOUT_FILENO) && can_be_written(STDERR_FILENO);
}

Result<std::unique_ptr<HeadStart>> HeadStart::begin(std::uint64_t namespaces, CgroupHost host, bool cpu_accounting,
                                                    bool one_output) {
  std::unique_ptr<HeadStart> head{new HeadStart};
  head->in = PCTX_TRY(sys::make_guest_pipe(0444));
  head->out = PCTX_TRY(sys::make_guest_pipe(0222));
  if (!one_output) head->err = PCTX_TRY(sys::make_guest_pipe(0222));
  const int err = (one_output ? head->out : head->err).write_end.get();
  // One cannot be moved into a cgroup as cheaply as one is born in it.
  if (host.version == CgroupVersion::v2)
    head->cgroup = PCTX_TRY(BoxCgroup::reserve(host, cpu_accounting, box_cgroup_name()));
  head->embryo = PCTX_TRY(Embryo::conceive(namespaces, {head->in.read_end.get(), head->out.write_end.get(), err},
                                           head->cgroup.directory()));
  head->namespaces_ = namespaces;
  head->host_ = std::move(host);
  return head;
}

std::unique_ptr<HeadStart> HeadStart::begin(const Policy& policy, bool one_output) {
  // What a host lacks is probed for when something may be left out, and not before.
  if (policy.allow_degraded.any()) return nullptr;
  auto head = begin(wanted_namespaces(policy), probe_cgroups(), accounts_cpu(policy), one_output);
  return head ? *std::move(head) : nullptr;
}

Result<std::unique_ptr<HeadStart>> HeadStart::begin(const Plan& plan, bool one_output) {
  return begin(plan.namespaces, plan.cgroup, accounts_cpu(plan.policy), one_output);
}

bool HeadStart::fits(const Plan& plan) const {
  return plan.namespaces == namespaces_ && plan.cgroup.version == host_.version && plan.cgroup.unified == host_.unified;
}

}  // namespace pctx
