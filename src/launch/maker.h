// A maker holds a template: a root that is built once, in a user namespace of its own, and boxes are cut from it in a
// fraction of the time that a box takes which starts from nothing. It is trusted, has every capability in its own user
// namespace and none outside, and does nothing but cut. Everything it cuts lives below it: when it ends, all end.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "base/result.h"
#include "launch/spawn.h"
#include "plan/plan.h"

namespace pctx {

// Tags are the Broker's own, but for this one.
inline constexpr std::uint16_t kZygoteTag = 1;

struct Maker {
  pid_t pid = -1;
  Fd pidfd;
  Fd control;  // StatusFrames: cut_zygote and cut_worker to it; ready, cut, reaped and failure from it
};

// `command` is what a Zygote runs. The maker announces itself with Message::ready, or says why not.
Result<Maker> start_maker(const Plan& plan, const Command& command);

// What a box holds after a cut is decided by the template's plan. `first_pid` is the pid, inside, of the first process
// that is forked into the box: it differs from box to box, because libraries notice a fork by it.
//
// Zygote: in the maker's own user and pid namespaces, with all others of its own; runs `command` on the descriptors in,
// out and err. It must share the pid namespace: nobody can fork into one that does not lie below its own.
// Worker: a box in a user namespace that the Zygote's uid owns, so that it may fork into it; that is its only right
// anywhere.
struct CutOrder {
  bool zygote = false;
  std::uint16_t tag = 0;
  std::uint16_t first_pid = 0;
  int status = -1;                  // the box's end of its status socket
  int ready = -1;                   // Worker: closed when its init has started
  int in = -1, out = -1, err = -1;  // Zygote
  std::vector<int> tasks;           // v1: cgroups to join, by their `tasks`
};
Result<void> order_cut(const Maker& maker, const CutOrder& order);

// Takes /proc away from the Zygote, which would show it its Workers at work, and let it into their boxes.
Result<void> order_blinding(const Maker& maker);

}  // namespace pctx
