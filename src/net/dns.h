// The box's name server, message by message: reads what the guest asks, writes what it is told. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/ip.h"

namespace pctx::net {

inline constexpr std::uint16_t kTypeA = 1, kTypeAaaa = 28, kTypeOpt = 41;

enum class DnsCode : std::uint8_t { no_error = 0, format_error = 1, server_failure = 2, no_name = 3, not_done = 4 };

struct DnsQuestion {
  std::uint16_t id = 0;
  bool recursion = false, edns = false;
  std::string raw;    // the question as it came, to be repeated: resolvers compare it, its case included
  std::string name;   // normal; empty if no rule could name it
  std::string shown;  // for the record: printable, at most 253 characters
  std::uint16_t type = 0;
  DnsCode problem = DnsCode::no_error;  // other than no_error: this is the whole answer
};

// Nothing: not worth an answer (too short, or itself an answer).
std::optional<DnsQuestion> read_question(std::string_view message);

// At most 512 bytes whatever the question: one address, or none.
std::string write_answer(const DnsQuestion& question, DnsCode code,
                         const std::optional<IpAddress>& address = std::nullopt);

// A question of our own to a resolver, in the form of RFC 1035 with EDNS and a payload that is not fragmented.
std::string write_query(std::uint16_t id, std::string_view name, std::uint16_t type);

}  // namespace pctx::net
