// What a guest sends to its name server. Whatever it is, the answer repeats the question and fits into a datagram, and
// a name that comes out of it is one that rules can be compared with.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "net/dns.h"
#include "policy/host_name.h"

namespace {

void require(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", claim);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pctx::net;
  const std::string_view message{reinterpret_cast<const char*>(data), size};
  const auto question = read_question(message);
  if (!question) return 0;
  require(question->name.empty() || pctx::normal_name(question->name) == question->name, "the name is normal");
  require(question->shown.size() <= 254, "what is shown is short");
  for (const char c : question->shown) require(c > ' ' && c < 0x7f, "what is shown is printable");
  const std::string answer = write_answer(*question, DnsCode::no_error, pctx::parse_ip("fd70:6374:7800::1:1"));
  require(answer.size() <= 512, "an answer fits into a datagram");
  require(answer.compare(0, 2, message.substr(0, 2)) == 0, "the id is repeated");
  require(answer.compare(12, question->raw.size(), message.substr(12, question->raw.size())) == 0,
          "the question is repeated");
  require(!read_question(answer), "an answer is no question");
  if (question->name.empty()) return 0;
  const auto again = read_question(write_query(question->id, question->name, question->type));
  require(again && again->name == question->name && again->type == question->type, "a name survives being asked for");
  return 0;
}
