#include "env/index.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

using Files = std::map<std::string, std::string>;

HostSettings host(std::map<std::string, std::string> variables, const Files& files = {}) {
  HostSettings settings;
  settings.variables = std::move(variables);
  settings.read = [files](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional{found->second};
  };
  settings.exists = [files](const std::string& path) { return files.count(path) > 0; };
  return settings;
}

std::string value(const IndexSettings& settings, const std::string& name) {
  for (const auto& [known, text] : settings.variables)
    if (known == name) return text;
  return "";
}

std::string source_of(const IndexSettings& settings, const std::string& target) {
  for (const Bind& bind : settings.binds)
    if (bind.target == target && !bind.writable) return bind.source;
  return "";
}

TEST(Index, pip_conf_is_translated) {
  const auto settings = index_settings(
      host({{"HOME", "/home/me"}},
           {{"/etc/pip.conf", "[global]\nindex-url = https://global.example/simple\ntimeout = 7\n"},
            {"/home/me/.config/pip/pip.conf",
             "# mine\n[global]\nindex_url: https://mine.example/simple\nextra-index-url =\n    https://a.example/s\n"
             "    https://b.example/s\ntrusted-host = a.example b.example\nfind-links = /wheels /missing\n"
             "cert = /ca.pem\nproxy = proxy.example:3128\n[list]\nindex-url = https://other.example\n"},
            {"/wheels", ""},
            {"/ca.pem", ""}}),
      false);
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(value(*settings, "UV_DEFAULT_INDEX"), "https://mine.example/simple");
  EXPECT_EQ(value(*settings, "UV_INDEX"), "https://a.example/s https://b.example/s");
  EXPECT_EQ(value(*settings, "UV_INSECURE_HOST"), "a.example b.example");
  EXPECT_EQ(value(*settings, "UV_FIND_LINKS"), "/wheels");
  EXPECT_EQ(value(*settings, "UV_HTTP_TIMEOUT"), "7");
  EXPECT_EQ(value(*settings, "HTTPS_PROXY"), "http://proxy.example:3128");
  EXPECT_EQ(value(*settings, "SSL_CERT_FILE"), "/run/pctx/cert.pem");
  EXPECT_EQ(source_of(*settings, "/run/pctx/cert.pem"), "/ca.pem");
  EXPECT_EQ(source_of(*settings, "/wheels"), "/wheels");
  EXPECT_EQ(settings->credentials, "");
}

TEST(Index, variables_of_pip_beat_its_files_and_those_of_uv_beat_both) {
  const Files files{{"/etc/pip.conf", "[global]\nindex-url = https://file.example\n"}};
  const auto pip = index_settings(host({{"PIP_INDEX_URL", "https://pip.example"}}, files), false);
  EXPECT_EQ(value(*pip, "UV_DEFAULT_INDEX"), "https://pip.example");
  const auto uv = index_settings(host({{"PIP_INDEX_URL", "x"}, {"UV_INDEX_URL", "https://uv.example"}}, files), false);
  EXPECT_EQ(value(*uv, "UV_INDEX_URL"), "https://uv.example");
  EXPECT_EQ(value(*uv, "UV_DEFAULT_INDEX"), "");
  const auto none = index_settings(host({{"PIP_CONFIG_FILE", "/dev/null"}}, files), false);
  EXPECT_EQ(value(*none, "UV_DEFAULT_INDEX"), "");
}

TEST(Index, a_uv_toml_is_lent_and_beats_pip) {
  const auto settings = index_settings(host({{"HOME", "/home/me"}, {"PIP_INDEX_URL", "https://pip.example"}},
                                            {{"/home/me/.config/uv/uv.toml", "index-url = 'https://toml.example'"}}),
                                       false);
  EXPECT_EQ(source_of(*settings, "/run/pctx/config/uv/uv.toml"), "/home/me/.config/uv/uv.toml");
  EXPECT_EQ(value(*settings, "XDG_CONFIG_HOME"), "/run/pctx/config");
  EXPECT_EQ(value(*settings, "UV_DEFAULT_INDEX"), "");
  EXPECT_EQ(value(*index_settings(host({}), false), "UV_NO_CONFIG"), "1");
}

TEST(Index, what_would_change_where_we_install_is_not_passed_on) {
  const auto settings = index_settings(host({{"UV_CACHE_DIR", "/x"},
                                             {"UV_TARGET", "/x"},
                                             {"UV_PYTHON", "3.9"},
                                             {"UV_NO_BINARY", "1"},
                                             {"AWS_SECRET_ACCESS_KEY", "k"},
                                             {"HOME", "/h"}}),
                                       false);
  for (const auto& [name, text] : settings->variables) EXPECT_EQ(name, "UV_NO_CONFIG");
}

TEST(Index, credentials_are_known_as_secrets) {
  const auto settings = index_settings(
      host({{"UV_INDEX_URL", "https://me:hunter22@h.example/s"}, {"UV_INDEX_PRIV_PASSWORD", "geheim"}, {"HOME", "/h"}},
           {{"/h/.netrc", "machine h.example\n login me password netrcpass\n"}}),
      false);
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(source_of(*settings, "/run/pctx/netrc"), "/h/.netrc");
  const std::string said = "GET https://me:hunter22@h.example/s geheim netrcpass failed";
  EXPECT_EQ(scrub(said, settings->secrets), "GET https://****@h.example/s **** **** failed");
  EXPECT_EQ(scrub("see https://token@other.example/x", {}), "see https://****@other.example/x");
}

TEST(Index, credentials_and_the_code_of_packages_never_meet) {
  for (const auto& variables : {std::map<std::string, std::string>{{"UV_INDEX_URL", "https://me:pw22@h.example/s"}},
                                {{"UV_INDEX_PRIV_PASSWORD", "geheim"}},
                                {{"PIP_EXTRA_INDEX_URL", "https://token@h.example/s"}},
                                {{"HTTPS_PROXY", "http://me:pw22@proxy.example"}}}) {
    EXPECT_TRUE(index_settings(host(variables), false).has_value());
    const auto refused = index_settings(host(variables), true);
    ASSERT_FALSE(refused.has_value());
    for (const char* secret : {"pw22", "geheim", "token"})
      EXPECT_EQ(refused.error().sentence().find(secret), std::string::npos);
  }
  EXPECT_FALSE(index_settings(host({{"UV_CONFIG_FILE", "/u.toml"}}, {{"/u.toml", "index = 'https://a:bcd@h'"}}), true)
                   .has_value());
  const auto netrc = index_settings(host({{"HOME", "/h"}}, {{"/h/.netrc", "machine h login me password pw"}}), true);
  ASSERT_TRUE(netrc.has_value()) << "a netrc file may well be about something else";
  EXPECT_TRUE(netrc->binds.empty());
}

TEST(Index, folders_named_as_addresses_are_lent) {
  const auto settings =
      index_settings(host({{"UV_DEFAULT_INDEX", "file:///srv/simple/"}}, {{"/srv/simple", ""}}), false);
  EXPECT_EQ(source_of(*settings, "/srv/simple"), "/srv/simple");
}

}  // namespace
}  // namespace pctx::env
