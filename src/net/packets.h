// Attempts to reach an address directly, as the watchers of a box see them, and the answers that end them at once: TCP
// gets a reset, UDP an ICMP "port unreachable". Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/ip.h"

namespace pctx::net {

struct Attempt {
  IpAddress from, to;
  std::uint16_t from_port = 0, to_port = 0;
  bool tcp = false;
  std::uint32_t sequence = 0;
  std::string head;  // what an ICMP answer quotes
};

// A packet that starts with its IP header. Nothing: no attempt (later fragments, answers, anything but a SYN or UDP).
std::optional<Attempt> read_attempt(std::string_view packet);
// A whole packet, header included, for a raw socket.
std::string refusal(const Attempt& attempt);

}  // namespace pctx::net
