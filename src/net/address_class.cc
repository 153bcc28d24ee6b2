#include "net/address_class.h"

#include <algorithm>
#include <array>

namespace pctx::net {
namespace {

struct Range {
  std::array<std::uint8_t, 16> bytes;
  unsigned length;
  std::string_view name;
};

// The IANA special-purpose registries; a range that is inside another stands before it.
constexpr std::array<Range, 18> kV4{{
    {{0}, 8, "unspecified"},
    {{10}, 8, "private"},
    {{100, 64}, 10, "carrier-grade NAT"},
    {{127}, 8, "loopback"},
    {{168, 63, 129, 16}, 32, "cloud metadata"},  // a public address, but Azure's hosts answer it
    {{169, 254, 169, 254}, 32, "cloud metadata"},
    {{169, 254}, 16, "link-local"},
    {{172, 16}, 12, "private"},
    {{192, 0, 0}, 24, "reserved"},
    {{192, 0, 2}, 24, "documentation"},
    {{192, 88, 99}, 24, "reserved"},
    {{192, 168}, 16, "private"},
    {{198, 18}, 15, "benchmark"},
    {{198, 51, 100}, 24, "documentation"},
    {{203, 0, 113}, 24, "documentation"},
    {{224}, 4, "multicast"},
    {{255, 255, 255, 255}, 32, "broadcast"},
    {{240}, 4, "reserved"},
}};

// What is not below 2000::/3 is not assigned to the internet; this says how it is called, and what is cut out of
// 2000::/3.
constexpr std::array<Range, 13> kV6{{
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 128, "loopback"},
    {{0}, 128, "unspecified"},
    {{0}, 96, "reserved"},  // IPv4-compatible
    {{0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54}, 128, "cloud metadata"},
    {{0xfc}, 7, "private"},
    {{0xfe, 0x80}, 10, "link-local"},
    {{0xfe, 0xc0}, 10, "private"},
    {{0xff}, 8, "multicast"},
    {{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 48, "private"},
    {{0x01}, 64, "reserved"},
    {{0x20, 0x01, 0x0d, 0xb8}, 32, "documentation"},
    {{0x3f, 0xff}, 20, "documentation"},
    {{0x20, 0x01}, 23, "reserved"},  // Teredo among others: nothing there is a server
}};

constexpr Range kNat64{{0x00, 0x64, 0xff, 0x9b}, 96, ""};
constexpr Range kSixToFour{{0x20, 0x02}, 16, ""};
constexpr Range kGlobal{{0x20}, 3, ""};

bool holds(const Range& range, const IpAddress& address) {
  return IpPrefix{{address.v6, range.bytes}, range.length}.contains(address);
}

std::string_view closed_v4(const IpAddress& address) {
  for (const Range& range : kV4)
    if (holds(range, address)) return range.name;
  return {};
}

IpAddress embedded(const IpAddress& address, std::ptrdiff_t at) {
  IpAddress v4;
  std::copy_n(address.bytes.begin() + at, 4, v4.bytes.begin());
  return v4;
}

bool is_isatap(const IpAddress& address) {
  return (address.bytes[8] & 0xfd) == 0 && address.bytes[9] == 0 && address.bytes[10] == 0x5e &&
         address.bytes[11] == 0xfe;
}

}  // namespace

std::string_view closed_class(const IpAddress& given) {
  const IpAddress address = given.canonical();
  if (!address.v6) return closed_v4(address);
  if (holds(kNat64, address)) return closed_v4(embedded(address, 12));
  for (const Range& range : kV6)
    if (holds(range, address)) return range.name;
  if (!holds(kGlobal, address)) return "reserved";
  if (holds(kSixToFour, address)) return closed_v4(embedded(address, 2));
  return is_isatap(address) ? closed_v4(embedded(address, 12)) : std::string_view{};
}

}  // namespace pctx::net
