// What a refused call asked for, in words for a report. Pure: the guest's memory is read by whoever asks.
#pragma once

#include <linux/seccomp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pctx {

// A family, a request; empty where the arguments themselves tell nothing.
std::string asked_for(std::string_view syscall, const seccomp_data& call);

// Where the guest has the text that tells it instead, a path or a name; nullopt if there is none.
std::optional<std::uint64_t> text_address(std::string_view syscall, const seccomp_data& call);

}  // namespace pctx
