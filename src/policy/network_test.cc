#include "policy/network.h"

#include <gtest/gtest.h>

#include "policy/host_name.h"

namespace pctx {
namespace {

NetworkPolicy policy_of(std::string_view entries) {
  NetworkPolicy policy;
  auto rules = parse_net_rules(entries);
  EXPECT_TRUE(rules) << entries;
  if (rules) policy.rules = *std::move(rules);
  return policy;
}

IpAddress ip(std::string_view text) { return parse_ip(text).value_or(IpAddress{}); }

TEST(NetRules, read_what_people_write) {
  const auto rules =
      *parse_net_rules("api.example.com,*.Example.ORG:443,db.internal:5432,192.0.2.7:8080,[2001:db8::1],*");
  ASSERT_EQ(rules.size(), 6u);
  EXPECT_EQ(rules[0].kind, NetRule::Kind::name);
  EXPECT_EQ(rules[0].ports, (std::vector<std::uint16_t>{80, 443}));
  EXPECT_EQ(rules[1].kind, NetRule::Kind::wildcard);
  EXPECT_EQ(rules[1].name, "example.org");
  EXPECT_EQ(rules[2].ports, (std::vector<std::uint16_t>{5432}));
  EXPECT_EQ(rules[3].address.text(), "192.0.2.7");
  EXPECT_EQ(rules[4].address.text(), "2001:db8::1");
  EXPECT_EQ(rules[5].kind, NetRule::Kind::any);
  for (const NetRule& rule : rules) EXPECT_EQ(*parse_net_rule(to_string(rule)), rule) << to_string(rule);
}

TEST(NetRules, normalise_case_and_the_trailing_dot) {
  EXPECT_EQ(parse_net_rule("API.Example.COM.")->name, "api.example.com");
  EXPECT_EQ(parse_net_rule("[::ffff:192.0.2.7]:80")->address.text(), "192.0.2.7");
  EXPECT_EQ(parse_net_rule("10.1.0.0/16:5432")->address.text(), "10.1.0.0/16");
}

TEST(NetRules, refuse_with_one_sentence) {
  const std::string label64(64, 'a'), long_name = label64.substr(1) + "." + label64.substr(1) + "." +
                                                  label64.substr(1) + "." + label64.substr(1) + ".com";
  for (const std::string& entry : std::vector<std::string>{"http://x/",
                                                           "https://api.example.com",
                                                           "x/y",
                                                           "exa mple",
                                                           "",
                                                           "a,b",
                                                           "a.*.b",
                                                           "*a.example.org",
                                                           "a*",
                                                           "**.example.org",
                                                           "*.*.example.org",
                                                           "*.",
                                                           "x:70000",
                                                           "x:0",
                                                           "x:",
                                                           "x:80:90",
                                                           "x:+80",
                                                           "x:8o",
                                                           "a..b",
                                                           ".a",
                                                           ".",
                                                           label64 + ".com",
                                                           long_name,
                                                           "-a.com",
                                                           "a-.com",
                                                           "127.0.0.1",
                                                           "127.1",
                                                           "0x7f.1",
                                                           "0x7f000001",
                                                           "2130706433",
                                                           "1.2.3",
                                                           "1.2.3.4.5",
                                                           "256.1.1.1",
                                                           "01.2.3.4",
                                                           "[::1]",
                                                           "[::]",
                                                           "0.0.0.0",
                                                           "[::ffff:127.0.0.1]",
                                                           "localhost",
                                                           "x.localhost",
                                                           "::1",
                                                           "2001:db8::1",
                                                           "[2001:db8::1",
                                                           "[2001:db8::1]x",
                                                           "[x]",
                                                           "user@host",
                                                           "a?b",
                                                           "a#b",
                                                           "a\tb",
                                                           "xn--.com",
                                                           "xn--a.com",
                                                           "xn--abc-.com",
                                                           "xn--99zzzz99999999.com",
                                                           "xn--bcher-kva0.com!",
                                                           "a\x01",
                                                           "198.18.0.9",
                                                           "0.0.0.0/0",
                                                           "10.0.0.1/8",
                                                           "10.0.0.0/33",
                                                           "fe80::1%eth0",
                                                           "[fe80::1%eth0]",
                                                           "a\\b"}) {
    const auto rule = parse_net_rule(entry);
    EXPECT_FALSE(rule) << entry;
    if (rule) continue;
    EXPECT_EQ(rule.error().kind, ErrorKind::usage);
    EXPECT_FALSE(rule.error().what.empty());
    EXPECT_EQ(rule.error().what.find('\n'), std::string::npos);
  }
}

TEST(NetRules, tell_the_punycode_of_a_unicode_name) {
  const auto rule = parse_net_rule(
      "b\xc3\xbc"
      "cher.example");
  ASSERT_FALSE(rule);
  EXPECT_NE(rule.error().hint.find("xn--bcher-kva.example"), std::string::npos);
  EXPECT_TRUE(parse_net_rule("xn--bcher-kva.example"));
}

TEST(NetRules, match_names_and_ports) {
  const NetworkPolicy policy = policy_of("api.example.com,*.example.org:443,db.internal:5432");
  EXPECT_TRUE(find_rule(policy, "api.example.com", 443));
  EXPECT_TRUE(find_rule(policy, "api.example.com", 80));
  EXPECT_FALSE(find_rule(policy, "api.example.com", 22));
  EXPECT_FALSE(find_rule(policy, "x.api.example.com", 443));
  EXPECT_FALSE(find_rule(policy, "example.com", 443));
  EXPECT_TRUE(find_rule(policy, "sub.example.org", 443));
  EXPECT_TRUE(find_rule(policy, "a.b.example.org", 443));
  EXPECT_FALSE(find_rule(policy, "example.org", 443));
  EXPECT_FALSE(find_rule(policy, "evilexample.org", 443));
  EXPECT_FALSE(find_rule(policy, ".example.org", 443));
  EXPECT_FALSE(find_rule(policy, "sub.example.org", 80));
  EXPECT_TRUE(may_resolve(policy, "db.internal"));
  EXPECT_FALSE(may_resolve(policy, "internal"));
  EXPECT_FALSE(may_resolve(policy, ""));
}

TEST(NetRules, any_is_the_internet_and_not_the_neighbourhood) {
  const NetworkPolicy policy = policy_of("*");
  EXPECT_TRUE(may_resolve(policy, "api.example.com"));
  for (const char* name : {"localhost", "x.localhost", "router", "printer.local"})
    EXPECT_FALSE(may_resolve(policy, name)) << name;
  EXPECT_TRUE(find_rule(policy, ip("93.184.216.34"), 443));
  EXPECT_FALSE(find_rule(policy, ip("93.184.216.34"), 22));
}

TEST(NetRules, the_exact_rule_wins) {
  const NetworkPolicy policy = policy_of("*,*.example.org,www.example.org");
  EXPECT_EQ(find_rule(policy, "www.example.org", 443)->kind, NetRule::Kind::name);
  EXPECT_EQ(find_rule(policy, "x.example.org", 443)->kind, NetRule::Kind::wildcard);
}

TEST(NetRules, match_addresses_by_their_range) {
  const NetworkPolicy policy = policy_of("192.0.2.7:8080,[2001:db8::/32]:80");
  EXPECT_TRUE(find_rule(policy, ip("192.0.2.7"), 8080));
  EXPECT_FALSE(find_rule(policy, ip("192.0.2.8"), 8080));
  EXPECT_FALSE(find_rule(policy, ip("192.0.2.7"), 80));
  EXPECT_TRUE(find_rule(policy, ip("2001:db8:1::5"), 80));
  EXPECT_FALSE(find_rule(policy, ip("2001:db9::5"), 80));
}

TEST(NetRules, private_ranges_are_named_one_by_one) {
  NetworkPolicy policy = policy_of("db.internal");
  policy.open_private = {*parse_private_range("10.1.2.0/24"), *parse_private_range("fd00:1::/32")};
  EXPECT_TRUE(is_opened(policy, ip("10.1.2.200")));
  EXPECT_FALSE(is_opened(policy, ip("10.1.3.1")));
  EXPECT_TRUE(is_opened(policy, ip("::ffff:10.1.2.3").canonical()));
  EXPECT_TRUE(is_opened(policy, ip("fd00:1:2::3")));
  for (const char* bad : {"0.0.0.0/0", "::/0", "10.1.2.3/24", "10.1.2.0/40", "x", "", "10.1.2.0/"})
    EXPECT_FALSE(parse_private_range(bad)) << bad;
}

TEST(NetRules, whole_policies_are_judged) {
  EXPECT_FALSE(validate(NetworkPolicy{}));
  NetworkPolicy policy = policy_of("a.example");
  EXPECT_TRUE(validate(policy));
  policy.connections = 0;
  EXPECT_FALSE(validate(policy));
  policy.connections = 64;
  policy.rate = 10;
  EXPECT_FALSE(validate(policy));
  policy = policy_of("a.example:53");
  EXPECT_FALSE(validate(policy));
  policy.rules.clear();
  for (int port = 1000; port < 1017; ++port)
    policy.rules.push_back(*parse_net_rule("a.example:" + std::to_string(port)));
  EXPECT_FALSE(validate(policy));
  policy.rules.pop_back();
  EXPECT_TRUE(validate(policy));
  EXPECT_EQ(listening_ports(policy).size(), kMaxNetPorts);
}

TEST(HostNames, punycode_round_trips) {
  // RFC 3492, section 7.1 (L), and two everyday names.
  EXPECT_EQ(punycode(U"b\u00fccher"), "bcher-kva");
  EXPECT_EQ(punycode(U"\u4ed6\u4eec\u4e3a\u4ec0\u4e48\u4e0d\u8bf4\u4e2d\u6587"), "ihqwcrb4cv8a8dqg056pqjye");
  EXPECT_EQ(from_punycode("bcher-kva"), U"b\u00fccher");
  EXPECT_TRUE(from_punycode("!").empty());
  EXPECT_TRUE(from_punycode("9999999999999999999999").empty());
}

TEST(HostNames, what_guests_say_is_normalised_or_nothing) {
  EXPECT_EQ(normal_name("API.Example.com."), "api.example.com");
  EXPECT_EQ(normal_name("_x.example.com"), "_x.example.com");
  for (const std::string& bad :
       std::vector<std::string>{"", ".", "a..b", "a b", "a/b", std::string("a\0b", 3), ".a", "a..",
                                std::string(64, 'a'), std::string(254, 'a'), "\xc3\xbc"})
    EXPECT_EQ(normal_name(bad), "") << bad;
}

}  // namespace
}  // namespace pctx
