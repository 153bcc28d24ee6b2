#include "net/dns.h"

#include "policy/host_name.h"

namespace pctx::net {
namespace {

constexpr std::size_t kHeader = 12;
constexpr std::uint16_t kAnswerBit = 0x8000, kRecursionWanted = 0x0100, kRecursionDone = 0x0080;
constexpr std::uint16_t kPayload = 1232;
constexpr std::uint32_t kTtl = 60;

std::uint16_t word(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[at]) << 8 |
                                    static_cast<unsigned char>(bytes[at + 1]));
}

void put16(std::string& out, std::uint16_t value) {
  out += static_cast<char>(value >> 8);
  out += static_cast<char>(value & 0xff);
}

void put_opt(std::string& out) {
  out += '\0';
  put16(out, kTypeOpt);
  put16(out, kPayload);
  out.append(6, '\0');
}

// The name of a question has no compression: there is nothing before it to point to. Returns where it ends, or nothing.
std::optional<std::size_t> read_name(std::string_view message, std::string& text) {
  std::size_t at = kHeader;
  for (;;) {
    if (at >= message.size()) return std::nullopt;
    const auto length = static_cast<unsigned char>(message[at++]);
    if (length == 0) break;
    if (length > 63 || at + length > message.size() || text.size() + length + 1 > kMaxHostName + 1) return std::nullopt;
    if (!text.empty()) text += '.';
    // A dot inside a label must not pass for one between two.
    for (const char c : message.substr(at, length)) text += c == '.' ? '\0' : c;
    at += length;
  }
  return at;
}

bool has_opt(std::string_view message, std::size_t at, unsigned records) {
  // Only the place where every client puts it: directly behind the question.
  return records > 0 && at + 11 <= message.size() && message[at] == 0 && word(message, at + 1) == kTypeOpt;
}

}  // namespace

std::optional<DnsQuestion> read_question(std::string_view message) {
  if (message.size() < kHeader || (word(message, 2) & kAnswerBit) != 0) return std::nullopt;
  DnsQuestion question;
  question.id = word(message, 0);
  const std::uint16_t flags = word(message, 2);
  question.recursion = (flags & kRecursionWanted) != 0;
  if ((flags >> 11 & 15) != 0) {
    question.problem = DnsCode::not_done;
    return question;
  }
  std::string text;
  const auto end = word(message, 4) == 1 ? read_name(message, text) : std::nullopt;
  if (!end || *end + 4 > message.size()) {
    question.problem = DnsCode::format_error;
    return question;
  }
  question.raw = message.substr(kHeader, *end + 4 - kHeader);
  question.type = word(message, *end);
  question.name = word(message, *end + 2) == 1 /* IN */ ? normal_name(text) : std::string{};
  for (const char c : text) question.shown += c > ' ' && c < 0x7f ? c : '?';
  question.edns = word(message, 6) == 0 && word(message, 8) == 0 && has_opt(message, *end + 4, word(message, 10));
  return question;
}

std::string write_answer(const DnsQuestion& question, DnsCode code, const std::optional<IpAddress>& address) {
  std::string out;
  put16(out, question.id);
  put16(out, static_cast<std::uint16_t>(kAnswerBit | kRecursionDone | (question.recursion ? kRecursionWanted : 0) |
                                        static_cast<std::uint16_t>(code)));
  put16(out, question.raw.empty() ? 0 : 1);
  put16(out, address ? 1 : 0);
  put16(out, 0);
  put16(out, question.edns ? 1 : 0);
  out += question.raw;
  if (address) {
    put16(out, 0xc00c);  // the name of the question
    put16(out, address->v6 ? kTypeAaaa : kTypeA);
    put16(out, 1);
    put16(out, kTtl >> 16);
    put16(out, kTtl & 0xffff);
    put16(out, address->v6 ? 16 : 4);
    out.append(reinterpret_cast<const char*>(address->bytes.data()), address->v6 ? 16 : 4);
  }
  if (question.edns) put_opt(out);
  return out;
}

std::string write_query(std::uint16_t id, std::string_view name, std::uint16_t type) {
  std::string out;
  put16(out, id);
  put16(out, kRecursionWanted);
  put16(out, 1);
  put16(out, 0);
  put16(out, 0);
  put16(out, 1);
  while (!name.empty()) {
    const std::string_view label = name.substr(0, name.find('.'));
    out += static_cast<char>(label.size());
    out += label;
    name.remove_prefix(label.size() == name.size() ? label.size() : label.size() + 1);
  }
  out += '\0';
  put16(out, type);
  put16(out, 1);
  put_opt(out);
  return out;
}

}  // namespace pctx::net
