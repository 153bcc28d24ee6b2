// Boxes straight from the kernel: the default on Linux.
#pragma once

#include "backend/backend.h"

namespace pctx::backend {

Standing look_at_namespaces();
Result<BrokerAddress> address_of_namespaces(const std::string& version);
Result<Reached> reach_namespaces(const Wanted& wanted);

inline constexpr Backend kNamespaces{.name = "namespaces",
                                     .means = "boxes straight from the kernel",
                                     .look = look_at_namespaces,
                                     .address = address_of_namespaces,
                                     .reach = reach_namespaces,
                                     .execute = nullptr};

}  // namespace pctx::backend
