// SHA-256 (FIPS 180-4), for names that nobody may be able to forge and for files as wheels record them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace pctx {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void update(std::string_view bytes);
  Digest finish();

 private:
  void block(const std::uint8_t* bytes);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> pending_{};
  std::size_t held_ = 0;
  std::uint64_t length_ = 0;
};

std::string hex(const Sha256::Digest& digest);
// As RECORD files of wheels write it: URL-safe base64 without padding.
std::string base64_url(const Sha256::Digest& digest);
std::string sha256_hex(std::string_view bytes);

}  // namespace pctx
