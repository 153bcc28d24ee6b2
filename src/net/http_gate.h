// The gate for HTTP/1.x without TLS: every request on a connection must be for the host that the connection was made
// to. Follows the framing of requests and lets nothing through whose end two readers could see at different places
// (request smuggling). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"

namespace pctx::net {

class HttpGate {
 public:
  static constexpr std::size_t kMostHeld = 16_KiB;

  // `name` empty: any host will do, the framing is followed all the same.
  HttpGate(std::string name, std::uint16_t port) : name_(std::move(name)), port_(port) {}

  // Appends to `out` what may go to the server. False: cut, `reason` says why.
  bool feed(std::string_view bytes, std::string& out);
  bool passed() const { return passed_; }                    // a first request was right
  bool done() const { return phase_ == Phase::open; }        // the connection is no longer HTTP, by agreement
  bool waiting() const { return phase_ == Phase::waiting; }  // an upgrade was asked for: what does the server say?
  // What the server says first, piece by piece, while `waiting`. Appends what that sets free. False: cut.
  bool answer(std::string_view bytes, std::string& out);
  std::string_view reason() const { return reason_; }

 private:
  enum class Phase { head, body, chunk_size, chunk, chunk_end, trailer, waiting, open };
  struct Head {
    bool http_1_1 = false, chunked = false;
    bool bodiless = false;  // of a method whose body many servers do not read, and take for the next request
    std::optional<std::uint64_t> length;
    std::optional<std::string> host;
    std::string upgrade;
    bool encoding = false, connection_upgrade = false;
  };

  bool run(std::string& out);
  bool take_head(std::string& out);
  bool take_line(std::string& out);
  bool read_request_line(std::string_view line, Head& head);
  bool read_field(std::string_view line, Head& head);
  bool is_our_host(std::string_view authority) const;
  void end_of_request();
  bool cut(std::string_view reason) {
    reason_ = reason;
    return false;
  }

  std::string name_;
  std::uint16_t port_;
  Phase phase_ = Phase::head;
  std::string held_;
  std::uint64_t left_ = 0;   // of the body or the chunk
  std::size_t trailer_ = 0;  // bytes of it so far
  std::string upgrade_;      // the protocol that the request before this point asked for
  std::string response_;     // its answer's head, as far as it is there
  std::uint64_t requests_ = 0;
  bool passed_ = false;
  std::string_view reason_;
};

}  // namespace pctx::net
