// What one box tried, bounded: equal refusals are one line with a count, and beyond a number of lines only counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/relay.h"

namespace pctx::net {

class RecordBook {
 public:
  static constexpr std::size_t kMost = 1000;

  void write(ConnectionRecord record);
  void leave_out(std::uint64_t attempts) { record_.left_out += attempts; }
  const std::vector<ConnectionRecord>& lines() const { return record_.connections; }
  // The record in packets for the control socket, each below `most` bytes.
  std::vector<std::string> packets(std::uint32_t id, std::uint64_t sent, std::uint64_t received,
                                   std::size_t most) const;

 private:
  NetworkRecord record_;
  std::map<std::string, std::size_t> known_;  // what makes a line → its place
};

// The other side: collects the packets of one record. A relay that was taken over can send anything.
class RecordReader {
 public:
  // `json` is one parsed packet; true when the record is whole.
  Result<bool> read(std::string_view packet, std::uint32_t& id);
  NetworkRecord take(std::uint32_t id);

 private:
  std::map<std::uint32_t, NetworkRecord> open_;
};

}  // namespace pctx::net
