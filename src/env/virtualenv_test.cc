#include "env/virtualenv.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

TEST(Virtualenv, its_settings_are_read_as_python_reads_them) {
  constexpr std::string_view kConfig = "home = /usr/bin\nversion=3.11.2\n  include-system-site-packages =  false \r\n";
  EXPECT_EQ(venv_setting(kConfig, "home"), "/usr/bin");
  EXPECT_EQ(venv_setting(kConfig, "version"), "3.11.2");
  EXPECT_EQ(venv_setting(kConfig, "include-system-site-packages"), "false");
  EXPECT_EQ(venv_setting(kConfig, "executable"), "");
}

TEST(Virtualenv, it_stays_where_it_is_unless_the_box_has_its_own_folder_there) {
  EXPECT_EQ(place_of_virtualenv("/home/ada/venv"), "/home/ada/venv");
  EXPECT_EQ(place_of_virtualenv("/tmp/venv"), "/run/virtualenv");
  EXPECT_EQ(place_of_virtualenv("/mnt/venv"), "/run/virtualenv");
  EXPECT_EQ(place_of_virtualenv("/tmpfiles/venv"), "/tmpfiles/venv");
}

TEST(Virtualenv, what_is_none_is_refused_with_one_sentence) {
  const auto missing = open_virtualenv("/nowhere/at/all");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().what, "--venv: there is no virtualenv /nowhere/at/all");
  const auto other = open_virtualenv("/usr");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().what, "--venv: /usr is no virtualenv: it has no pyvenv.cfg");
}

}  // namespace
}  // namespace pctx::env
