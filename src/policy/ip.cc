#include "policy/ip.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/units.h"

namespace pctx {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// True if all bits from `length` on are zero.
bool ends_at(const IpAddress& address, unsigned length) {
  for (unsigned bit = length; bit < address.bits(); ++bit)
    if ((address.bytes[bit / 8] >> (7 - bit % 8) & 1) != 0) return false;
  return true;
}

}  // namespace

IpAddress IpAddress::canonical() const {
  if (!v6 || !std::equal(kMapped.begin(), kMapped.end(), bytes.begin())) return *this;
  IpAddress plain;
  std::copy_n(bytes.begin() + 12, 4, plain.bytes.begin());
  return plain;
}

std::string IpAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> out{};
  ::inet_ntop(v6 ? AF_INET6 : AF_INET, bytes.data(), out.data(), out.size());
  return out.data();
}

bool IpPrefix::contains(const IpAddress& other) const {
  if (other.v6 != address.v6) return false;
  const unsigned whole_bytes = length / 8;
  if (!std::equal(address.bytes.begin(), address.bytes.begin() + whole_bytes, other.bytes.begin())) return false;
  const unsigned rest = length % 8;
  return rest == 0 || ((address.bytes[whole_bytes] ^ other.bytes[whole_bytes]) >> (8 - rest)) == 0;
}

std::string IpPrefix::text() const { return whole() ? address.text() : fmt::format("{}/{}", address.text(), length); }

std::optional<IpAddress> parse_ip(std::string_view text) {
  // inet_pton wants a terminated string; nothing valid is longer.
  std::array<char, INET6_ADDRSTRLEN> copy{};
  if (text.empty() || text.size() >= copy.size() || text.find('\0') != std::string_view::npos) return std::nullopt;
  std::copy(text.begin(), text.end(), copy.begin());
  IpAddress address;
  address.v6 = text.find(':') != std::string_view::npos;
  if (::inet_pton(address.v6 ? AF_INET6 : AF_INET, copy.data(), address.bytes.data()) != 1) return std::nullopt;
  return address;
}

Result<IpPrefix> parse_prefix(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto address = parse_ip(text.substr(0, slash));
  if (!address)
    return usage_error(fmt::format("'{}' is not an address or a range of addresses", text),
                       "write for example 10.1.2.0/24, 192.168.1.5 or fd00:1::/32");
  IpPrefix prefix{*address, address->bits()};
  if (slash != std::string_view::npos) {
    const auto length = parse_count(text.substr(slash + 1));
    if (!length || *length > address->bits())
      return usage_error(fmt::format("'{}': the length after the slash is not between 0 and {}", text, address->bits()),
                         "write for example 10.1.2.0/24");
    prefix.length = static_cast<unsigned>(*length);
  }
  if (!ends_at(*address, prefix.length))
    return usage_error(fmt::format("'{}' has bits behind its first {}", text, prefix.length),
                       "write the first address of the range before the slash");
  if (const IpAddress plain = address->canonical(); plain.v6 != address->v6) {
    if (prefix.length < 96)
      return usage_error(fmt::format("'{}' mixes IPv4 and IPv6", text), "write the IPv4 range as such");
    prefix = {plain, prefix.length - 96};
  }
  return prefix;
}

SocketAddress to_sockaddr(const IpAddress& address, std::uint16_t port) {
  SocketAddress out;
  if (address.v6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, address.bytes.data(), 16);
    std::memcpy(&out.storage, &v6, out.size = sizeof v6);
  } else {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, address.bytes.data(), 4);
    std::memcpy(&out.storage, &v4, out.size = sizeof v4);
  }
  return out;
}

std::optional<std::pair<IpAddress, std::uint16_t>> from_sockaddr(const sockaddr_storage& storage) {
  IpAddress address;
  if (storage.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &storage, sizeof v4);
    std::memcpy(address.bytes.data(), &v4.sin_addr, 4);
    return std::pair{address, ntohs(v4.sin_port)};
  }
  if (storage.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6;
  std::memcpy(&v6, &storage, sizeof v6);
  address.v6 = true;
  std::memcpy(address.bytes.data(), &v6.sin6_addr, 16);
  return std::pair{address.canonical(), ntohs(v6.sin6_port)};
}

}  // namespace pctx
