// What of a box can be made before its plan is: pipes, on cgroup v2 its cgroup (without limits yet), and its first
// processes, which make the namespaces while we plan.
#pragma once

#include <memory>

#include "box/cgroup.h"
#include "launch/embryo.h"
#include "sys/files.h"

namespace pctx {

// Whether our standard output and error are one file. The guest then has one pipe for both: what it writes keeps its
// order, which nobody could tell of two.
bool outputs_are_one();

class HeadStart {
 public:
  // As the policy lets us guess. Null if it cannot be told yet, or does not work: whoever makes the box tries again,
  // and explains.
  static std::unique_ptr<HeadStart> begin(const Policy& policy, bool one_output);
  // As planned.
  static Result<std::unique_ptr<HeadStart>> begin(const Plan& plan, bool one_output);

  const CgroupHost& cgroup_host() const { return host_; }
  bool fits(const Plan& plan) const;

  sys::Pipe in, out, err;  // no `err` where the outputs are one
  BoxCgroup cgroup;        // outlives the embryo, which may be in it
  Embryo embryo;

 private:
  HeadStart() = default;
  static Result<std::unique_ptr<HeadStart>> begin(std::uint64_t namespaces, CgroupHost host, bool cpu_accounting,
                                                  bool one_output);

  std::uint64_t namespaces_ = 0;
  CgroupHost host_;
};

}  // namespace pctx
