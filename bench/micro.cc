// The pure parts of a cold run, one by one: how much of a start is ours to save.
#include <benchmark/benchmark.h>

#include <string>

#include "plan/filter_eval.h"
#include "plan/oci_profile.h"
#include "plan/plan.h"
#include "plan/ready_filters.h"
#include "plan/syscall_policy.h"
#include "policy/policy.h"
#include "sys/host.h"

namespace pctx {
namespace {

const char* const kPolicy =
    R"({"limits": {"memory": "256M", "cpus": 0.5, "pids": 32, "timeout": "10s"}, "files": {"tmpfs": ["/scratch:8M"]},
        "identity": {"env": {"A": "1"}}, "network": {"allow": ["api.example.com", "*.example.org:443"]}})";
const char* const kProfile =
    R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read", "write", "close", "sendmsg", "execve",
        "execveat", "exit_group"], "action": "SCMP_ACT_ALLOW"}]})";

void probe_the_host(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(probe_host());
}
BENCHMARK(probe_the_host)->Unit(benchmark::kMicrosecond);

void read_a_policy(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(policy_from_json(kPolicy));
}
BENCHMARK(read_a_policy)->Unit(benchmark::kMicrosecond);

void read_an_oci_profile(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(read_oci_profile(kProfile, {}));
}
BENCHMARK(read_an_oci_profile)->Unit(benchmark::kMicrosecond);

void compile_a_plan(benchmark::State& state) {
  const HostFeatures host = probe_host();
  for (auto _ : state) benchmark::DoNotOptimize(compile({}, host, {.instance = 7}));
}
BENCHMARK(compile_a_plan)->Unit(benchmark::kMicrosecond);

void compile_the_filter(benchmark::State& state) {
  const FilterSpec spec = default_filter(kHostArch, {});
  for (auto _ : state) benchmark::DoNotOptimize(compile_filter(spec));
}
BENCHMARK(compile_the_filter)->Unit(benchmark::kMicrosecond);

// In memory; how many instructions the kernel runs for it is what tells.
void filter_one_call(benchmark::State& state, const char* name) {
  const auto program = ready_filter({.refusal = Refusal::notify});
  seccomp_data call{};
  call.nr = syscall_number(kHostArch, name).value_or(-1);
  call.arch = audit_arch(kHostArch);
  for (auto _ : state) benchmark::DoNotOptimize(trace_evaluation(program, call));
  state.counters["instructions"] = static_cast<double>(trace_evaluation(program, call).steps);
}
BENCHMARK_CAPTURE(filter_one_call, read, "read");
BENCHMARK_CAPTURE(filter_one_call, openat, "openat");
BENCHMARK_CAPTURE(filter_one_call, ptrace, "ptrace");

}  // namespace
}  // namespace pctx
