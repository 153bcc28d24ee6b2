// Reads the seccomp profile format of Docker, Podman and the OCI runtime specification into a FilterSpec for the host's
// architecture. Strict: an unknown key, action or operator is an error that names its place. Unknown names of system
// calls are skipped, as the runtimes do: profiles list calls of all architectures and kernels. Where that lets pass
// what the profile refuses, they are listed.
//
// A profile replaces our default list. If it allows namespaces, mounts or ptrace, the guest gets them: that is its
// author's decision, and the other layers (no capabilities, no_new_privs, Landlock, no user namespaces) still stand.
// What no profile can turn off: calls of other ABIs (i386, x32) kill the process, whatever `architectures` lists.
//
// Where runtimes differ or a rule can be read in two ways, the stricter reading is taken:
// - several rules for one call: the strictest action that matches wins, wherever it stands in the file;
// - the format compares 64 bits while the kernel often uses 32 of them, so that "not 40" would let 40 + 2^32 pass. A
//   value below 2^32 is compared such that upper bits can neither dodge a refusal nor earn a permission;
// - two tests of one argument in one rule are an error: runc takes them as alternatives, others as both required;
// - SCMP_ACT_TRACE answers ENOSYS, which is what it does without a tracer, and cannot be overruled by a guest's tracer;
// - SCMP_ACT_NOTIFY, listenerPath and listenerMetadata are errors: a box has no agent of the profile's to ask;
// - `flags` is read and has no effect: none of them would make the filter stricter.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "plan/filter.h"

namespace pctx {

inline constexpr std::size_t kMaxProfileBytes = 1 << 20;

struct OciProfileOptions {
  // What minKernel is compared with: version and patch level of the running kernel.
  std::pair<unsigned, unsigned> kernel{0, 0};
};

struct OciProfile {
  FilterSpec filter;
  // Fit for messages, once each: names that it refuses while it permits by default, and that no table of ours has. A
  // slip of the pen leaves the call open.
  std::vector<std::string> ignored;
};

// The guest holds no capability, so entries that include one never apply and entries that exclude one always do.
// Numbers newer than our table answer ENOSYS when the profile refuses by default, as runc does.
Result<OciProfile> read_oci_profile(std::string_view text, const OciProfileOptions& options);

// Refuses what the profile permits and one of these rules does not; what it refuses itself is answered as it says.
// Returns the calls that it is about, once each.
std::vector<std::string_view> refuse_also(FilterSpec& profile, const std::vector<Rule>& rules);

// Turns every refusal with an error into a notification: the supervisor records the call and answers what the profile
// says. Left alone are ENOSYS for numbers newer than our table and for calls to which our own list answers it too:
// libraries try these and fall back, and nobody misses anything.
void notify_refusals(FilterSpec& profile);

}  // namespace pctx
