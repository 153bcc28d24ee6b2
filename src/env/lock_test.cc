#include "env/lock.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

using List = std::vector<std::string>;

TEST(Lock, names_versions_and_hashes_are_taken_and_addresses_left) {
  const std::string one(64, 'a'), two(64, 'b'), three(64, 'c');
  const auto packages = packages_of_lock(
      "lock-version = \"1.0\"\ncreated-by = \"uv\"\n\n"
      "[[packages]]\nname = \"numpy\"\nversion = \"2.4.6\"\nmarker = \"python_full_version < '3.14'\"\n"
      "wheels = [{ url = \"https://example.org/numpy.whl\", hashes = { sha256 = \"" +
      one +
      "\" } }]\n\n"
      "[[packages]]\nname = \"old\"\nversion = \"1.0\"\n"
      "sdist = { url = \"https://example.org/old.tar.gz\", hashes = { sha256 = \"" +
      two +
      "\" } }\n\n"
      "[[packages]]\nname = \"both\"\nversion = \"1.0\"\n"
      "sdist = { url = \"https://example.org/both.tar.gz\", hashes = { sha256 = \"" +
      two +
      "\" } }\n"
      "wheels = [\n    { url = \"https://example.org/both.whl\", hashes = { sha256 = \"" +
      three +
      "\" } },\n]\n\n"
      "[[packages]]\nname = \"Bare_Name\"\nversion = \"1;rm\"\n");
  ASSERT_EQ(packages.size(), 4U);
  EXPECT_EQ(packages[0].name, "numpy");
  EXPECT_EQ(packages[0].version, "2.4.6");
  EXPECT_EQ(packages[0].sha256, one);
  EXPECT_FALSE(packages[0].source);
  EXPECT_EQ(packages[1].sha256, two);
  EXPECT_TRUE(packages[1].source);
  EXPECT_EQ(packages[2].sha256, three);
  EXPECT_FALSE(packages[2].source);
  EXPECT_EQ(packages[3].name, "bare-name");
  EXPECT_EQ(packages[3].version, "");
  EXPECT_TRUE(packages_of_lock("").empty());
}

TEST(Modules, come_from_top_level_or_from_the_record) {
  EXPECT_EQ(modules_of("pandas\n", ""), List{"pandas"});
  EXPECT_EQ(modules_of("", "six.py,sha256=x,1\nsix-1.dist-info/RECORD,,\n__pycache__/six.cpython-311.pyc,,\n"),
            List{"six"});
  EXPECT_EQ(modules_of("", "numpy/__init__.py,,\nnumpy.libs/x.so,,\n../../bin/f2py,,\n"), List{"numpy"});
  EXPECT_EQ(modules_of("", "_cffi_backend.cpython-311-x86_64-linux-gnu.so,,\ncffi/api.py,,\n"), List{"cffi"});
  EXPECT_EQ(modules_of("_yaml\nyaml\n", ""), List{"yaml"});
  EXPECT_EQ(modules_of("_only\n", ""), List{"_only"});
  EXPECT_EQ(modules_of("", "google/protobuf/x.py,,\n"), List{"google"});
}

TEST(Modules, nothing_but_an_identifier_becomes_one) {
  EXPECT_EQ(modules_of("../evil\nos; import x\n1x\n\xff\nok\n", ""), List{"ok"});
  EXPECT_EQ(modules_of("", "/etc/x.py,,\n../x.py,,\n\"a,b.py\",,\n.hidden.py,,\n"), List{});
}

}  // namespace
}  // namespace pctx::env
