#include "pool/figures.h"

#include "base/json.h"

namespace pctx {
namespace {

constexpr std::size_t kLongestWord = 1000;

}  // namespace

void take_figures(const std::string& text, PoolFigures& figures) {
  const Json json = Json::parse(text, nullptr, false);
  const Json ready = json.is_object() ? json.value("ready", Json{}) : Json{};
  figures.preloaded.clear();
  figures.left.clear();
  if (!ready.is_object()) return;
  const auto word = [](const Json& value) {
    return value.is_string() ? value.get<std::string>().substr(0, kLongestWord) : "";
  };
  const Json preloaded = ready.value("preloaded", Json{}), left = ready.value("left", Json{});
  for (const Json& name : preloaded) figures.preloaded.push_back(word(name));
  for (const auto& [name, why] : left.items()) figures.left[name] = word(why);
}

}  // namespace pctx
