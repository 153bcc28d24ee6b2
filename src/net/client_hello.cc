#include "net/client_hello.h"

#include <algorithm>

#include "policy/host_name.h"

namespace pctx::net {
namespace {

constexpr std::uint8_t kChangeCipherSpec = 20, kAlert = 21, kHandshake = 22, kApplicationData = 23;
constexpr std::uint8_t kClientHello = 1, kServerHello = 2;
constexpr std::size_t kRecordHeader = 5, kHandshakeHeader = 4, kMostRecord = 16384 + 2048;
constexpr unsigned kMostRecords = 64;
constexpr std::size_t kServerName = 0, kEarlyData = 42;
// ECH as in the RFC, its drafts, and ESNI before it.
constexpr std::size_t kEncryptedHellos[] = {0xfe0d, 0xfe0a, 0xfe09, 0xfe08, 0xff02, 0xff03, 0xffce, 0xfd00};

// The "random" of a server hello that asks for another client hello: SHA-256 of "HelloRetryRequest".
constexpr std::string_view kRetry{
    "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91"
    "\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c",
    32};
constexpr std::size_t kRandomAt = kHandshakeHeader + 2;

// Takes length-prefixed pieces off the front; once short, stays short.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}
  bool ok() const { return ok_; }
  bool empty() const { return rest_.empty(); }

  std::size_t number(std::size_t bytes) {
    std::size_t value = 0;
    for (const char c : take(bytes)) value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }
  std::string_view take(std::size_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view piece = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return piece;
  }
  std::string_view vector(std::size_t length_bytes) { return take(number(length_bytes)); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// One name of type host_name, as every client sends it: with two, which one the server takes is its own affair.
bool read_server_name(std::string_view extension, std::string& name) {
  Cursor outer(extension);
  Cursor list(outer.vector(2));
  const std::size_t kind = list.number(1);
  const std::string_view text = list.vector(2);
  if (!outer.ok() || !outer.empty() || !list.ok() || !list.empty() || kind != 0) return false;
  name = normal_name(text);
  return true;
}

std::size_t number_at(std::string_view bytes, std::size_t at, std::size_t count) {
  Cursor cursor(bytes.substr(at));
  return cursor.number(count);
}

}  // namespace

HelloRead read_client_hello(std::string_view body, ClientHello& hello) {
  Cursor in(body);
  const std::size_t version = in.number(2);
  (void)in.take(32);   // random
  (void)in.vector(1);  // session id
  const std::string_view suites = in.vector(2);
  const std::string_view compressions = in.vector(1);
  if (!in.ok() || version >> 8 != 3 || suites.empty() || suites.size() % 2 != 0 || compressions.empty())
    return HelloRead::broken;
  if (in.empty()) return HelloRead::hello;  // older than extensions
  Cursor extensions(in.vector(2));
  if (!in.ok() || !in.empty()) return HelloRead::broken;
  bool named = false;
  while (!extensions.empty()) {
    const std::size_t type = extensions.number(2);
    const std::string_view data = extensions.vector(2);
    if (!extensions.ok()) return HelloRead::broken;
    if (type == kServerName) {
      if (named || !read_server_name(data, hello.name)) return HelloRead::broken;
      named = true;
    }
    hello.early_data = hello.early_data || type == kEarlyData;
    for (const std::size_t encrypted : kEncryptedHellos) hello.encrypted = hello.encrypted || type == encrypted;
  }
  return HelloRead::hello;
}

void ServerAnswer::read(std::string_view bytes) {
  for (const char c : bytes) {
    if (said_ != Said::nothing) return;
    if (left_ == 0) {
      header_ += c;
      if (header_.size() < kRecordHeader) continue;
      left_ = number_at(header_, 3, 2);
      const auto type = static_cast<std::uint8_t>(header_[0]);
      // A warning may come first ("unrecognized name").
      if ((type != kHandshake && type != kAlert) || header_[1] != 3 || left_ == 0 || left_ > kMostRecord)
        said_ = Said::other;
    } else {
      --left_;
      if (static_cast<std::uint8_t>(header_[0]) == kHandshake) {
        hello_ += c;
        said_ = judge();
      }
    }
    if (left_ == 0) header_.clear();
  }
}

ServerAnswer::Said ServerAnswer::judge() const {
  if (static_cast<std::uint8_t>(hello_[0]) != kServerHello) return Said::other;
  if (hello_.size() < kRandomAt + kRetry.size()) return Said::nothing;
  return std::string_view{hello_}.substr(kRandomAt) == kRetry ? Said::retry : Said::hello;
}

bool TlsGate::feed(std::string_view bytes, std::string& out) {
  if (phase_ == Phase::open) {
    out += bytes;
    return true;
  }
  held_ += bytes;
  return run(out);
}

bool TlsGate::answer(std::string_view bytes, std::string& out) {
  answer_.read(bytes);
  return waiting() || run(out);
}

bool TlsGate::run(std::string& out) {
  for (bool progress = true; progress && phase_ != Phase::open && !waiting();) {
    progress = false;
    if (!step(progress)) return false;
  }
  // While a greeting is being read, nothing of it may go; what was found right before it may.
  const std::size_t ready = phase_ == Phase::open ? held_.size() : safe_;
  out.append(held_, 0, ready);
  held_.erase(0, ready);
  at_ -= std::min(at_, ready);
  safe_ = 0;
  return held_.size() <= kMostHeld || cut("the TLS greeting is longer than 16 KiB");
}

// One record, if it is there. False: cut.
bool TlsGate::step(bool& progress) {
  const std::string_view rest = std::string_view{held_}.substr(at_);
  if (!rest.empty() && phase_ == Phase::hello && static_cast<std::uint8_t>(rest[0]) != kHandshake &&
      handshake_.empty() && !passed_)
    return cut("what was sent is not TLS");
  if (rest.size() < kRecordHeader) return true;
  const auto type = static_cast<std::uint8_t>(rest[0]);
  const std::size_t size = number_at(rest, 3, 2);
  if (phase_ == Phase::hello && (type != kHandshake || rest[1] != 3 || size == 0 || size > kMostRecord))
    return cut(passed_ ? "the TLS greeting is broken" : "what was sent is not TLS");
  if (++records_ > kMostRecords) return cut("the TLS greeting comes in too many pieces");
  if (phase_ == Phase::hello) {
    --records_;
    if (rest.size() < kRecordHeader + size)
      return rest.size() <= kMostHeld || cut("the TLS greeting is longer than 16 KiB");
    ++records_;
    return progress = true, take_record();
  }
  return step_after(rest, type, size, progress);
}

// After the right hello: a second one comes only if the server asked for it, and must name the same host.
bool TlsGate::step_after(std::string_view rest, std::uint8_t type, std::size_t size, bool& progress) {
  const ServerAnswer::Said said = answer_.said();
  if (type == kHandshake) {
    if (size == 0) return cut("the TLS greeting is broken");
    if (rest.size() < kRecordHeader + 1) return --records_, true;
    // Nothing is encrypted before the client changes its cipher: what begins like a hello is one, whatever else it
    // says. Servers differ in what of it they look at.
    const bool again = static_cast<std::uint8_t>(rest[kRecordHeader]) == kClientHello;
    if (!again && said == ServerAnswer::Said::retry) return cut("the TLS greeting is broken");
    phase_ = again ? Phase::hello : Phase::open;
    return progress = true;
  }
  if (type == kApplicationData) {
    if (said == ServerAnswer::Said::retry) return cut("the TLS greeting is broken");
    phase_ = Phase::open;
    return progress = true;
  }
  if (type != kChangeCipherSpec && type != kAlert) return cut("the TLS greeting is broken");
  // From here on this side is encrypted, unless the server wants another hello.
  if (type == kChangeCipherSpec && said == ServerAnswer::Said::hello) {
    phase_ = Phase::open;
    return progress = true;
  }
  if (rest.size() < kRecordHeader + size)
    return rest.size() <= kMostHeld ? (--records_, true) : cut("the TLS greeting is broken");
  safe_ = at_ += kRecordHeader + size;
  return progress = true;
}

bool TlsGate::take_record() {
  const std::size_t size = number_at(held_, at_ + 3, 2);
  handshake_.append(held_, at_ + kRecordHeader, size);
  at_ += kRecordHeader + size;
  if (static_cast<std::uint8_t>(handshake_[0]) != kClientHello) return cut("the TLS greeting is broken");
  if (handshake_.size() < kHandshakeHeader) return true;
  const std::size_t length = number_at(handshake_, 1, 3);
  if (length + kHandshakeHeader > kMostHeld) return cut("the TLS greeting is longer than 16 KiB");
  if (handshake_.size() < length + kHandshakeHeader) return true;
  // A record that goes on behind the hello would be the start of something that nobody has looked at.
  if (handshake_.size() > length + kHandshakeHeader) return cut("the TLS greeting is broken");
  return check_hello();
}

bool TlsGate::check_hello() {
  ClientHello hello;
  if (read_client_hello(std::string_view{handshake_}.substr(kHandshakeHeader), hello) == HelloRead::broken)
    return cut("the TLS greeting is broken");
  if (hello.encrypted) return cut("the TLS greeting hides its server name (ECH)");
  if (hello.early_data) return cut("the TLS greeting comes with data before the server's answer (0-RTT)");
  if (hello.name.empty()) return cut("the TLS greeting has no server name (SNI)");
  if (!name_.empty() && hello.name != name_) return cut("the TLS server name (SNI) is another host's");
  if (passed_) answer_.forget_retry();  // it asks once
  handshake_.clear();
  safe_ = at_;
  passed_ = true;
  phase_ = Phase::after;
  return true;
}

}  // namespace pctx::net
