#include "env/index.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "sys/files.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace pctx::env {
namespace {

// Passed on as they are. What would change where or how we install (UV_TARGET, UV_PYTHON, UV_CACHE_DIR, …) is not.
constexpr std::array kPassed{"UV_INDEX",           "UV_DEFAULT_INDEX",
                             "UV_INDEX_URL",       "UV_EXTRA_INDEX_URL",
                             "UV_FIND_LINKS",      "UV_INDEX_STRATEGY",
                             "UV_INSECURE_HOST",   "UV_SYSTEM_CERTS",
                             "UV_NATIVE_TLS",      "UV_HTTP_TIMEOUT",
                             "UV_HTTP_RETRIES",    "UV_EXCLUDE_NEWER",
                             "UV_PRERELEASE",      "UV_RESOLUTION",
                             "UV_TORCH_BACKEND",   "UV_OFFLINE",
                             "UV_REQUEST_TIMEOUT", "UV_CONCURRENT_DOWNLOADS",
                             "HTTP_PROXY",         "HTTPS_PROXY",
                             "ALL_PROXY",          "NO_PROXY",
                             "http_proxy",         "https_proxy",
                             "all_proxy",          "no_proxy"};
constexpr std::array kIndexVariables{"UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"};

constexpr const char* kLent = "/run/pctx";  // in the box: our own folder for what a build is lent

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (char c : text) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (!word.empty()) words.push_back(std::exchange(word, ""));
    } else {
      word += c;
    }
  }
  if (!word.empty()) words.push_back(word);
  return words;
}

bool is_true(std::string_view text) { return text == "1" || text == "true" || text == "yes" || text == "on"; }

// The password of "scheme://user:password@host", or the user where a token stands in its place.
std::vector<std::string> secrets_of_addresses(std::string_view text) {
  std::vector<std::string> secrets;
  for (std::size_t at = text.find("://"); at != std::string_view::npos; at = text.find("://", at + 3)) {
    const std::string_view authority = text.substr(at + 3, text.find_first_of("/ ,\"'\n", at + 3) - at - 3);
    const std::size_t sign = authority.rfind('@');
    if (sign == std::string_view::npos || sign == 0) continue;
    const std::string_view user = authority.substr(0, sign);
    const std::size_t colon = user.find(':');
    secrets.emplace_back(colon == std::string_view::npos ? user : user.substr(colon + 1));
    if (colon != std::string_view::npos && colon > 0) secrets.emplace_back(user);
  }
  return secrets;
}

class Translator {
 public:
  Translator(const HostSettings& host, bool source) : host_(host), source_(source) {}

  Result<IndexSettings> translate() {
    take_uv_variables();
    const bool configured = lend_uv_configuration();
    take_pip(configured);
    lend_certificates();
    lend_netrc();
    for (const auto& [name, value] : settings_.variables) {
      note_secrets(value, name);
      if (name.find("INDEX") != std::string::npos || name == "UV_FIND_LINKS" || name.ends_with("_PROXY") ||
          name.ends_with("_proxy"))
        note_addresses(value);
      settings_.names_index |= name == "UV_DEFAULT_INDEX" || name == "UV_INDEX_URL";
      if (name.find("INDEX") != std::string::npos || name == "UV_FIND_LINKS") lend_local(value);
    }
    if (source_ && !settings_.credentials.empty())
      return usage_error(fmt::format("--allow-source runs the code of packages, which could read the credentials in {}",
                                     settings_.credentials),
                         "build from wheels, or use an index that needs no credentials");
    return std::move(settings_);
  }

 private:
  std::string variable(const std::string& name) const {
    const auto found = host_.variables.find(name);
    return found == host_.variables.end() ? "" : found->second;
  }
  bool is_set(const std::string& name) const {
    return std::any_of(settings_.variables.begin(), settings_.variables.end(),
                       [&](const auto& known) { return known.first == name; });
  }
  void set(std::string name, std::string value) {
    if (!value.empty() && !is_set(name)) settings_.variables.emplace_back(std::move(name), std::move(value));
  }
  void lend(const std::string& source, const std::string& target) {
    for (const Bind& known : settings_.binds)
      if (known.target == target) return;
    settings_.binds.push_back({source, target, false});
  }
  void note_secrets(std::string_view text, std::string_view where) {
    for (std::string& secret : secrets_of_addresses(text)) {
      settings_.secrets.push_back(std::move(secret));
      settings_.credentials = where;
    }
  }
  // Everything that looks like one: a host more that nobody asks for does no harm.
  void note_addresses(std::string text) {
    for (char& c : text)
      if (std::string_view{",\"'{}"}.find(c) != std::string_view::npos) c = ' ';
    for (std::string& word : words_of(text))
      if (word.find("://") != std::string::npos) settings_.addresses.push_back(std::move(word));
  }
  std::string config_home() const {
    const std::string own = variable("XDG_CONFIG_HOME"), home = variable("HOME");
    return own.starts_with('/') ? own : home.starts_with('/') ? home + "/.config" : "";
  }

  void take_uv_variables() {
    for (const char* name : kPassed) set(name, variable(name));
    for (const auto& [name, value] : host_.variables)
      if (name.starts_with("UV_INDEX_") && (name.ends_with("_USERNAME") || name.ends_with("_PASSWORD"))) {
        set(name, value);
        if (name.ends_with("_USERNAME")) continue;
        settings_.secrets.push_back(value);
        settings_.credentials = name;
      }
  }

  // Whether a uv.toml says itself where packages come from; pip's settings then have nothing to add.
  bool lend_uv_configuration() {
    if (is_true(variable("UV_NO_CONFIG"))) {
      set("UV_NO_CONFIG", "1");
      return false;
    }
    bool found = false, names_index = false;
    const auto take = [&](const std::string& path, const std::string& target) {
      const auto text = host_.read(path);
      if (!text) return false;
      found = true;
      lend(path, target);
      note_secrets(*text, path);
      note_addresses(*text);
      if (text->find("password") != std::string::npos) settings_.credentials = path;
      names_index |= text->find("index") != std::string::npos || text->find("find-links") != std::string::npos;
      settings_.names_index |= text->find("index") != std::string::npos;
      return true;
    };
    if (const std::string file = variable("UV_CONFIG_FILE"); !file.empty()) {
      if (take(file, fmt::format("{}/uv.toml", kLent))) set("UV_CONFIG_FILE", fmt::format("{}/uv.toml", kLent));
    } else {
      if (take(config_home() + "/uv/uv.toml", fmt::format("{}/config/uv/uv.toml", kLent)))
        set("XDG_CONFIG_HOME", fmt::format("{}/config", kLent));
      (void)take("/etc/uv/uv.toml", "/etc/uv/uv.toml");
    }
    if (!found) set("UV_NO_CONFIG", "1");
    return names_index;
  }

  std::map<std::string, std::string> pip_settings() const {
    std::map<std::string, std::string> settings;
    const std::string own = variable("PIP_CONFIG_FILE"), home = variable("HOME"), venv = variable("VIRTUAL_ENV");
    std::vector<std::string> files{"/etc/xdg/pip/pip.conf", "/etc/pip.conf"};
    if (home.starts_with('/')) files.push_back(home + "/.pip/pip.conf");
    if (!config_home().empty()) files.push_back(config_home() + "/pip/pip.conf");
    if (venv.starts_with('/')) files.push_back(venv + "/pip.conf");
    if (!own.empty()) files.push_back(own);
    if (own == "/dev/null") files.clear();  // as pip has it: no file at all
    for (const std::string& file : files)
      if (const auto text = host_.read(file))
        for (auto& [key, value] : parse_pip_conf(*text)) settings[key] = value;
    for (const auto& [name, value] : host_.variables) {
      if (!name.starts_with("PIP_") || value.empty()) continue;
      std::string key = name.substr(4);
      std::transform(key.begin(), key.end(), key.begin(), [](char c) {
        return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
      });
      settings[key] = value;
    }
    return settings;
  }

  void take_pip(bool uv_is_configured) {
    auto pip = pip_settings();
    const bool uv_index = uv_is_configured || std::any_of(kIndexVariables.begin(), kIndexVariables.end(),
                                                          [&](auto name) { return is_set(name); });
    if (!uv_index) {
      set("UV_DEFAULT_INDEX", pip["index-url"]);
      set("UV_INDEX", fmt::format("{}", fmt::join(words_of(pip["extra-index-url"]), " ")));
      settings_.no_index = is_true(pip["no-index"]);
    }
    if (!uv_is_configured) {
      std::vector<std::string> places;
      // pip passes over a folder that is not there, uv does not.
      for (std::string& place : words_of(pip["find-links"]))
        if (place.find("://") != std::string::npos || host_.exists(place)) places.push_back(std::move(place));
      set("UV_FIND_LINKS", fmt::format("{}", fmt::join(places, ",")));
    }
    set("UV_INSECURE_HOST", fmt::format("{}", fmt::join(words_of(pip["trusted-host"]), " ")));
    certificate_ = pip["cert"];
    client_certificate_ = pip["client-cert"];
    if (const std::string seconds = pip["timeout"]; seconds.find_first_not_of("0123456789") == std::string::npos)
      set("UV_HTTP_TIMEOUT", seconds);
    if (const std::string proxy = pip["proxy"]; !proxy.empty() && !is_set("HTTPS_PROXY") && !is_set("https_proxy")) {
      const std::string address = proxy.find("://") == std::string::npos ? "http://" + proxy : proxy;
      set("HTTP_PROXY", address);
      set("HTTPS_PROXY", address);
    }
  }

  void lend_certificates() {
    if (const std::string own = variable("SSL_CERT_FILE"); !own.empty()) certificate_ = own;
    if (!certificate_.empty() && host_.exists(certificate_)) {
      lend(certificate_, fmt::format("{}/cert.pem", kLent));
      set("SSL_CERT_FILE", fmt::format("{}/cert.pem", kLent));
    }
    if (const std::string folder = variable("SSL_CERT_DIR");
        certificate_.empty() && folder.starts_with('/') && host_.exists(folder)) {
      lend(folder, fmt::format("{}/certs", kLent));
      set("SSL_CERT_DIR", fmt::format("{}/certs", kLent));
    }
    if (const std::string own = variable("SSL_CLIENT_CERT"); !own.empty()) client_certificate_ = own;
    if (client_certificate_.empty() || !host_.exists(client_certificate_)) return;
    settings_.credentials = client_certificate_;
    lend(client_certificate_, fmt::format("{}/client.pem", kLent));
    set("SSL_CLIENT_CERT", fmt::format("{}/client.pem", kLent));
  }

  void lend_netrc() {
    const std::string named = variable("NETRC"), home = variable("HOME");
    const std::string file = !named.empty() ? named : home.starts_with('/') ? home + "/.netrc" : "";
    const auto text = file.empty() || source_ ? std::nullopt : host_.read(file);
    if (!text) return;
    lend(file, fmt::format("{}/netrc", kLent));
    set("NETRC", fmt::format("{}/netrc", kLent));
    const auto words = words_of(*text);
    for (std::size_t i = 0; i + 1 < words.size(); ++i)
      if (words[i] == "password") settings_.secrets.push_back(words[i + 1]);
  }

  // Folders of the host that an index or find-links setting names, at the same place in the box.
  void lend_local(const std::string& value) {
    std::string words = value;
    std::replace(words.begin(), words.end(), ',', ' ');
    for (std::string place : words_of(words)) {
      if (const std::size_t scheme = place.find("file://"); scheme != std::string::npos)
        place = place.substr(scheme + 7);
      while (place.size() > 1 && place.back() == '/') place.pop_back();
      if (place.starts_with('/') && place.find("://") == std::string::npos && host_.exists(place)) lend(place, place);
    }
  }

  const HostSettings& host_;
  bool source_;
  IndexSettings settings_;
  std::string certificate_, client_certificate_;
};

}  // namespace

Result<IndexSettings> index_settings(const HostSettings& host, bool source) {
  return Translator{host, source}.translate();
}

std::string scrub(std::string_view text, const std::vector<std::string>& secrets) {
  std::vector<std::string> all = secrets;
  for (std::string& secret : secrets_of_addresses(text)) all.push_back(std::move(secret));
  // The longest first: "user:password" before "user".
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::string result{text};
  for (const std::string& secret : all)
    for (std::size_t at = 0; secret.size() > 2 && (at = result.find(secret, at)) != std::string::npos; at += 4)
      result.replace(at, secret.size(), "****");
  return result;
}

std::map<std::string, std::string> parse_pip_conf(std::string_view text) {
  std::map<std::string, std::string> settings;
  bool ours = false;
  std::string key;
  for (std::string_view line : sys::split(text, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    const auto words = words_of(line);
    if (words.empty() || words[0].front() == '#' || words[0].front() == ';') continue;
    if (line.front() == '[') {
      ours = line.starts_with("[global]") || line.starts_with("[install]");
      key.clear();
    } else if (line.front() == ' ' || line.front() == '\t') {
      // A value that goes on.
      if (ours && !key.empty()) settings[key] += fmt::format(" {}", fmt::join(words, " "));
    } else if (const std::size_t sign = line.find_first_of("=:"); ours && sign != std::string_view::npos) {
      const auto name = words_of(line.substr(0, sign));
      key = name.empty() ? "" : name[0];
      std::replace(key.begin(), key.end(), '_', '-');
      if (!key.empty()) settings[key] = fmt::format("{}", fmt::join(words_of(line.substr(sign + 1)), " "));
    }
  }
  return settings;
}

HostSettings settings_of_this_host() {
  HostSettings host;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    if (const std::size_t sign = text.find('='); sign != std::string_view::npos)
      host.variables.emplace(text.substr(0, sign), text.substr(sign + 1));
  }
  host.read = [](const std::string& path) { return sys::try_read_file(path, 1U << 20); };
  host.exists = [](const std::string& path) { return ::access(path.c_str(), R_OK) == 0; };
  return host;
}

}  // namespace pctx::env
