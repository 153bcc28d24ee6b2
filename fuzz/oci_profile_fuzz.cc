// Any text is either refused or becomes a filter that compiles, means what its spec says and still kills other ABIs.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "plan/filter_eval.h"
#include "plan/oci_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pctx;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto profile = read_oci_profile(text, {.kernel = {6, 1}});
  if (!profile) {
    const Error& error = profile.error();
    if (error.what.empty() || error.hint.empty() || error.what.size() > 1000) std::abort();
    return 0;
  }
  FilterSpec& spec = profile->filter;
  if (size % 2 == 0) notify_refusals(spec);
  const auto program = compile_filter(spec);
  if (!program) return 0;  // only by its size
  if (program->size() > BPF_MAXINSNS) std::abort();

  constexpr std::uint64_t kArguments[] = {0, 1, 40, 0x5412, 0xffffffff, 0x100000028, ~std::uint64_t{0}};
  for (int number = 0; number < 480; ++number) {
    for (std::size_t i = 0; i < std::size(kArguments); ++i) {
      seccomp_data call{};
      call.nr = number;
      call.arch = audit_arch(spec.arch);
      for (std::size_t k = 0; k < 6; ++k) call.args[k] = kArguments[(i + k) % std::size(kArguments)];
      if (evaluate(*program, call) != decide(spec, call).encoded()) std::abort();
      call.arch ^= 1;
      if (evaluate(*program, call) != SECCOMP_RET_KILL_PROCESS) std::abort();
    }
  }
  return 0;
}
