#include "box/denials.h"

#include <gtest/gtest.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "box/refused_call.h"

namespace pctx {
namespace {

TEST(DenialBook, one_kind_is_one_entry) {
  DenialBook book;
  book.add({"mount", "/a", "EPERM", ""});
  book.add({"mount", "/a", "EPERM", ""});
  book.add({"mount", "/b", "EPERM", ""});
  book.add({"mount", "/b", "EACCES", ""});
  ASSERT_EQ(book.kinds().size(), 3u);
  EXPECT_EQ(book.kinds()[0].count, 2u);
  EXPECT_EQ(book.kinds()[1].count, 1u);
  EXPECT_EQ(book.left_out(), 0u);
}

TEST(DenialBook, says_how_many_it_left_out) {
  DenialBook book;
  for (std::size_t i = 0; i < DenialBook::kMaxKinds + 5; ++i) book.add({std::to_string(i), "/a", "EPERM", ""});
  EXPECT_EQ(book.kinds().size(), DenialBook::kMaxKinds);
  EXPECT_EQ(book.left_out(), 5u);
  book.add({"0", "/a", "EPERM", ""});
  EXPECT_EQ(book.kinds()[0].count, 2u) << "kinds that are listed are counted on";
  EXPECT_EQ(book.left_out(), 5u);
}

TEST(DenialBook, one_call_leaves_room_for_the_others) {
  DenialBook book;
  for (int i = 0; i < 200; ++i) book.add({"chroot", std::to_string(i), "EPERM", ""});
  for (const char* call : {"mount", "ptrace"}) book.add({call, "", "EPERM", ""});
  EXPECT_EQ(book.kinds().size(), DenialBook::kMaxOfCall + 2);
  EXPECT_EQ(book.kinds().back().syscall, "ptrace");
  EXPECT_EQ(book.left_out(), 200 - DenialBook::kMaxOfCall);
  EXPECT_EQ(book.left_out_of().size(), 1u);
  EXPECT_EQ(book.left_out_of().at("chroot"), 200 - DenialBook::kMaxOfCall);
  for (int i = 0; i < 1000; ++i) book.add({std::to_string(i), "", "EPERM", ""});
  EXPECT_LE(book.left_out_of().size(), DenialBook::kMaxKinds) << "numbers without a name are many";
}

TEST(DenialBook, grants_no_more_than_the_allowance) {
  DenialBook book;
  EXPECT_FALSE(book.grant_shared(11, 10));
  EXPECT_TRUE(book.grant_shared(6, 10));
  EXPECT_FALSE(book.grant_shared(5, 10));
  EXPECT_FALSE(book.grant_shared(UINT64_MAX, 10));
  EXPECT_TRUE(book.grant_shared(4, 10));
  EXPECT_EQ(book.shared(), 10u);
}

TEST(DenialBook, grants_so_many_filters) {
  DenialBook book;
  for (unsigned i = 0; i < kMostFilters; ++i) ASSERT_TRUE(book.grant_filter());
  EXPECT_FALSE(book.grant_filter());
}

TEST(Pace, lets_some_through_at_once_and_then_one_by_one) {
  const auto start = Pace::Clock::now();
  Pace pace;
  for (unsigned i = 0; i < Pace::kAtOnce; ++i) ASSERT_LE(pace.turn(start), start) << i;
  EXPECT_EQ(pace.turn(start), start + Pace::kStep);
  EXPECT_EQ(pace.turn(start), start + 2 * Pace::kStep);
  Pace other;
  EXPECT_LE(other.turn(start), start) << "each box has its own";
}

TEST(Pace, forgets_a_flood) {
  const auto start = Pace::Clock::now();
  Pace pace;
  for (unsigned i = 0; i < Pace::kAtOnce + 100; ++i) (void)pace.turn(start);
  const auto later = start + 101 * Pace::kStep;
  EXPECT_EQ(pace.turn(later), later);
  EXPECT_EQ(pace.turn(later), later + Pace::kStep);
  const auto much_later = later + 10 * Pace::kAtOnce * Pace::kStep;
  for (unsigned i = 0; i < Pace::kAtOnce; ++i) ASSERT_LE(pace.turn(much_later), much_later) << i;
  EXPECT_GT(pace.turn(much_later), much_later) << "a quiet hour saves nothing up";
}

std::string asked(std::string_view name, std::initializer_list<std::uint64_t> args) {
  seccomp_data call{};
  std::size_t i = 0;
  for (const std::uint64_t arg : args) call.args[i++] = arg;
  return asked_for(name, call);
}

std::optional<std::uint64_t> address(std::string_view name, std::initializer_list<std::uint64_t> args) {
  seccomp_data call{};
  std::ranges::copy(args, call.args);
  return text_address(name, call);
}

TEST(RefusedCall, is_told_by_its_arguments) {
  EXPECT_EQ(asked("socket", {17, 3 | 0x80000}), "AF_PACKET, type 3");
  EXPECT_EQ(asked("socket", {99, 1}), "family 99, type 1");
  EXPECT_EQ(asked("ioctl", {0, 0x5412 | 1ULL << 40}), "request 0x5412");
  EXPECT_EQ(asked("unshare", {0x1000'0000}), "flags 0x10000000");
  EXPECT_EQ(asked("prctl", {35}), "option 35");
  EXPECT_EQ(asked("mmap", {0, 4096, 3, 0x21, ~0ULL}), "MAP_SHARED | MAP_ANONYMOUS");
  EXPECT_EQ(asked("mmap", {0, 4096, 3, 0x2, 7}), "flags 0x2");
  EXPECT_EQ(asked("fcntl", {3, 1031}), "F_SETPIPE_SZ");
  EXPECT_EQ(asked("setsockopt", {3, 6, 31}), "level 6, option 31");
  EXPECT_EQ(asked("getpid", {}), "");
}

TEST(RefusedCall, is_told_by_its_path) {
  EXPECT_EQ(address("mkdir", {7, 1}), 7U);
  EXPECT_EQ(address("mkdirat", {7, 8}), 8U);
  EXPECT_EQ(address("symlink", {7, 8}), 8U);
  EXPECT_EQ(address("memfd_create", {7}), 7U);
  EXPECT_EQ(address("getpid", {}), std::nullopt);
}

TEST(TextReader, reads_up_to_the_end_of_a_text_or_of_its_page) {
  TextReader reader;
  EXPECT_EQ(reader.fd(), -1);
  const std::string path = "/some/path", other(1000, 'x');
  const auto read = [&](std::uint64_t id, const void* at) {
    EXPECT_TRUE(reader.ask(id, ::getpid(), reinterpret_cast<std::uintptr_t>(at)));
    pollfd ready{reader.fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 20000), 1);
    const auto answer = reader.hear();
    EXPECT_EQ(answer.value().id, id);
    return answer->text;
  };
  EXPECT_EQ(read(1, path.c_str()), path);
  EXPECT_LE(read(2, other.c_str()).size(), TextReader::kLongest);
  EXPECT_EQ(read(3, nullptr), "");
  EXPECT_FALSE(reader.hear());
  reader.give_up();
  EXPECT_EQ(read(4, path.c_str()), path) << "another one is started";
}

}  // namespace
}  // namespace pctx
