// Whom a TLS client says it wants to talk to, and the gate that holds its bytes until that is known and right. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/units.h"

namespace pctx::net {

struct ClientHello {
  std::string name;         // of server_name; normal, empty if there is none or it is no host name
  bool encrypted = false;   // an encrypted hello inside (ECH, ESNI): the name outside is not the one that counts
  bool early_data = false;  // sends before it has been answered, and may have to greet again after that
};

enum class HelloRead { hello, broken };
// `body`: the handshake message behind its four bytes of header, complete.
HelloRead read_client_hello(std::string_view body, ClientHello& hello);

// How a server answers a hello: its first handshake message, which nobody has encrypted yet.
class ServerAnswer {
 public:
  enum class Said {
    nothing,  // so far
    hello,    // it goes on from here: no other hello follows
    retry,    // it asks for a second hello (RFC 8446, 4.1.4)
    other     // this is no answer that we know
  };
  void read(std::string_view bytes);
  Said said() const { return said_; }
  void forget_retry() { said_ = Said::other; }

 private:
  Said judge() const;

  Said said_ = Said::nothing;
  std::string header_, hello_;  // as far as they are there: 5 bytes, 38 bytes
  std::size_t left_ = 0;        // of the record
};

class TlsGate {
 public:
  static constexpr std::size_t kMostHeld = 16_KiB;

  explicit TlsGate(std::string name) : name_(std::move(name)) {}

  // Appends to `out` what may go to the server. False: cut, `reason` says why.
  bool feed(std::string_view bytes, std::string& out);
  bool passed() const { return passed_; }              // the first hello was right
  bool done() const { return phase_ == Phase::open; }  // nothing is looked at any more
  // The hello is on its way: only the server's answer tells a second hello from an encrypted message of TLS 1.2.
  bool waiting() const { return phase_ == Phase::after && answer_.said() == ServerAnswer::Said::nothing; }
  // What the server says first, piece by piece, while `waiting`. Appends what that sets free. False: cut.
  bool answer(std::string_view bytes, std::string& out);
  std::string_view reason() const { return reason_; }

 private:
  enum class Phase { hello, after, open };

  bool run(std::string& out);
  bool step(bool& progress);
  bool step_after(std::string_view rest, std::uint8_t type, std::size_t size, bool& progress);
  bool take_record();
  bool check_hello();
  bool cut(std::string_view reason) {
    reason_ = reason;
    return false;
  }

  std::string name_;
  Phase phase_ = Phase::hello;
  ServerAnswer answer_;
  std::string held_;       // not yet let through
  std::size_t at_ = 0;     // how much of `held_` has been looked at: whole records
  std::size_t safe_ = 0;   // how much of it may go
  std::string handshake_;  // payload of the records of one hello
  unsigned records_ = 0;
  bool passed_ = false;
  std::string_view reason_;
};

}  // namespace pctx::net
