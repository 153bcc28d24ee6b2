#include "env/script.h"

#include <algorithm>

#include <fmt/format.h>

namespace pctx::env {
namespace {

Error unreadable_block(std::string_view why) {
  return usage_error(fmt::format("the '# /// script' block cannot be read: {}", why),
                     "see PEP 723; only requires-python and dependencies are used");
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// The content of the one block of type `script`, without its comment signs.
Result<std::optional<std::string>> find_block(std::string_view script) {
  std::optional<std::string> found;
  while (!script.empty()) {
    if (next_line(script) != "# /// script") continue;
    // The block goes on while lines are comments, and ends at the last `# ///` among them.
    std::string block, ended;
    bool closed = false;
    for (std::string_view ahead = script; !ahead.empty();) {
      const std::string_view line = next_line(ahead);
      if (line != "#" && !line.starts_with("# ")) break;
      if (line == "# ///") {
        closed = true;
        ended = block;
        script = ahead;
        continue;
      }
      block += line.substr(std::min<std::size_t>(line.size(), 2));
      block += '\n';
    }
    if (!closed) return unreadable_block("it has no end");
    if (found) return unreadable_block("there are two of them");
    found = std::move(ended);
  }
  return found;
}

// As much of TOML as the two keys need: strings in one or two quotes, arrays of them, comments.
class Toml {
 public:
  explicit Toml(std::string_view text) : rest_(text) {}

  Result<ScriptMetadata> read() {
    ScriptMetadata metadata;
    for (skip(true); !rest_.empty() && rest_.front() != '['; skip(true)) {
      const std::string key = PCTX_TRY(read_key());
      if (key == "requires-python")
        metadata.requires_python = PCTX_TRY(read_string());
      else if (key == "dependencies")
        metadata.dependencies = PCTX_TRY(read_array());
      else
        return unreadable_block(fmt::format("'{}' is not a key of it", key.substr(0, 40)));
      skip(false);
      if (!rest_.empty() && rest_.front() != '\n') return unreadable_block("something follows a value on its line");
    }
    return metadata;  // a table follows: not for us
  }

 private:
  void skip(bool lines) {
    while (!rest_.empty()) {
      if (rest_.front() == '#')
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      else if (rest_.front() == ' ' || rest_.front() == '\t' || (lines && rest_.front() == '\n'))
        rest_.remove_prefix(1);
      else
        return;
    }
  }
  Result<std::string> read_key() {
    const std::size_t equals = rest_.find_first_of("=\n");
    if (equals == std::string_view::npos || rest_[equals] != '=') return unreadable_block("a line has no '='");
    std::string key{rest_.substr(0, equals)};
    rest_.remove_prefix(equals + 1);
    while (!key.empty() && (key.back() == ' ' || key.back() == '\t')) key.pop_back();
    if (key.size() > 1 && (key.front() == '"' || key.front() == '\'') && key.back() == key.front())
      key = key.substr(1, key.size() - 2);
    if (key.find_first_not_of("abcdefghijklmnopqrstuvwxyz-_0123456789") != std::string::npos)
      return unreadable_block("a key has characters that no key of it has");
    skip(false);
    return key;
  }
  Result<std::string> read_string() {
    if (rest_.empty() || (rest_.front() != '"' && rest_.front() != '\''))
      return unreadable_block("a text must be quoted");
    const char quote = rest_.front();
    rest_.remove_prefix(1);
    std::string text;
    for (;;) {
      if (rest_.empty() || rest_.front() == '\n') return unreadable_block("a text has no end");
      char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == quote) return text;
      if (c == '\\' && quote == '"') {
        if (rest_.empty() || (rest_.front() != '"' && rest_.front() != '\\'))
          return unreadable_block("only \\\" and \\\\ are understood behind a backslash");
        c = rest_.front();
        rest_.remove_prefix(1);
      }
      text += c;
    }
  }
  Result<std::vector<std::string>> read_array() {
    std::vector<std::string> items;
    if (rest_.empty() || rest_.front() != '[') return unreadable_block("dependencies must be a list");
    rest_.remove_prefix(1);
    for (;;) {
      skip(true);
      if (rest_.empty()) return unreadable_block("a list has no end");
      if (rest_.front() == ']') break;
      items.push_back(PCTX_TRY(read_string()));
      skip(true);
      if (!rest_.empty() && rest_.front() == ',')
        rest_.remove_prefix(1);
      else if (rest_.empty() || rest_.front() != ']')
        return unreadable_block("a comma is missing in a list");
    }
    rest_.remove_prefix(1);
    return items;
  }

  std::string_view rest_;
};

}  // namespace

Result<std::optional<ScriptMetadata>> read_script_metadata(std::string_view script) {
  if (script.size() > kMaxScriptBytes) return std::optional<ScriptMetadata>{};
  const std::optional<std::string> block = PCTX_TRY(find_block(script));
  if (!block) return std::optional<ScriptMetadata>{};
  return std::optional<ScriptMetadata>{PCTX_TRY(Toml{*block}.read())};
}

}  // namespace pctx::env
