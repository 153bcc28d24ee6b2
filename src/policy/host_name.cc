#include "policy/host_name.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include <fmt/format.h>

namespace pctx {
namespace {

constexpr const char* kForm = "write a name as DNS has it, for example api.example.com";

// RFC 3492, section 5.
constexpr std::uint32_t kBase = 36, kMin = 1, kMax = 26, kSkew = 38, kDamp = 700, kFirstBias = 72, kFirstPoint = 128;
constexpr std::size_t kMaxLabel = 63;

std::uint32_t adapt(std::uint32_t delta, std::uint32_t count, bool first) {
  delta = first ? delta / kDamp : delta / 2;
  delta += delta / count;
  std::uint32_t k = 0;
  for (; delta > (kBase - kMin) * kMax / 2; k += kBase) delta /= kBase - kMin;
  return k + (kBase - kMin + 1) * delta / (delta + kSkew);
}

std::uint32_t threshold(std::uint32_t k, std::uint32_t bias) { return k <= bias ? kMin : std::min(k - bias, kMax); }

bool is_name_character(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Well-formed UTF-8 only.
std::optional<std::u32string> decode_utf8(std::string_view text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return std::nullopt;
    std::uint32_t point = length == 1 ? lead : lead & (0xffu >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return std::nullopt;
      point = point << 6 | (next & 0x3fu);
    }
    constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < kLeast[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return std::nullopt;
    out.push_back(point);
    i += length;
  }
  return out;
}

// "bücher.example" → "xn--bcher-kva.example", for the hint only; nothing if it cannot be told.
std::string ascii_form(std::string_view text) {
  std::string out;
  for (std::string_view rest = text;;) {
    const std::size_t dot = rest.find('.');
    const auto points = decode_utf8(rest.substr(0, dot));
    if (!points || points->empty()) return {};
    const bool ascii = std::all_of(points->begin(), points->end(), [](char32_t c) { return c < 0x80; });
    out += ascii ? std::string{rest.substr(0, dot)} : "xn--" + punycode(*points);
    if (dot == std::string_view::npos) return out;
    out += '.';
    rest.remove_prefix(dot + 1);
  }
}

// "xn--" promises a label that ASCII cannot write, in its one encoding: anything else is a name made to be misread.
bool is_honest_punycode(std::string_view label) {
  const std::u32string points = from_punycode(label.substr(4));
  const auto within = [&](char32_t first, char32_t last) {
    return std::count_if(points.begin(), points.end(), [=](char32_t c) { return c >= first && c <= last; });
  };
  if (within(0xa0, 0x10ffff) == 0 || within(0x80, 0x9f) > 0) return false;  // C1 controls are part of no name
  return punycode(points) == label.substr(4);
}

// The last label decides whether resolvers take the whole for a number: 127.1, 0x7f.1, 2130706433.
bool looks_like_number(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  if (last.find_first_not_of("0123456789") == std::string_view::npos) return true;
  return last.starts_with("0x") && last.find_first_not_of("0123456789abcdef", 2) == std::string_view::npos;
}

}  // namespace

std::string punycode(std::u32string_view label) {
  std::string out;
  for (const char32_t c : label)
    if (c < kFirstPoint) out += lower(static_cast<char>(c));
  std::uint32_t handled = static_cast<std::uint32_t>(out.size()), point = kFirstPoint, delta = 0, bias = kFirstBias;
  const std::uint32_t basic = handled;
  if (basic > 0) out += '-';
  while (handled < label.size()) {
    std::uint32_t next = std::numeric_limits<std::uint32_t>::max();
    for (const char32_t c : label)
      if (c >= point) next = std::min(next, static_cast<std::uint32_t>(c));
    if (label.size() > 1024) return {};  // keeps the product below its type's limit
    delta += (next - point) * (handled + 1);
    point = next;
    for (const char32_t c : label) {
      if (c < point) ++delta;
      if (c != point) continue;
      std::uint32_t rest = delta;
      for (std::uint32_t k = kBase;; k += kBase) {
        const std::uint32_t t = threshold(k, bias);
        const std::uint32_t digit = rest < t ? rest : t + (rest - t) % (kBase - t);
        out += static_cast<char>(digit < 26 ? 'a' + digit : '0' + (digit - 26));
        if (rest < t) break;
        rest = (rest - t) / (kBase - t);
      }
      bias = adapt(delta, handled + 1, handled == basic);
      delta = 0;
      ++handled;
    }
    ++delta, ++point;
  }
  return out;
}

std::u32string from_punycode(std::string_view label) {
  std::u32string out;
  const std::size_t dash = label.rfind('-');
  if (dash != std::string_view::npos) out.assign(label.begin(), label.begin() + static_cast<std::ptrdiff_t>(dash));
  std::uint64_t point = kFirstPoint, index = 0;
  std::uint32_t bias = kFirstBias;
  for (std::size_t at = dash == std::string_view::npos ? 0 : dash + 1; at < label.size();) {
    const std::uint64_t before = index;
    std::uint64_t weight = 1;
    for (std::uint32_t k = kBase;; k += kBase) {
      if (at == label.size()) return {};
      const char c = label[at++];
      const std::uint32_t digit = c >= 'a' && c <= 'z'   ? static_cast<std::uint32_t>(c - 'a')
                                  : c >= '0' && c <= '9' ? static_cast<std::uint32_t>(c - '0') + 26
                                                         : kBase;
      if (digit == kBase) return {};
      index += digit * weight;
      const std::uint32_t t = threshold(k, bias);
      if (digit < t) break;
      weight *= kBase - t;
      if (weight > 0xffff'ffff || index > 0xffff'ffff) return {};
    }
    const auto count = static_cast<std::uint32_t>(out.size()) + 1;
    if (index - before > 0xffff'ffff) return {};
    bias = adapt(static_cast<std::uint32_t>(index - before), count, before == 0);
    point += index / count;
    index %= count;
    if (point > 0x10ffff) return {};
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(index), static_cast<char32_t>(point));
    ++index;
  }
  return out;
}

Result<std::string> parse_host_name(std::string_view text) {
  std::string name{text};
  if (name.ends_with('.')) name.pop_back();
  std::transform(name.begin(), name.end(), name.begin(), lower);
  if (name.empty()) return usage_error("an entry of the network list has no name", kForm);
  if (std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    const std::string ascii = ascii_form(name);
    return usage_error(fmt::format("'{}' is not written in ASCII", text),
                       ascii.empty() ? std::string{kForm} : fmt::format("if {} is what you mean, write that", ascii));
  }
  if (name.size() > kMaxHostName) return usage_error("a name of the network list is longer than 253 characters", kForm);
  for (std::string_view rest = name;;) {
    const std::size_t dot = rest.find('.');
    const std::string_view label = rest.substr(0, dot);
    if (label.empty()) return usage_error(fmt::format("'{}' has an empty part between its dots", text), kForm);
    if (label.size() > kMaxLabel)
      return usage_error(fmt::format("'{}' has a part of more than 63 characters", text), kForm);
    if (const auto odd = std::find_if_not(label.begin(), label.end(), is_name_character); odd != label.end())
      return usage_error(fmt::format("'{}' is not a host name: it holds '{}'", text, *odd), kForm);
    if (label.front() == '-' || label.back() == '-')
      return usage_error(fmt::format("'{}' has a part that begins or ends with '-'", text), kForm);
    if (label.starts_with("xn--") && !is_honest_punycode(label))
      return usage_error(fmt::format("'{}': '{}' is not the punycode of any name", text, label), kForm);
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  if (looks_like_number(name))
    return usage_error(fmt::format("'{}' is neither a host name nor a complete address", text),
                       "write an IPv4 address as four decimal numbers, an IPv6 address in brackets");
  if (name == "localhost" || name.ends_with(".localhost"))
    return usage_error(fmt::format("'{}' is the box itself, seen from inside", text),
                       "give the host's service a name of its own, and open its address with --network-private");
  return name;
}

std::string normal_name(std::string_view text) {
  if (text.ends_with('.')) text.remove_suffix(1);
  if (text.empty() || text.size() > kMaxHostName) return {};
  std::string name{text};
  std::transform(name.begin(), name.end(), name.begin(), lower);
  std::size_t length = 0;
  for (const char c : name) {
    if (c != '.' && !is_name_character(c)) return {};
    if (c == '.' && length == 0) return {};
    length = c == '.' ? 0 : length + 1;
    if (length > kMaxLabel) return {};
  }
  return length == 0 ? std::string{} : name;
}

}  // namespace pctx
