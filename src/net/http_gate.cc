#include "net/http_gate.h"

#include <algorithm>
#include <charconv>

#include "policy/host_name.h"
#include "sys/files.h"

namespace pctx::net {
namespace {

constexpr std::size_t kMostChunkLine = 1024;

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view{"!#$%&'*+-.^_`|~"}.find(c) != std::string_view::npos;
  });
}

bool equal(std::string_view text, std::string_view lower) {
  return text.size() == lower.size() && std::equal(text.begin(), text.end(), lower.begin(), [](char a, char b) {
           return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b;
         });
}

// Calls `each` with every member of a comma-separated list.
template <class Each>
void for_each_member(std::string_view list, Each each) {
  for (;;) {
    const std::size_t comma = list.find(',');
    each(sys::trimmed(list.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

std::optional<std::uint64_t> parse_number(std::string_view digits, int base, std::size_t most) {
  std::uint64_t value = 0;
  if (digits.empty() || digits.size() > most) return std::nullopt;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (status != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// A line may hold printable characters, blanks and tabs: a lone CR or LF or a NUL is where readers disagree.
bool is_clean(std::string_view line) {
  return std::none_of(line.begin(), line.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < ' ' && c != '\t') || byte == 0x7f;
  });
}

}  // namespace

bool HttpGate::is_our_host(std::string_view authority) const {
  std::string_view host = authority;
  if (const std::size_t colon = authority.rfind(':');
      colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos) {
    if (parse_number(authority.substr(colon + 1), 10, 5) != port_) return false;
    host = authority.substr(0, colon);
  } else if (port_ != 80) {
    return false;
  }
  return name_.empty() || normal_name(host) == name_;
}

bool HttpGate::read_request_line(std::string_view line, Head& head) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return cut("what was sent is not HTTP");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1),
                         version = line.substr(last + 1);
  if (!is_token(method) || target.empty() || target.find_first_of(" \t") != std::string_view::npos)
    return cut("what was sent is not HTTP");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return cut("only HTTP/1.0 and HTTP/1.1 can be checked");
  head.http_1_1 = version == "HTTP/1.1";
  if (equal(method, "connect")) return cut("CONNECT would lead to another host");
  for (const char* bodiless : {"get", "head", "delete", "options", "trace"})
    head.bodiless = head.bodiless || equal(method, bodiless);
  if (target.front() == '/' || target == "*") return true;
  if (!equal(target.substr(0, 7), "http://")) return cut("the request names another host");
  const std::string_view authority = target.substr(7, target.find_first_of("/?#", 7) - 7);
  return is_our_host(authority) || cut("the request names another host");
}

bool HttpGate::read_field(std::string_view line, Head& head) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    return cut("a header of the request is broken");
  const std::string_view field = line.substr(0, colon), value = sys::trimmed(line.substr(colon + 1));
  if (equal(field, "host")) {
    if (head.host) return cut("the request has two Host headers");
    head.host = value;
  } else if (equal(field, "content-length")) {
    const auto length = parse_number(value, 10, 18);
    if (!length || head.length) return cut("the length of the request is not clear");
    head.length = length;
  } else if (equal(field, "transfer-encoding")) {
    if (head.encoding || !equal(value, "chunked")) return cut("the length of the request is not clear");
    head.encoding = head.chunked = true;
  } else if (equal(field, "upgrade")) {
    if (!head.upgrade.empty()) return cut("the request has two Upgrade headers");
    head.upgrade = value;
  } else if (equal(field, "connection")) {
    bool clean = true;
    for_each_member(value, [&](std::string_view member) {
      head.connection_upgrade = head.connection_upgrade || equal(member, "upgrade");
      // Asks a proxy in front of the server to drop what was just checked.
      for (const char* kept : {"host", "content-length", "transfer-encoding"}) clean = clean && !equal(member, kept);
    });
    if (!clean) return cut("a header of the request is broken");
  }
  return true;
}

// The whole head is in `held_`, up to and including the empty line.
bool HttpGate::take_head(std::string& out) {
  const std::size_t end = held_.find("\r\n\r\n");
  if (end == std::string::npos) {
    if (held_.size() > kMostHeld) return cut("the head of the request is longer than 16 KiB");
    // What can never become a request must not keep a connection until its time is up.
    if (!held_.empty() && !is_token(held_.substr(0, 1))) return cut("what was sent is not HTTP");
    if (const std::size_t bare = held_.find('\n'); bare != std::string::npos && (bare == 0 || held_[bare - 1] != '\r'))
      return cut("a header of the request is broken");
    return true;
  }
  if (end > kMostHeld) return cut("the head of the request is longer than 16 KiB");
  Head head;
  bool first = true;
  for (std::string_view rest = std::string_view{held_}.substr(0, end); first || !rest.empty();) {
    const std::size_t stop = rest.find("\r\n");
    const std::string_view line = rest.substr(0, stop);
    if (!is_clean(line)) return cut("a header of the request is broken");
    if (!(first ? read_request_line(line, head) : read_field(line, head))) return false;
    first = false;
    rest.remove_prefix(stop == std::string_view::npos ? rest.size() : stop + 2);
  }
  if (!head.host) return cut("the request has no Host header");
  if (!is_our_host(*head.host)) return cut("the request names another host");
  if (head.chunked && (head.length || !head.http_1_1)) return cut("the length of the request is not clear");
  if (head.bodiless && (head.chunked || head.length.value_or(0) > 0))
    return cut("a request of this method has a body, which servers read differently");
  out.append(held_, 0, end + 4);
  held_.erase(0, end + 4);
  passed_ = true;
  ++requests_;
  // Only the answer to the first request can be told from the others without following answers too. A later one is an
  // ordinary request: should the server switch all the same, what follows is still held to HTTP.
  upgrade_ = head.connection_upgrade && requests_ == 1 ? head.upgrade : std::string{};
  left_ = head.length.value_or(0);
  phase_ = head.chunked ? Phase::chunk_size : Phase::body;
  if (phase_ == Phase::body && left_ == 0) end_of_request();
  return true;
}

void HttpGate::end_of_request() {
  phase_ = upgrade_.empty() ? Phase::head : Phase::waiting;
  trailer_ = 0;
}

// One line of the framing of a chunked body: a size, the line end behind a chunk, or a trailer.
bool HttpGate::take_line(std::string& out) {
  const std::size_t end = held_.find("\r\n");
  if (end == std::string::npos || end > kMostChunkLine)
    return held_.size() <= kMostChunkLine || cut("the length of the request is not clear");
  const std::string_view line = std::string_view{held_}.substr(0, end);
  if (!is_clean(line)) return cut("the length of the request is not clear");
  switch (phase_) {
    case Phase::chunk_size: {
      const std::string_view digits = sys::trimmed(line.substr(0, line.find(';')));
      const auto size = parse_number(digits, 16, 15);
      if (!size || line.substr(0, digits.size()) != digits) return cut("the length of the request is not clear");
      left_ = *size;
      phase_ = left_ == 0 ? Phase::trailer : Phase::chunk;
      break;
    }
    case Phase::chunk_end:
      if (!line.empty()) return cut("the length of the request is not clear");
      phase_ = Phase::chunk_size;
      break;
    default: {
      Head ignored;
      trailer_ += line.size() + 2;
      if (trailer_ > kMostHeld) return cut("the head of the request is longer than 16 KiB");
      if (line.empty()) {
        end_of_request();
        break;
      }
      if (!read_field(line, ignored)) return false;
      if (ignored.host || ignored.length || ignored.encoding) return cut("the length of the request is not clear");
    }
  }
  out.append(held_, 0, end + 2);
  held_.erase(0, end + 2);
  return true;
}

bool HttpGate::run(std::string& out) {
  for (std::size_t before = 0; !held_.empty() && phase_ != Phase::waiting;) {
    before = held_.size();
    switch (phase_) {
      case Phase::head:
        if (!take_head(out)) return false;
        break;
      case Phase::body:
      case Phase::chunk: {
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(left_, held_.size()));
        out.append(held_, 0, size);
        held_.erase(0, size);
        left_ -= size;
        if (left_ == 0 && phase_ == Phase::chunk)
          phase_ = Phase::chunk_end;
        else if (left_ == 0)
          end_of_request();
        break;
      }
      case Phase::open:
        out += held_;
        held_.clear();
        break;
      default:
        if (!take_line(out)) return false;
    }
    if (held_.size() == before) break;
  }
  return true;
}

bool HttpGate::feed(std::string_view bytes, std::string& out) {
  held_ += bytes;
  return run(out);
}

bool HttpGate::answer(std::string_view bytes, std::string& out) {
  if (phase_ != Phase::waiting) return true;
  response_ += bytes;
  for (;;) {
    // "HTTP/1.1 101": the status stands in the first twelve characters.
    if (response_.size() < 12) return true;
    const auto status = parse_number(std::string_view{response_}.substr(9, 3), 10, 3);
    const bool http = response_.starts_with("HTTP/1.") && response_[8] == ' ' && status;
    if (http && *status == 101) {
      if (!equal(upgrade_, "websocket")) return cut("the server switched to a protocol that cannot be checked");
      phase_ = Phase::open;
      return run(out);
    }
    if (!http || *status >= 200 || *status < 100) break;
    const std::size_t end = response_.find("\r\n\r\n");
    if (end == std::string::npos) {
      if (response_.size() > kMostHeld) break;
      return true;
    }
    response_.erase(0, end + 4);
  }
  response_.clear();
  upgrade_.clear();
  phase_ = Phase::head;
  return run(out);
}

}  // namespace pctx::net
