// What a refused call asked for, in words for a report. Pure: the guest's memory is read by whoever asks.
#pragma once

#include <linux/seccomp.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace pctx {

// The text at an address of the guest's; empty if there is none.
using TextAt = std::function<std::string(std::uint64_t)>;

// A family, a request, a path; empty where the arguments tell nothing.
std::string asked_for(std::string_view syscall, const seccomp_data& call, const TextAt& text_at);

}  // namespace pctx
