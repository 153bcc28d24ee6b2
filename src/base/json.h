// The JSON library, under the names that we have for it.
#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

namespace pctx {

using Json = nlohmann::json;                 // what others wrote: found by its key, however many there are
using OrderedJson = nlohmann::ordered_json;  // what people read: in the order in which it was written

// 0 where there is none.
inline std::uint64_t json_number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

}  // namespace pctx
