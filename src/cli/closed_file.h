// Why a guest with a uid of its own cannot read what it was lent.
#pragma once

#include <optional>
#include <span>

#include "base/result.h"
#include "plan/plan.h"

namespace pctx::cli {

// What everybody may reach is read by a guest that has no uid of the caller's; the first thing of the caller's own in
// the folders that were lent with --ro that it could not read.
std::optional<Error> closed_to_guest(std::span<const Bind> lent, const Plan& plan);

}  // namespace pctx::cli
