// Which synthetic address stands for which name, in one box. Addresses are given once and never to another name.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/network.h"

namespace pctx::net {

class NameTable {
 public:
  static constexpr std::size_t kMostChosen = 1024;                  // names below a wildcard, which the guest makes up
  static constexpr std::size_t kMost = kMostChosen + kMaxNetRules;  // so that those of the list always have room

  NameTable() = default;
  // Goes on where the table of another relay ended: what a guest was told holds.
  explicit NameTable(const std::vector<std::string>& names);

  // The name's number, a new one if it has none yet; nothing if the table is full.
  std::optional<std::size_t> add(std::string_view name);
  // The name that an address stands for; nullptr if none.
  const std::string* find(const IpAddress& address) const;

  static IpAddress address(std::size_t number, bool v6);
  static bool is_synthetic(const IpAddress& address);

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
};

}  // namespace pctx::net
