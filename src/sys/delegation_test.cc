#include "sys/delegation.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>

#include <gtest/gtest.h>

namespace pctx {
namespace {

TEST(Delegation, belongs_to_the_nearest_unit) {
  EXPECT_EQ(unit_of("/user.slice/user-1.slice/user@1.service/app.slice/a.service"),
            "/user.slice/user-1.slice/user@1.service/app.slice/a.service");
  EXPECT_EQ(unit_of("/user.slice/user@1.service/app.slice/run-7.scope/supervisor"),
            "/user.slice/user@1.service/app.slice/run-7.scope");
  EXPECT_EQ(unit_of("/user.slice/user@1.service/app.slice"), "/user.slice/user@1.service");
}

TEST(Delegation, belongs_to_no_unit_where_systemd_made_none) {
  EXPECT_EQ(unit_of("/"), "");
  EXPECT_EQ(unit_of(""), "");
  EXPECT_EQ(unit_of("/lxc/box"), "");
  EXPECT_EQ(unit_of("/user.slice"), "");
  EXPECT_TRUE(is_delegated("/nowhere", "/lxc/box"));
}

class DelegatedUnit : public testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv(kScopeMark);
    ASSERT_NE(::mkdtemp(directory_), nullptr);
    ASSERT_EQ(::mkdir((directory_ + std::string{"/a.service"}).c_str(), 0700), 0);
  }
  void TearDown() override {
    ::unsetenv(kScopeMark);
    (void)::rmdir((directory_ + std::string{"/a.service"}).c_str());
    (void)::rmdir(directory_);
  }
  bool mark(const char* value) {
    return ::setxattr((directory_ + std::string{"/a.service"}).c_str(), "user.delegate", value, 1, 0) == 0;
  }
  char directory_[32] = "/var/tmp/pctx-unit.XXXXXX";
};

TEST_F(DelegatedUnit, is_known_by_the_mark_of_systemd) {
  EXPECT_FALSE(is_delegated(directory_, "/a.service"));
  if (!mark("0")) GTEST_SKIP() << "the file system of /var/tmp has no user attributes";
  EXPECT_FALSE(is_delegated(directory_, "/a.service/leaf"));
  ASSERT_TRUE(mark("1"));
  EXPECT_TRUE(is_delegated(directory_, "/a.service"));
  EXPECT_TRUE(is_delegated(directory_, "/a.service/leaf"));
}

TEST_F(DelegatedUnit, is_known_by_our_own_mark_where_systemd_is_too_old_to_say_so) {
  ASSERT_FALSE(is_delegated(directory_, "/a.service"));
  ASSERT_EQ(::setenv(kScopeMark, "1", 1), 0);
  EXPECT_TRUE(is_delegated(directory_, "/a.service"));
}

}  // namespace
}  // namespace pctx
