// Landlock on top of the mounts: should a mount ever be looser than meant, the rules still hold. They say again what
// the root says: everything may be read, only the scratch space and what was lent read-write may change.
#include "plan/plan.h"
#include "sys/kernel_abi.h"

namespace pctx {
namespace {

using namespace abi;

constexpr std::uint64_t kRead = kLandlockExecute | kLandlockReadFile | kLandlockReadDir;
constexpr std::uint64_t kWriteFile = kLandlockWriteFile | kLandlockTruncate;
constexpr std::uint64_t kWriteTree = kWriteFile | kLandlockRemoveDir | kLandlockRemoveFile | kLandlockMakeDir |
                                     kLandlockMakeReg | kLandlockMakeSock | kLandlockMakeFifo | kLandlockMakeSym |
                                     kLandlockRefer;
constexpr std::uint64_t kDevice = kLandlockReadFile | kWriteFile | kLandlockIoctlDev;

// Every right that this ABI knows: what is handled and not granted is refused.
std::uint64_t handled(int abi_version) {
  std::uint64_t rights = (1ULL << 13) - 1;
  if (abi_version >= 2) rights |= kLandlockRefer;
  if (abi_version >= 3) rights |= kLandlockTruncate;
  if (abi_version >= 5) rights |= kLandlockIoctlDev;
  return rights;
}

}  // namespace

void plan_landlock(Plan& plan, const HostFeatures& host, const CompileInputs& inputs) {
  LayerState& layer = plan.layer(Layer::landlock);
  if (host.landlock_abi == 0) {
    layer = {false, "this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK, lsm=)"};
    return;
  }
  layer = {true, "ABI " + std::to_string(host.landlock_abi)};
  plan.landlock_handled = handled(host.landlock_abi);
  if (host.landlock_abi >= 6) plan.landlock_scoped = kLandlockScopeAbstractUnix | kLandlockScopeSignal;
  const auto allow = [&](std::string path, std::uint64_t access) {
    plan.landlock.push_back({std::move(path), access & plan.landlock_handled});
  };
  if (inputs.pool) {
    // Rules name inodes, and every Worker's scratch space is a new one, made after its Zygote was bound. What is left
    // is what no mount grants either way: device nodes, other domains' sockets and processes.
    layer.detail += ", without rules for single folders";
    return allow("/", kRead | kWriteTree | kDevice);
  }
  allow("/", kRead);
  // A folder of our own making, on a read-only mount, that holds nothing but the listed devices.
  allow("/dev", kDevice);
  for (const RootOp& op : plan.root) {
    const bool writable = (op.attributes & kMountRdonly) == 0;
    const std::string path = "/" + op.target;
    switch (op.kind) {
      case RootOpKind::scratch:
      case RootOpKind::tmpfs:
        allow(path, kRead | kWriteTree);
        break;
      case RootOpKind::devpts:
        allow(path, kDevice | kLandlockReadDir);
        break;
      case RootOpKind::bind:
        if (op.device)
          allow(path, kDevice);
        else if (writable)
          allow(path, op.directory ? kRead | kWriteTree : kLandlockExecute | kLandlockReadFile | kWriteFile);
        break;
      default:
        break;
    }
  }
}

}  // namespace pctx
