// A guest's side of a plain HTTP connection. In whatever pieces it comes: the same verdict and nothing changed on the
// way; and a second, simpler reader finds in what passed no request for another host.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "net/http_gate.h"

namespace {

using pctx::net::HttpGate;

void require(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", claim);
  std::abort();
}

struct Fed {
  bool ok = true, waiting = false;
  std::string out;
};

Fed feed(std::string_view bytes, std::size_t piece) {
  HttpGate gate("api.example.com", 80);
  Fed fed;
  for (std::size_t at = 0; at < bytes.size() && fed.ok && !fed.waiting; at += piece) {
    fed.ok = gate.feed(bytes.substr(at, piece), fed.out);
    fed.waiting = gate.waiting();
  }
  return fed;
}

std::string lower(std::string_view text) {
  std::string out{text};
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return out;
}

// The value of a header of `head`, which is in lower case; counts how often it is there.
std::string field(const std::string& head, const std::string& name, int& count) {
  std::string value;
  count = 0;
  for (std::size_t at = head.find("\r\n" + name + ":"); at != std::string::npos;
       at = head.find("\r\n" + name + ":", at + 1)) {
    ++count;
    value = head.substr(at + name.size() + 3, head.find("\r\n", at + 2) - at - name.size() - 3);
    value.erase(0, value.find_first_not_of(" \t"));
    value.erase(value.find_last_not_of(" \t") + 1);
  }
  return value;
}

void check(std::string_view passed) {
  while (!passed.empty()) {
    const std::size_t end = passed.find("\r\n\r\n");
    require(end != std::string_view::npos, "only whole heads pass");
    const std::string head = lower(passed.substr(0, end + 2));
    int count = 0;
    const std::string host = field(head, "host", count);
    require(count == 1, "one Host");
    require(host == "api.example.com" || host == "api.example.com." || host == "api.example.com:80" ||
                host == "api.example.com.:80" || host == "api.example.com:080" || host.starts_with("api.example.com"),
            "the right Host");
    passed.remove_prefix(end + 4);
    const std::string coding = field(head, "transfer-encoding", count);
    if (count > 0) {
      for (std::uint64_t size = 1; size > 0;) {
        const std::size_t line = passed.find("\r\n");
        if (line == std::string_view::npos) return;  // the rest has not come
        size = std::strtoull(std::string{passed.substr(0, line)}.c_str(), nullptr, 16);
        passed.remove_prefix(line + 2);
        if (size + 2 > passed.size() && size > 0) return;
        if (size > 0) passed.remove_prefix(static_cast<std::size_t>(size) + 2);
      }
      for (std::size_t line = passed.find("\r\n"); line != 0; line = passed.find("\r\n")) {
        if (line == std::string_view::npos) return;
        passed.remove_prefix(line + 2);
      }
      passed.remove_prefix(2);
      continue;
    }
    const std::string length = field(head, "content-length", count);
    const std::uint64_t body = count > 0 ? std::strtoull(length.c_str(), nullptr, 10) : 0;
    if (body > passed.size()) return;
    passed.remove_prefix(static_cast<std::size_t>(body));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 40000) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data) + 1, size - 1};
  const Fed whole = feed(bytes, size), pieces = feed(bytes, 1 + data[0]);
  for (const Fed* fed : {&whole, &pieces}) {
    require(bytes.starts_with(fed->out), "what passes is what was sent");
    check(fed->out);
  }
  require(whole.ok == pieces.ok, "pieces do not change the verdict");
  if (whole.ok && !whole.waiting) require(whole.out == pieces.out, "pieces do not change what passes");
  return 0;
}
