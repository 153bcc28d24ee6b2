// IP addresses and prefixes as values: what people write, what sockets tell, what rules hold.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pctx {

struct IpAddress {
  bool v6 = false;
  std::array<std::uint8_t, 16> bytes{};  // IPv4: the first four

  // An IPv4 address in IPv6 clothes (::ffff:a.b.c.d) is the IPv4 address: no check may see two of them.
  IpAddress canonical() const;
  std::string text() const;
  unsigned bits() const { return v6 ? 128 : 32; }
  auto operator<=>(const IpAddress&) const = default;
};

struct IpPrefix {
  IpAddress address;
  unsigned length = 0;

  bool contains(const IpAddress& other) const;
  bool whole() const { return length == address.bits(); }  // one address
  std::string text() const;
  auto operator<=>(const IpPrefix&) const = default;
};

// Strict: four decimal numbers without leading zeros, or RFC 4291 text without a zone.
std::optional<IpAddress> parse_ip(std::string_view text);
// ADDRESS or ADDRESS/LENGTH; bits below the length must be zero.
Result<IpPrefix> parse_prefix(std::string_view text);

// To and from what the kernel takes; canonical on the way in.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
SocketAddress to_sockaddr(const IpAddress& address, std::uint16_t port);
std::optional<std::pair<IpAddress, std::uint16_t>> from_sockaddr(const sockaddr_storage& storage);

}  // namespace pctx
