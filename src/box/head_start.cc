#include "box/head_start.h"

#include "sys/host.h"

namespace pctx {

Result<std::unique_ptr<HeadStart>> HeadStart::begin(std::uint64_t namespaces, CgroupHost host, bool cpu_accounting) {
  std::unique_ptr<HeadStart> head{new HeadStart};
  head->in = PCTX_TRY(sys::make_pipe());
  head->out = PCTX_TRY(sys::make_pipe());
  head->err = PCTX_TRY(sys::make_pipe());
  // One cannot be moved into a cgroup as cheaply as one is born in it.
  if (host.version == CgroupVersion::v2)
    head->cgroup = PCTX_TRY(BoxCgroup::reserve(host, cpu_accounting, box_cgroup_name()));
  head->embryo = PCTX_TRY(
      Embryo::conceive(namespaces, {head->in.read_end.get(), head->out.write_end.get(), head->err.write_end.get()},
                       head->cgroup.directory()));
  head->namespaces_ = namespaces;
  head->host_ = std::move(host);
  return head;
}

std::unique_ptr<HeadStart> HeadStart::begin(const Policy& policy) {
  // What a host lacks is probed for when something may be left out, and not before.
  if (policy.allow_degraded.any()) return nullptr;
  auto head = begin(wanted_namespaces(policy), probe_cgroups(), accounts_cpu(policy));
  return head ? *std::move(head) : nullptr;
}

Result<std::unique_ptr<HeadStart>> HeadStart::begin(const Plan& plan) {
  return begin(plan.namespaces, plan.cgroup, accounts_cpu(plan.policy));
}

bool HeadStart::fits(const Plan& plan) const {
  return plan.namespaces == namespaces_ && plan.cgroup.version == host_.version && plan.cgroup.unified == host_.unified;
}

}  // namespace pctx
