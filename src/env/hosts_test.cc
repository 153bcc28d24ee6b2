#include "env/hosts.h"

#include <gtest/gtest.h>

namespace pctx::env {
namespace {

std::vector<std::string> shown(const std::vector<NetRule>& rules) {
  std::vector<std::string> words;
  for (const NetRule& rule : rules) words.push_back(to_string(rule));
  return words;
}

TEST(BuildHosts, are_those_of_the_addresses) {
  const auto rules = rules_of({"https://user:secret@index.example/simple", "name=http://mirror.example:8080/x",
                               "http://[2001:db8::1]/", "socks5://proxy.example", "file:///wheels", "/wheels",
                               "ftp://x", "https://index.example/other"});
  EXPECT_EQ(shown(rules), (std::vector<std::string>{"index.example:443", "mirror.example:8080", "[2001:db8::1]:80",
                                                    "proxy.example:1080"}));
}

TEST(BuildHosts, loopback_is_the_hosts_when_the_host_says_so) {
  IndexSettings index;
  index.addresses = {"http://localhost:3141/root/pypi"};
  index.names_index = true;
  const NetworkPolicy network = build_network(index);
  EXPECT_EQ(shown(network.rules), (std::vector<std::string>{"127.0.0.1:3141", "[::1]:3141"}));
  EXPECT_TRUE(is_opened(network, *parse_ip("127.0.0.1")));
  EXPECT_FALSE(is_opened(build_network({}), *parse_ip("127.0.0.1")));
}

TEST(BuildHosts, the_usual_index_brings_its_file_host) {
  EXPECT_EQ(shown(build_network({}).rules), (std::vector<std::string>{"pypi.org:443", "files.pythonhosted.org:443"}));
  IndexSettings none;
  none.no_index = true;
  EXPECT_TRUE(build_network(none).rules.empty());
}

TEST(BuildHosts, what_was_refused_is_learned_once) {
  NetworkPolicy network = build_network({});
  NetworkRecord record;
  record.connections = {{.name = "files.example", .transport = "dns"},
                        {.address = "127.0.0.1", .port = 5000, .transport = "tcp"},
                        {.address = "10.0.0.9", .port = 8081, .transport = "tcp"}};
  EXPECT_TRUE(learn_hosts(network, record));
  EXPECT_EQ(network.rules.size(), 4U) << "a page that links to loopback is not believed";
  EXPECT_FALSE(learn_hosts(network, record));
}

}  // namespace
}  // namespace pctx::env
