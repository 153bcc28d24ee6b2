#include "net/packets.h"

#include <algorithm>

namespace pctx::net {
namespace {

constexpr std::uint8_t kTcpNumber = 6, kUdpNumber = 17, kIcmpNumber = 1, kIcmp6Number = 58;
constexpr std::uint8_t kHopByHop = 0, kRouting = 43, kFragment = 44, kDestination = 60;
constexpr std::uint8_t kSyn = 2, kRst = 4, kAck = 16;

std::uint8_t byte(std::string_view bytes, std::size_t at) { return static_cast<std::uint8_t>(bytes[at]); }
std::uint32_t big_endian(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (const char c : bytes.substr(at, count)) value = value << 8 | static_cast<std::uint8_t>(c);
  return value;
}
void put(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}
std::string_view raw(const IpAddress& address) {
  return {reinterpret_cast<const char*>(address.bytes.data()), address.v6 ? 16u : 4u};
}
IpAddress address_at(std::string_view packet, std::size_t at, bool v6) {
  IpAddress address;
  address.v6 = v6;
  std::copy_n(packet.begin() + static_cast<std::ptrdiff_t>(at), v6 ? 16 : 4, address.bytes.begin());
  return address;
}

std::uint16_t checksum(std::string_view bytes, std::uint32_t sum = 0) {
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) sum += big_endian(bytes, i, 2);
  if (bytes.size() % 2 != 0) sum += static_cast<std::uint32_t>(byte(bytes, bytes.size() - 1)) << 8;
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

void set_checksum(std::string& bytes, std::size_t at, std::uint16_t value) {
  bytes[at] = static_cast<char>(value >> 8);
  bytes[at + 1] = static_cast<char>(value & 0xff);
}

// Sum over the pseudo header of RFC 793 and RFC 8200, not yet folded.
std::uint32_t pseudo(const Attempt& attempt, std::uint8_t protocol, std::size_t size) {
  std::uint32_t sum = protocol + static_cast<std::uint32_t>(size);
  for (const IpAddress* address : {&attempt.from, &attempt.to})
    for (std::size_t i = 0; i < raw(*address).size(); i += 2) sum += big_endian(raw(*address), i, 2);
  return sum;
}

std::string reset_segment(const Attempt& attempt) {
  std::string out;
  put(out, attempt.to_port, 2);
  put(out, attempt.from_port, 2);
  put(out, 0, 4);
  put(out, attempt.sequence + 1, 4);
  put(out, 5u << 12 | kRst | kAck, 2);
  put(out, 0, 6);
  set_checksum(out, 16, checksum(out, pseudo(attempt, kTcpNumber, out.size())));
  return out;
}

std::string unreachable(const Attempt& attempt) {
  std::string out;
  put(out, attempt.to.v6 ? 0x0104u << 16 : 0x0303u << 16, 4);  // port unreachable
  put(out, 0, 4);
  out += attempt.head;
  set_checksum(out, 2, checksum(out, attempt.to.v6 ? pseudo(attempt, kIcmp6Number, out.size()) : 0));
  return out;
}

// Past what IPv6 may have between its header and the transport's. False: this is a later piece, or not all is there.
bool skip_extensions(std::string_view packet, std::size_t& header, std::uint8_t& protocol) {
  while (protocol == kHopByHop || protocol == kRouting || protocol == kFragment || protocol == kDestination) {
    if (packet.size() < header + 8) return false;
    if (protocol == kFragment && (big_endian(packet, header + 2, 2) & 0xfff8) != 0) return false;
    const std::size_t size = protocol == kFragment ? 8 : (static_cast<std::size_t>(byte(packet, header + 1)) + 1) * 8;
    protocol = byte(packet, header);
    header += size;
  }
  return packet.size() >= header + 8;
}

}  // namespace

std::optional<Attempt> read_attempt(std::string_view packet) {
  if (packet.empty()) return std::nullopt;
  Attempt attempt;
  const unsigned version = byte(packet, 0) >> 4;
  std::size_t header = 40;
  std::uint8_t protocol = 0;
  if (version == 4) {
    header = static_cast<std::size_t>(byte(packet, 0) & 15) * 4;
    if (header < 20 || packet.size() < header + 8 || (big_endian(packet, 6, 2) & 0x1fff) != 0) return std::nullopt;
    protocol = byte(packet, 9);
    attempt.from = address_at(packet, 12, false);
    attempt.to = address_at(packet, 16, false);
  } else if (version == 6) {
    if (packet.size() < header + 8) return std::nullopt;
    protocol = byte(packet, 6);
    if (!skip_extensions(packet, header, protocol)) return std::nullopt;
    attempt.from = address_at(packet, 8, true);
    attempt.to = address_at(packet, 24, true);
  } else {
    return std::nullopt;
  }
  attempt.from_port = static_cast<std::uint16_t>(big_endian(packet, header, 2));
  attempt.to_port = static_cast<std::uint16_t>(big_endian(packet, header + 2, 2));
  attempt.head = packet.substr(0, header + 8);
  attempt.tcp = protocol == kTcpNumber;
  if (protocol == kUdpNumber) return attempt;
  if (!attempt.tcp || packet.size() < header + 20 || (byte(packet, header + 13) & (kSyn | kAck | kRst)) != kSyn)
    return std::nullopt;
  attempt.sequence = big_endian(packet, header + 4, 4);
  return attempt;
}

std::string refusal(const Attempt& attempt) {
  const std::string payload = attempt.tcp ? reset_segment(attempt) : unreachable(attempt);
  const std::uint8_t protocol = attempt.tcp ? kTcpNumber : attempt.to.v6 ? kIcmp6Number : kIcmpNumber;
  std::string out;
  if (attempt.to.v6) {
    put(out, 6u << 28, 4);
    put(out, static_cast<std::uint32_t>(payload.size()), 2);
    put(out, static_cast<std::uint32_t>(protocol) << 8 | 64, 2);
  } else {
    put(out, 0x4500, 2);
    put(out, static_cast<std::uint32_t>(20 + payload.size()), 2);
    put(out, 0, 4);
    put(out, 64u << 8 | protocol, 2);
    put(out, 0, 2);
  }
  out += raw(attempt.to);
  out += raw(attempt.from);
  if (!attempt.to.v6) set_checksum(out, 10, checksum(out));
  return out + payload;
}

}  // namespace pctx::net
