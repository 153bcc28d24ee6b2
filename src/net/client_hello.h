// Whom a TLS client says it wants to talk to, and the gate that holds its bytes until that is known and right. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pctx::net {

struct ClientHello {
  std::string name;         // of server_name; normal, empty if there is none or it is no host name
  bool encrypted = false;   // an encrypted hello inside (ECH, ESNI): the name outside is not the one that counts
  bool early_data = false;  // sends before it has been answered, and may have to greet again after that
};

enum class HelloRead { hello, broken };
// `body`: the handshake message behind its four bytes of header, complete.
HelloRead read_client_hello(std::string_view body, ClientHello& hello);

class TlsGate {
 public:
  static constexpr std::size_t kMostHeld = 16 * 1024;

  explicit TlsGate(std::string name) : name_(std::move(name)) {}

  // Appends to `out` what may go to the server. False: cut, `reason` says why.
  bool feed(std::string_view bytes, std::string& out);
  bool passed() const { return passed_; }              // the first hello was right
  bool done() const { return phase_ == Phase::open; }  // nothing is looked at any more
  std::string_view reason() const { return reason_; }

 private:
  enum class Phase { hello, after, open };

  bool step(bool& progress);
  bool take_record();
  bool check_hello();
  bool cut(std::string_view reason) {
    reason_ = reason;
    return false;
  }

  std::string name_;
  Phase phase_ = Phase::hello;
  std::string held_;       // not yet let through
  std::size_t at_ = 0;     // how much of `held_` has been looked at: whole records
  std::size_t safe_ = 0;   // how much of it may go
  std::string handshake_;  // payload of the records of one hello
  unsigned records_ = 0;
  bool passed_ = false;
  std::string_view reason_;
};

}  // namespace pctx::net
