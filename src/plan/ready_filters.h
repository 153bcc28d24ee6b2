// Our own filter in all its variants, compiled when the engine is built: compiling it takes as long as a fork does, and
// every run would pay for it. A unit test compares each with what compile_filter() makes.
#pragma once

#include <linux/filter.h>

#include <span>

#include "plan/syscall_policy.h"

namespace pctx {

// compile_filter(default_filter(kHostArch, options)).
std::span<const sock_filter> ready_filter(const FilterOptions& options);

// Every variant that there is, in the order in which the builder writes them and ready_filter() finds them.
inline constexpr std::size_t kFilterVariants = 32;
constexpr FilterOptions filter_variant(std::size_t number) {
  return {.memory_is_accounted = (number & 1) != 0,
          .pins_cpus = (number & 2) != 0,
          .zygote = (number & 4) != 0,
          .semaphores_are_charged = (number & 16) != 0,
          .refusal = (number & 8) != 0 ? Refusal::notify : Refusal::error};
}
constexpr std::size_t variant_number(const FilterOptions& options) {
  return (options.memory_is_accounted ? 1U : 0U) | (options.pins_cpus ? 2U : 0U) | (options.zygote ? 4U : 0U) |
         (options.refusal == Refusal::notify ? 8U : 0U) | (options.semaphores_are_charged ? 16U : 0U);
}

}  // namespace pctx
