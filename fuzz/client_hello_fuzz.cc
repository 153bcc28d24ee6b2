// A guest's side of a TLS connection. In whatever pieces it comes: the same verdict, nothing changed on the way, and
// not a byte before a greeting with the right name.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "net/client_hello.h"

namespace {

using pctx::net::TlsGate;

void require(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", claim);
  std::abort();
}

struct Fed {
  bool ok = true, passed = false;
  std::string out;
};

Fed feed(std::string_view bytes, std::size_t piece) {
  TlsGate gate("api.example.com");
  Fed fed;
  for (std::size_t at = 0; at < bytes.size() && fed.ok; at += piece)
    fed.ok = gate.feed(bytes.substr(at, piece), fed.out);
  fed.passed = gate.passed();
  return fed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 8192) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data) + 1, size - 1};
  const Fed whole = feed(bytes, size), pieces = feed(bytes, 1 + data[0] % 64u);
  for (const Fed* fed : {&whole, &pieces}) {
    require(bytes.starts_with(fed->out), "what passes is what was sent");
    require(fed->passed || fed->out.empty(), "nothing passes before the greeting");
    // Case may differ, a dot may follow: the letters of the name must be there.
    require(fed->out.empty() || fed->out.size() > 40 + 15, "a greeting with a name has a length");
  }
  require(whole.ok == pieces.ok, "pieces do not change the verdict");
  if (whole.ok) require(whole.out == pieces.out, "pieces do not change what passes");
  return 0;
}
