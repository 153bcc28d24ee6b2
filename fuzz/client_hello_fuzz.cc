// A guest's side of a TLS connection, and what the server says as soon as its answer counts. In whatever pieces they
// come: the same verdict, nothing changed on the way, and not a byte before a greeting with the right name.
#include <algorithm>
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

Fed feed(std::string_view bytes, std::string_view answer, std::size_t piece) {
  TlsGate gate("api.example.com");
  Fed fed;
  for (std::size_t at = 0; at < bytes.size() && fed.ok; at += piece) {
    fed.ok = gate.feed(bytes.substr(at, piece), fed.out);
    for (std::size_t told = 0; fed.ok && gate.waiting() && told < answer.size(); told += piece)
      fed.ok = gate.answer(answer.substr(told, piece), fed.out);
    if (fed.ok && gate.waiting()) break;  // it would be read no further
  }
  fed.passed = gate.passed();
  return fed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || size > 8192) return 0;
  // The first two bytes say how; the last ones are the server's.
  const std::string_view all{reinterpret_cast<const char*>(data) + 2, size - 2};
  const std::size_t theirs = std::min<std::size_t>(data[1], all.size());
  const std::string_view bytes = all.substr(0, all.size() - theirs), answer = all.substr(all.size() - theirs);
  const Fed whole = feed(bytes, answer, size), pieces = feed(bytes, answer, 1 + data[0] % 64u);
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
