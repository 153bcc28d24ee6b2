#include "net/name_table.h"

namespace pctx::net {
namespace {

// 198.18.1.0 on, fd70:6374:7800::1:0 on: the numbers below belong to the box itself and to its name server.
constexpr std::array<std::uint8_t, 16> kFirstV6{0xfd, 0x70, 0x63, 0x74, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0};
static_assert(NameTable::kMost <= 0xfe00);

}  // namespace

NameTable::NameTable(const std::vector<std::string>& names) {
  for (const std::string& name : names) (void)add(name);
}

std::optional<std::size_t> NameTable::add(std::string_view name) {
  if (const auto found = numbers_.find(name); found != numbers_.end()) return found->second;
  if (names_.size() == kMost) return std::nullopt;
  names_.emplace_back(name);
  return numbers_.emplace(name, names_.size() - 1).first->second;
}

IpAddress NameTable::address(std::size_t number, bool v6) {
  IpAddress address;
  address.v6 = v6;
  if (v6) {
    address.bytes = kFirstV6;
    address.bytes[14] = static_cast<std::uint8_t>(number >> 8);
    address.bytes[15] = static_cast<std::uint8_t>(number);
  } else {
    address.bytes = {198, 18, static_cast<std::uint8_t>(1 + (number >> 8)), static_cast<std::uint8_t>(number)};
  }
  return address;
}

bool NameTable::is_synthetic(const IpAddress& address) {
  if (address.v6) return IpPrefix{{true, kFirstV6}, 64}.contains(address);
  return address.bytes[0] == 198 && (address.bytes[1] & 0xfe) == 18;
}

const std::string* NameTable::find(const IpAddress& wanted) const {
  const std::size_t number = wanted.v6 ? static_cast<std::size_t>(wanted.bytes[14]) << 8 | wanted.bytes[15]
                                       : (static_cast<std::size_t>(wanted.bytes[2]) << 8 | wanted.bytes[3]) - 256;
  if (number >= names_.size() || address(number, wanted.v6) != wanted) return nullptr;
  return &names_[number];
}

}  // namespace pctx::net
