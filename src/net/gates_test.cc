// What the two gates let through and what they cut, byte by byte: every case is fed whole and in pieces.
#include <gtest/gtest.h>

#include "net/client_hello.h"
#include "net/http_gate.h"

namespace pctx::net {
namespace {

std::string number(std::size_t value, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
  return out;
}
std::string sized(const std::string& data, int bytes) { return number(data.size(), bytes) + data; }

std::string extension(std::size_t type, const std::string& data) { return number(type, 2) + sized(data, 2); }
std::string server_name(const std::string& name) {
  return extension(0, sized(std::string(1, '\0') + sized(name, 2), 2));
}

std::string hello_body(const std::string& extensions) {
  return "\x03\x03" + std::string(32, 'r') + sized(std::string(32, 's'), 1) + sized("\x13\x01\x13\x02", 2) +
         sized(std::string(1, '\0'), 1) + sized(extensions, 2);
}
std::string record(const std::string& payload, char type = 22) {
  return type + std::string("\x03\x01") + sized(payload, 2);
}
std::string hello(const std::string& extensions) { return record("\x01" + sized(hello_body(extensions), 3)); }

struct Fed {
  bool ok = true;
  std::string out, reason;
  bool done = false;
};

// `answer`: what the server says as soon as the gate waits for it.
template <class Gate>
Fed feed(Gate gate, const std::string& bytes, std::size_t piece, const std::string& answer = "") {
  Fed fed;
  for (std::size_t at = 0; at < bytes.size() && fed.ok; at += piece) {
    fed.ok = gate.feed(bytes.substr(at, piece), fed.out);
    for (std::size_t told = 0; fed.ok && gate.waiting() && told < answer.size(); told += piece)
      fed.ok = gate.answer(answer.substr(told, piece), fed.out);
  }
  fed.reason = gate.reason();
  fed.done = gate.done();
  return fed;
}

std::string server_hello(const std::string& random) {
  return record("\x02" + sized("\x03\x03" + random + sized(std::string(32, 's'), 1) + std::string("\x13\x01\0", 3), 3));
}
// RFC 8446: the random of a server that asks for another hello.
const std::string kRetry = server_hello(
    "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91"
    "\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c");
const std::string kHello = server_hello(std::string(32, 'R'));

const std::string kName = "api.example.com";
const std::string kAlpn = extension(16, sized(sized("h2", 1), 2));

TEST(TlsGate, passes_the_right_name_unchanged) {
  for (const std::string& name : {kName, std::string("API.Example.COM"), kName + "."})
    for (const std::size_t piece : {1u, 7u, 4096u}) {
      const std::string bytes = hello(kAlpn + server_name(name)) + record("data", 23);
      const Fed fed = feed(TlsGate(kName), bytes, piece, kHello);
      EXPECT_TRUE(fed.ok) << fed.reason;
      EXPECT_TRUE(fed.done);
      EXPECT_EQ(fed.out, bytes);
    }
}

TEST(TlsGate, passes_a_hello_that_comes_in_many_records) {
  const std::string message = "\x01" + sized(hello_body(server_name(kName)), 3);
  std::string bytes;
  for (std::size_t at = 0; at < message.size(); at += 11) bytes += record(message.substr(at, 11));
  const Fed fed = feed(TlsGate(kName), bytes, 5);
  EXPECT_TRUE(fed.ok) << fed.reason;
  EXPECT_EQ(fed.out, bytes);
}

void expect_cut(const std::string& bytes, std::string_view why) {
  for (const std::size_t piece : {1u, 100u, 100000u}) {
    const Fed fed = feed(TlsGate(kName), bytes, piece);
    EXPECT_FALSE(fed.ok) << why;
    EXPECT_EQ(fed.out, "") << why;
    EXPECT_NE(fed.reason.find(why), std::string::npos) << fed.reason;
  }
}

TEST(TlsGate, cuts_everything_else_before_a_byte_has_passed) {
  expect_cut(hello(server_name("evil.example.com")), "another host");
  expect_cut(hello(server_name(kName + ".evil.com")), "another host");
  expect_cut(hello(kAlpn), "no server name");
  expect_cut(hello(""), "no server name");
  expect_cut(hello(server_name(std::string("api.example.com\0.evil", 21))), "no server name");
  expect_cut(hello(server_name(kName) + extension(0xfe0d, "x")), "ECH");
  expect_cut(hello(server_name(kName) + server_name("evil.com")), "broken");
  expect_cut(
      hello(extension(0, sized(std::string(1, '\0') + sized(kName, 2) + std::string(1, '\0') + sized("evil", 2), 2))),
      "broken");
  expect_cut("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "not TLS");
  expect_cut("\x80\x2e\x01\x03\x01" + std::string(50, 'x'), "not TLS");  // SSLv2
  expect_cut(record("data", 23), "not TLS");
  expect_cut(record("\x02" + sized("server hello", 3)), "broken");
  expect_cut(record("\x01" + number(20000, 3) + std::string(16000, 'x')), "longer than");
  const std::string good = "\x01" + sized(hello_body(server_name(kName)), 3);
  expect_cut(record(good + "\x01" + sized(hello_body(server_name("evil.com")), 3)), "broken");
  std::string small;
  for (const char c : good) small += record(std::string(1, c));
  expect_cut(small, "too many pieces");
}

TEST(TlsGate, holds_a_second_hello_to_the_same_name) {
  const std::string first = hello(server_name(kName)), spec = record("\x01", 20),
                    other = hello(server_name("evil.com"));
  const Fed same = feed(TlsGate(kName), first + spec + first + record("x", 23), 9, kRetry);
  EXPECT_TRUE(same.ok) << same.reason;
  EXPECT_TRUE(same.done);
  // Whatever the server said, or if it said nothing that we know: before a cipher is changed, a hello is a hello.
  for (const std::string& answer : {kRetry, kHello, std::string("HTTP/1.1 400\r\n"), record("\x02x", 21) + kRetry})
    for (const std::string& between : {std::string{}, answer == kHello ? std::string{} : spec})
      for (const std::size_t piece : {1u, 50u, 5000u}) {
        const Fed fed = feed(TlsGate(kName), first + between + other, piece, answer);
        EXPECT_FALSE(fed.ok);
        EXPECT_EQ(fed.out.find("evil"), std::string::npos);
      }
  // Asked for another hello, a client has nothing else to say.
  EXPECT_FALSE(feed(TlsGate(kName), first + record("x", 23), 4096, kRetry).ok);
  EXPECT_FALSE(feed(TlsGate(kName), first + record("\x10keys"), 4096, kRetry).ok);
}

TEST(TlsGate, waits_for_the_answer_to_a_hello) {
  const std::string first = hello(server_name(kName)), other = hello(server_name("evil.com"));
  TlsGate gate(kName);
  std::string out;
  ASSERT_TRUE(gate.feed(first + other, out));
  EXPECT_EQ(out, first) << "what it means depends on the answer";
  EXPECT_TRUE(gate.waiting());
  ASSERT_TRUE(gate.answer(record("\x01p", 21), out)) << "a warning is no answer";
  EXPECT_TRUE(gate.waiting());
  EXPECT_FALSE(gate.answer(kRetry, out));
  EXPECT_EQ(out, first);
}

// A session of TLS 1.2 that is resumed ends with an encrypted message of the handshake, which begins with any byte.
TEST(TlsGate, takes_no_encrypted_message_for_a_hello) {
  const std::string first = hello(server_name(kName)), spec = record("\x01", 20);
  for (int byte = 0; byte < 256; ++byte)
    for (const std::size_t piece : {1u, 4096u}) {
      const std::string bytes = first + spec + record(std::string(1, static_cast<char>(byte)) + std::string(39, 'e'));
      const Fed fed = feed(TlsGate(kName), bytes, piece, kHello + spec + record("encrypted"));
      EXPECT_TRUE(fed.ok && fed.done) << byte;
      EXPECT_EQ(fed.out, bytes);
    }
  const std::string keys = first + record("\x10" + sized("keys of the client", 3)) + spec + record("\x01x");
  EXPECT_EQ(feed(TlsGate(kName), keys, 3, kHello).out, keys);
}

// Seen with OpenSSL: it ignores the old field for the version, and skips early data before it asks for another hello.
TEST(TlsGate, holds_a_second_hello_to_the_same_name_however_it_is_dressed) {
  const std::string first = hello(server_name(kName));
  std::string odd = hello(server_name("evil.example"));
  odd[10] = 5;  // of 3.5
  for (const std::size_t piece : {1u, 4096u}) {
    const Fed fed = feed(TlsGate(kName), first + odd, piece, kRetry);
    EXPECT_FALSE(fed.ok);
    EXPECT_EQ(fed.out.find("evil"), std::string::npos);
  }
  const Fed early = feed(TlsGate(kName), hello(server_name(kName) + extension(42, "")) + record("x", 23), 4096);
  EXPECT_FALSE(early.ok);
  EXPECT_EQ(early.out, "");
  EXPECT_FALSE(feed(TlsGate(kName), first + record("x", 24), 4096, kHello).ok);
}

TEST(TlsGate, does_not_hold_the_first_hello_for_the_second) {
  TlsGate gate(kName);
  std::string out;
  const std::string first = hello(server_name(kName));
  ASSERT_TRUE(gate.feed(first + first.substr(0, 20), out));
  EXPECT_EQ(out, first);
}

Fed http(const std::string& bytes, std::size_t piece = 4096) { return feed(HttpGate(kName, 80), bytes, piece); }

const std::string kGet = "GET /x HTTP/1.1\r\nHost: api.example.com\r\n\r\n";

TEST(HttpGate, passes_requests_for_the_host_unchanged) {
  for (const std::string& bytes : {
           kGet,
           kGet + kGet + kGet,
           std::string("GET / HTTP/1.1\r\nHOST: API.EXAMPLE.COM.:80\r\n\r\n"),
           std::string("GET http://api.example.com/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
           std::string("OPTIONS * HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
           std::string("GET / HTTP/1.0\r\nHost: api.example.com\r\n\r\n"),
           "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 11\r\n\r\nhello world" + kGet,
           "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n"
           "0123456789\r\n0\r\nDigest: x\r\n\r\n" +
               kGet,
       })
    for (const std::size_t piece : {1u, 13u, 100000u}) {
      const Fed fed = http(bytes, piece);
      EXPECT_TRUE(fed.ok) << fed.reason << "\n" << bytes;
      EXPECT_EQ(fed.out, bytes);
    }
}

void expect_http_cut(const std::string& bytes, std::string_view why) {
  for (const std::size_t piece : {1u, 9u, 1000000u}) {
    const Fed fed = http(bytes, piece);
    EXPECT_FALSE(fed.ok) << bytes;
    EXPECT_NE(fed.reason.find(why), std::string::npos) << fed.reason << "\n" << bytes;
    EXPECT_EQ(fed.out.find("evil"), std::string::npos) << bytes;
  }
}

TEST(HttpGate, cuts_other_hosts) {
  const std::string evil = "GET /evil HTTP/1.1\r\nHost: evil.com\r\n\r\n";
  expect_http_cut(evil, "another host");
  expect_http_cut(kGet + evil, "another host");
  expect_http_cut("GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.com\r\n\r\n", "two Host");
  expect_http_cut("GET / HTTP/1.1\r\nHost: evil.com@api.example.com\r\n\r\n", "another host");
  expect_http_cut("GET / HTTP/1.1\r\nHost: api.example.com:8080\r\n\r\n", "another host");
  expect_http_cut("GET / HTTP/1.1\r\nHost: api.example.com, evil.com\r\n\r\n", "another host");
  expect_http_cut("GET / HTTP/1.1\r\nHost:\r\n\r\n", "another host");
  expect_http_cut("GET / HTTP/1.1\r\n\r\n", "no Host");
  expect_http_cut("GET / HTTP/1.0\r\n\r\n", "no Host");
  expect_http_cut("GET http://evil.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "another host");
  expect_http_cut("GET https://api.example.com/evil HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "another host");
  expect_http_cut("CONNECT evil.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "CONNECT");
  expect_http_cut("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1");
  expect_http_cut("\x16\x03\x01\x02", "not HTTP");
  expect_http_cut("SSH-2.0-x\r\n\r\n", "not HTTP");
}

TEST(HttpGate, cuts_what_two_readers_could_read_differently) {
  const std::string head = "POST / HTTP/1.1\r\nHost: api.example.com\r\n",
                    evil = "GET /evil HTTP/1.1\r\nHost: evil.com\r\n\r\n";
  for (const char* fields : {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                             "Content-Length: 5\r\nContent-Length: 6\r\n",
                             "Content-Length: 5\r\nContent-Length: 5\r\n",
                             "Content-Length: +5\r\n",
                             "Content-Length: 5, 5\r\n",
                             "Content-Length: 0x5\r\n",
                             "Content-Length: -1\r\n",
                             "Content-Length: 99999999999999999999\r\n",
                             "Transfer-Encoding: chunked, identity\r\n",
                             "Transfer-Encoding: xchunked\r\n",
                             "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
                             "Transfer-Encoding:\r\n chunked\r\n",
                             "Transfer-Encoding : chunked\r\n",
                             " Transfer-Encoding: chunked\r\n",
                             "Transfer-Encoding: chunked\nX: y\r\n",
                             "X: y\rTransfer-Encoding: chunked\r\n",
                             "X: y\r\n\tz\r\n",
                             "no colon\r\n",
                             ": empty\r\n",
                             "Connection: close, host\r\n",
                             "Upgrade: a\r\nUpgrade: b\r\n"})
    expect_http_cut(head + fields + "\r\n" + evil, "");
  // Python's http.server answers what stands in the body of a GET as another request.
  for (const char* method : {"GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "get"}) {
    const std::string other = method + head.substr(4);
    expect_http_cut(other + "Content-Length: 38\r\n\r\n" + evil, "body");
    expect_http_cut(other + "Transfer-Encoding: chunked\r\n\r\n26\r\n" + evil + "\r\n0\r\n\r\n", "body");
    EXPECT_TRUE(http(other + "Content-Length: 0\r\n\r\n").ok) << method;
  }
  EXPECT_TRUE(http(head + "Content-Length: 5\r\n\r\nhello").ok);
  expect_http_cut("POST / HTTP/1.0\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "length");
  expect_http_cut(head + "X: " + std::string("a\0b", 3) + "\r\n\r\n", "broken");
  expect_http_cut("GET  / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "not HTTP");
  expect_http_cut("GET / HTTP/1.1 \r\nHost: api.example.com\r\n\r\n", "not HTTP");
  expect_http_cut("GET / HTTP/1.1\nHost: api.example.com\n\n", "broken");
  expect_http_cut("\r\n" + kGet, "not HTTP");
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  for (const char* body :
       {"5\nhello\r\n", "5\r\nhelloX\r\n", "5 x\r\nhello\r\n", "0x5\r\nhello\r\n", "-5\r\n", "\r\n", " 5\r\n",
        "fffffffffffffffff\r\n", "5;\n\r\nhello\r\n", "0\r\nContent-Length: 5\r\n\r\n", "0\r\nbad\r\n\r\n"})
    expect_http_cut(chunked + body + evil, "");
}

TEST(HttpGate, bounds_what_it_holds) {
  expect_http_cut("GET / HTTP/1.1\r\nHost: api.example.com\r\nX: " + std::string(20000, 'a'), "16 KiB");
  expect_http_cut("GET /" + std::string(20000, 'a'), "16 KiB");
  const std::string chunked = "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n";
  expect_http_cut(chunked + "5;" + std::string(5000, 'x'), "length");
  std::string trailers;
  for (int i = 0; i < 1000; ++i) trailers += "X-Trailer: " + std::string(20, 'x') + "\r\n";
  expect_http_cut(chunked + "0\r\n" + trailers, "16 KiB");
}

const std::string kUpgrade =
    "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";

TEST(HttpGate, waits_for_the_server_before_it_opens) {
  HttpGate gate(kName, 80);
  std::string out;
  ASSERT_TRUE(gate.feed(kUpgrade + "frame", out));
  EXPECT_EQ(out, kUpgrade);
  EXPECT_TRUE(gate.waiting());
  ASSERT_TRUE(gate.answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1", out));
  EXPECT_TRUE(gate.waiting());
  ASSERT_TRUE(gate.answer(" 101 Switching\r\n", out));
  EXPECT_TRUE(gate.done());
  EXPECT_EQ(out, kUpgrade + "frame");
}

TEST(HttpGate, goes_on_checking_if_the_server_does_not_switch) {
  HttpGate gate(kName, 80);
  std::string out;
  ASSERT_TRUE(gate.feed(kUpgrade + "GET /evil HTTP/1.1\r\nHost: evil.com\r\n\r\n", out));
  EXPECT_FALSE(gate.answer("HTTP/1.1 400 Bad Request\r\n\r\n", out));
  EXPECT_EQ(out.find("evil"), std::string::npos);
}

TEST(HttpGate, opens_for_no_protocol_that_carries_names_itself) {
  std::string request = kUpgrade;
  request.replace(request.find("websocket"), 9, "h2c");
  HttpGate gate(kName, 80);
  std::string out;
  ASSERT_TRUE(gate.feed(request, out));
  EXPECT_FALSE(gate.answer("HTTP/1.1 101 Switching Protocols\r\n", out));
  HttpGate declined(kName, 80);
  ASSERT_TRUE(declined.feed(request + kGet, out));
  EXPECT_TRUE(declined.answer("HTTP/1.1 200 OK\r\n", out));
  EXPECT_FALSE(declined.waiting());
}

TEST(HttpGate, takes_only_a_first_request_for_an_upgrade) {
  HttpGate gate(kName, 80);
  std::string out;
  ASSERT_TRUE(gate.feed(kGet + kUpgrade, out));
  EXPECT_FALSE(gate.waiting()) << "whose answer the next one is cannot be told";
  EXPECT_FALSE(gate.feed("GET /evil HTTP/1.1\r\nHost: evil.com\r\n\r\n", out));
}

}  // namespace
}  // namespace pctx::net
