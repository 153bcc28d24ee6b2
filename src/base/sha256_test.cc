#include "base/sha256.h"

#include <gtest/gtest.h>

namespace pctx {
namespace {

TEST(Sha256, gives_the_digests_of_the_standard) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, does_not_depend_on_how_the_input_is_cut) {
  const std::string text(300, 'x');
  for (std::size_t cut = 1; cut < 200; ++cut) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += cut) hash.update(std::string_view{text}.substr(at, cut));
    EXPECT_EQ(hex(hash.finish()), sha256_hex(text)) << cut;
  }
}

TEST(Sha256, is_written_as_wheels_write_it) {
  Sha256 hash;  // the RECORD line of an empty __init__.py, which every environment has
  EXPECT_EQ(base64_url(hash.finish()), "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU");
}

}  // namespace
}  // namespace pctx
