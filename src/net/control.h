// What the owner and the relay tell each other over their socket, beside descriptors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/relay.h"

namespace pctx::net {

struct AddPacket {
  std::string text;
  std::vector<int> fds;  // borrowed
};
// Several where one does not hold all descriptors.
std::vector<AddPacket> write_add(std::uint32_t id, const NetworkPolicy& policy, const NetworkEnds& ends);

// Before the box is added: names that have their addresses from another relay, in the order of their numbers.
std::vector<std::string> write_known(std::uint32_t id, const std::vector<std::string>& names);

// One message to the relay.
struct Command {
  enum class Kind { known, add, more, remove, names } kind = Kind::add;
  std::uint32_t id = 0;
  NetworkPolicy policy;             // add
  bool complete = false;            // add and more: the last of them
  std::vector<std::string> places;  // which end each descriptor is
  std::vector<std::string> known;   // known
};
Result<Command> read_command(std::string_view text);
std::string write_remove(std::uint32_t id);
std::string write_names();
// Puts a descriptor where its place says; false for a place that does not exist.
bool put_end(NetworkEnds& ends, std::string_view place, Fd fd);

// Messages to the owner other than records.
std::string write_ready();
std::string write_failed(const Error& error);
std::string write_used(std::uint32_t id, std::uint64_t sent, std::uint64_t received);
std::string write_named(std::uint32_t id, std::size_t number, std::string_view name);
std::string write_refused(std::uint32_t id);
struct Notice {
  enum class Kind { ready, failed, used, named, refused, record, none } kind = Kind::none;
  std::uint32_t id = 0;
  std::uint64_t sent = 0, received = 0;
  std::size_t number = 0;  // named
  std::string name;
  Error error;
};
Notice read_notice(std::string_view text);

// Runs in the relay's process, which it ends.
[[noreturn]] void run_relay(Fd control);

}  // namespace pctx::net
