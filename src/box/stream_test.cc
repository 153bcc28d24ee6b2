#include "box/stream.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sys/files.h"

namespace pctx {
namespace {

// A file of 100 bytes, read from its middle on, and what is behind it after the guest has taken `taken` and put `put`
// into the pipe itself.
off_t left_at(std::size_t taken, std::size_t put, bool written) {
  const Fd file{::memfd_create("input", MFD_CLOEXEC)};
  auto pipe = sys::make_pipe();
  const std::string text(100, 'x');
  if (!file || !pipe || !sys::write_all(file.get(), text) || ::lseek(file.get(), 50, SEEK_SET) != 50) return -1;
  const Fd guest{::dup(pipe->read_end.get())}, own{::dup(pipe->write_end.get())};
  Stream stream = Stream::input(file.get(), std::move(pipe->write_end), std::move(pipe->read_end));
  stream.on_readable();
  if (written) stream.on_writable();
  std::string bytes(taken, '\0');
  if (::read(guest.get(), bytes.data(), taken) != static_cast<ssize_t>(taken)) return -1;
  if (!sys::write_all(own.get(), std::string(put, 'y'))) return -1;
  stream.give_back();
  return ::lseek(file.get(), 0, SEEK_CUR);
}

TEST(BoxStream, gives_back_what_the_guest_has_not_read_of_a_file) {
  EXPECT_EQ(left_at(0, 0, true), 50);
  EXPECT_EQ(left_at(0, 0, false), 50);  // nothing has reached the pipe
  EXPECT_EQ(left_at(7, 0, true), 57);
  EXPECT_EQ(left_at(50, 0, true), 100);
}

TEST(BoxStream, gives_back_no_more_than_was_read) {
  EXPECT_EQ(left_at(7, 5, true), 52);  // the guest may say of its own what it likes
  EXPECT_EQ(left_at(7, 4096, true), 50);
}

}  // namespace
}  // namespace pctx
