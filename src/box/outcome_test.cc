#include "box/outcome.h"

#include <gtest/gtest.h>

#include <csignal>

namespace pctx {
namespace {

constexpr int exited(int code) { return code << 8; }

TEST(Outcome, the_guests_own_status_is_passed_on) {
  const Outcome outcome = judge({.wait_status = exited(3)}, {});
  EXPECT_EQ(outcome.kind, OutcomeKind::exited);
  EXPECT_EQ(outcome.exit_status(), 3);
}

TEST(Outcome, a_guests_own_sigkill_is_not_out_of_memory) {
  const Outcome own = judge({.wait_status = SIGKILL}, {});
  EXPECT_EQ(own.kind, OutcomeKind::signaled);
  EXPECT_EQ(own.exit_status(), 137);
  EXPECT_NE(own.sentence.find("(SIGKILL)"), std::string::npos);
  EXPECT_NE(judge({.wait_status = 40}, {}).sentence.find("signal 40 (SIGRTMIN+6)"), std::string::npos);
  const Outcome memory = judge({.wait_status = SIGKILL, .memory_over = true}, {.memory = 64_MiB});
  EXPECT_EQ(memory.kind, OutcomeKind::out_of_memory);
  EXPECT_EQ(memory.exit_status(), 137);
  EXPECT_EQ(memory.sentence, "out of memory: limit 64 MiB (--memory)");
}

TEST(Outcome, file_locks_are_memory_and_named) {
  const Outcome outcome = judge({.wait_status = SIGKILL, .locks_over = true}, {});
  EXPECT_EQ(outcome.kind, OutcomeKind::out_of_memory);
  EXPECT_EQ(outcome.limit, "");
  EXPECT_EQ(outcome.sentence,
            "out of memory: more than 10000 file locks, which --memory cannot count; release some before taking more");
  EXPECT_TRUE(outcome.is_to_be_told());
  EXPECT_FALSE(judge({.wait_status = SIGKILL}, {}).is_to_be_told()) << "its own doing";
  EXPECT_EQ(judge({.wait_status = exited(0), .locks_over = true}, {}).kind, OutcomeKind::exited);
}

TEST(Outcome, a_guest_that_ends_before_it_is_killed_for_memory_has_ended_by_itself) {
  EXPECT_EQ(judge({.wait_status = exited(1), .memory_over = true}, {}).kind, OutcomeKind::exited);
}

TEST(Outcome, a_process_that_the_kernel_killed_for_memory_ends_all_however_soon_the_others_end) {
  for (const int status : {exited(0), exited(1), SIGKILL, SIGSEGV})
    EXPECT_EQ(judge({.wait_status = status, .oom_kill = true}, {}).kind, OutcomeKind::out_of_memory);
}

TEST(Outcome, time_is_124) {
  const Outcome outcome = judge({.wait_status = SIGKILL, .timed_out = true}, {.timeout = Millis{2000}});
  EXPECT_EQ(outcome.kind, OutcomeKind::timed_out);
  EXPECT_EQ(outcome.exit_status(), 124);
  EXPECT_EQ(outcome.sentence, "timed out: limit 2 s (--timeout)");
}

TEST(Outcome, a_guest_that_ends_as_the_clock_runs_out_has_ended_by_itself) {
  EXPECT_EQ(judge({.wait_status = exited(0), .timed_out = true}, {}).kind, OutcomeKind::exited);
}

TEST(Outcome, cpu_time_by_watchdog_and_by_rlimit_are_one) {
  Limits limits;
  limits.cpu_time = Millis{1000};
  for (const Verdict& verdict :
       {Verdict{.wait_status = SIGKILL, .cpu_time_over = true}, Verdict{.wait_status = SIGXCPU}}) {
    const Outcome outcome = judge(verdict, limits);
    EXPECT_EQ(outcome.kind, OutcomeKind::timed_out);
    EXPECT_EQ(outcome.limit, "cpu-time");
  }
}

TEST(Outcome, too_much_output_is_its_own_ending) {
  const Outcome outcome = judge({.wait_status = SIGKILL, .output_over = true}, {});
  EXPECT_EQ(outcome.kind, OutcomeKind::output_limit);
  EXPECT_EQ(outcome.exit_status(), 128 + SIGXFSZ);
}

TEST(Outcome, a_file_that_grew_too_large_names_the_limit_and_claims_no_more_than_is_known) {
  const Outcome outcome = judge({.wait_status = SIGXFSZ}, {.disk = 8_MiB});
  EXPECT_EQ(outcome.kind, OutcomeKind::signaled);
  EXPECT_EQ(outcome.limit, "disk");
  EXPECT_EQ(outcome.exit_status(), 128 + SIGXFSZ);
  EXPECT_EQ(
      outcome.sentence,
      "ended by SIGXFSZ: from the kernel, which lets no file grow beyond 8 MiB (--disk), or from the guest itself");
  EXPECT_EQ(judge({.wait_status = SIGXFSZ, .output_over = true}, {}).limit, "output");
  EXPECT_EQ(judge({.wait_status = SIGSEGV}, {}).limit, "");
}

TEST(Outcome, a_kill_by_the_filter_is_a_denial_that_claims_no_more_than_is_known) {
  const Outcome outcome = judge({.wait_status = SIGSYS, .killed_calls = "mkdir by the profile"}, {});
  EXPECT_EQ(outcome.kind, OutcomeKind::denied);
  EXPECT_EQ(outcome.sentence,
            "ended by SIGSYS: from the system call filter, which sends it for mkdir by the profile, or from the guest "
            "itself");
  EXPECT_EQ(judge({.wait_status = SIGSEGV, .killed_calls = "mkdir"}, {}).kind, OutcomeKind::signaled);
}

TEST(Outcome, without_a_filter_sigsys_is_a_signal_like_any_other) {
  const Outcome outcome = judge({.wait_status = SIGSYS}, {});
  EXPECT_EQ(outcome.kind, OutcomeKind::signaled);
  EXPECT_EQ(outcome.sentence, "the guest was ended by signal 31 (SIGSYS)");
}

TEST(Outcome, a_first_process_that_tells_nothing_is_our_failure_unless_it_was_killed) {
  EXPECT_FALSE(untold_end(SIGKILL));
  EXPECT_NE(untold_end(SIGSEGV)->what.find("was ended by SIGSEGV"), std::string::npos);
  EXPECT_NE(untold_end(exited(1))->what.find("left with 1"), std::string::npos);
  EXPECT_TRUE(untold_end(exited(0))) << "not even that is what the guest ended with";
}

}  // namespace
}  // namespace pctx
