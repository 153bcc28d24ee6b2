#include "policy/policy.h"

#include <gtest/gtest.h>

namespace pctx {
namespace {

TEST(Policy, defaults_are_safe_and_valid) {
  const Policy policy;
  EXPECT_TRUE(validate(policy).has_value());
  EXPECT_EQ(policy.network, Network::none);
  EXPECT_EQ(policy.limits.memory, 1_GiB);
  EXPECT_EQ(policy.limits.pids, 64U);
  EXPECT_EQ(policy.limits.timeout, Millis{30'000});
  EXPECT_TRUE(policy.env.empty());
}

TEST(Policy, json_round_trip_keeps_every_field) {
  const char* text = R"({
    "limits": {"memory": "512M", "cpus": 0.5, "pids": 7, "timeout": "90s", "cpu_time": 10, "disk": "64M", "inodes": 100,
               "output": 1000, "files": 64, "io_read": "50M", "io_write": "1M"},
    "files": {"mnt": "/data", "ro": ["/opt/a:/a"], "rw": ["/opt/b:/b"], "tmpfs": ["/c:4M"], "workdir": "/a"},
    "identity": {"env": {"A": "1", "B": ""}, "hostname": "box", "uid": 0},
    "network": "host", "seccomp": "p.json", "require": ["landlock"], "allow_degraded": ["cgroups"]})";
  const auto policy = policy_from_json(text);
  ASSERT_TRUE(policy.has_value()) << policy.error().what;
  EXPECT_EQ(policy->limits.memory, 512_MiB);
  EXPECT_EQ(policy->limits.cpus, 500U);
  EXPECT_EQ(policy->limits.cpu_time, Millis{10'000});
  EXPECT_EQ(policy->binds.size(), 2U);
  EXPECT_TRUE(policy->binds[1].writable);
  EXPECT_EQ(policy->tmpfs[0].size, 4_MiB);
  EXPECT_EQ(policy->uid, 0U);
  const auto again = policy_from_json(policy_to_json(*policy));
  ASSERT_TRUE(again.has_value()) << again.error().what;
  EXPECT_EQ(policy_to_json(*policy), policy_to_json(*again));
}

struct Refused {
  const char* text;
  const char* names;
};

class PolicyRefuses : public testing::TestWithParam<Refused> {};

TEST_P(PolicyRefuses, and_names_the_place) {
  const auto policy = policy_from_json(GetParam().text);
  ASSERT_FALSE(policy.has_value());
  EXPECT_EQ(policy.error().kind, ErrorKind::usage);
  EXPECT_NE(policy.error().what.find(GetParam().names), std::string::npos) << policy.error().what;
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, PolicyRefuses,
    testing::Values(
        Refused{R"({"limit": {}})", "limit"}, Refused{R"({"limits": {"mem": 1}})", "limits.mem"},
        Refused{R"({"limits": {"memory": "lots"}})", "limits.memory"},
        Refused{R"({"limits": {"memory": -1}})", "a whole number of bytes, or a string such as \"512M\""},
        Refused{R"({"limits": {"disk": true}})", "'limits.disk' must be a whole number of bytes"},
        Refused{R"({"limits": {"timeout": -1}})", "a number of seconds, or a string such as \"30s\""},
        Refused{R"({"limits": {"cpus": []}})", "a number above 0, or a string such as \"0.5\""},
        Refused{R"({"limits": {"pids": -1}})", "limits.pids"}, Refused{R"({"limits": {"pids": 1.5}})", "limits.pids"},
        Refused{R"({"limits": []})", "limits"}, Refused{R"({"network": true})", "network"},
        Refused{R"({"network": "lan"})", "network"}, Refused{R"({"network": {"allow": "a.example"}})", "network.allow"},
        Refused{R"({"network": {"allow": ["http://a.example/"]}})", "network.allow"},
        Refused{R"({"network": {"allow": [3]}})", "network.allow"},
        Refused{R"({"network": {"allow": ["a.example"], "private": ["10.0.0.1/8"]}})", "network.private"},
        Refused{R"({"network": {"allow": ["a.example"], "rate": "fast"}})", "network.rate"},
        Refused{R"({"network": {"deny": []}})", "network.deny"}, Refused{R"({"files": {"ro": "x"}})", "files.ro"},
        Refused{R"({"files": {"rw": ["/x"]}})", "files.rw"},
        Refused{R"({"identity": {"env": {"A": 1}}})", "identity.env.A"},
        Refused{R"({"identity": {"uid": 70000}})", "identity.uid"}, Refused{R"({"require": ["armour"]})", "armour"},
        Refused{R"({"network": "none", "network": "host"})", "twice"}, Refused{R"([])", "object"},
        Refused{R"({)", "JSON"}, Refused{R"([[[[[[[[[[[[1]]]]]]]]]]]])", "deeper"}));

Policy with(void (*change)(Policy&)) {
  Policy policy;
  change(policy);
  return policy;
}

TEST(Validate, refuses_what_would_undo_a_layer) {
  for (const char* target :
       {"/", "/proc", "/proc/sys", "/dev", "/dev/shm", "/sys/x", "/etc", "/tmp", "relative", "/a/../b", "/a//b"}) {
    Policy policy;
    policy.binds.push_back({"/opt", target, false});
    EXPECT_FALSE(validate(policy).has_value()) << target;
  }
  EXPECT_TRUE(validate(with([](Policy& p) { p.binds.push_back({"/opt", "/opt", false}); })).has_value());
  EXPECT_TRUE(validate(with([](Policy& p) { p.binds.push_back({"/opt", "/etc/extra", false}); })).has_value());
}

TEST(Validate, a_system_folder_is_refused_as_such_and_not_for_its_place) {
  for (const char* path : {"/", "/proc", "/dev"}) {
    Policy policy;
    policy.binds.push_back({path, path, false});
    EXPECT_NE(validate(policy).error().what.find("is never lent as a whole"), std::string::npos) << path;
  }
  EXPECT_TRUE(validate(with([](Policy& p) { p.workdir = "/"; })).has_value());
}

TEST(Validate, refuses_limits_out_of_range_and_names_the_option) {
  const auto memory = validate(with([](Policy& p) { p.limits.memory = 1; }));
  ASSERT_FALSE(memory.has_value());
  EXPECT_NE(memory.error().what.find("--memory"), std::string::npos);
  EXPECT_FALSE(validate(with([](Policy& p) { p.limits.pids = 0; })).has_value());
  EXPECT_FALSE(validate(with([](Policy& p) { p.limits.cpu_time = Millis{0}; })).has_value());
  EXPECT_FALSE(validate(with([](Policy& p) { p.limits.io_read = 1; })).has_value());
}

TEST(Validate, refuses_two_things_at_one_place) {
  EXPECT_FALSE(validate(with([](Policy& p) { p.binds = {{"/a", "/x", false}, {"/b", "/x", false}}; })).has_value());
  EXPECT_FALSE(validate(with([](Policy& p) {
                 p.mnt = "/a";
                 p.tmpfs = {{"/mnt", 1_MiB}};
               })).has_value());
}

TEST(Validate, refuses_bad_names) {
  EXPECT_FALSE(validate(with([](Policy& p) { p.hostname = "a b"; })).has_value());
  EXPECT_FALSE(validate(with([](Policy& p) { p.hostname = ""; })).has_value());
  EXPECT_FALSE(validate(with([](Policy& p) { p.env = {{"A=B", "c"}}; })).has_value());
  EXPECT_FALSE(validate(with([](Policy& p) { p.env = {{"A", std::string("x\0y", 3)}}; })).has_value());
}

TEST(Validate, a_layer_is_not_both_required_and_left_out) {
  EXPECT_FALSE(validate(with([](Policy& p) {
                 p.require.set(index(Layer::landlock));
                 p.allow_degraded.set(index(Layer::landlock));
               })).has_value());
}

TEST(PolicyNetwork, json_round_trip_keeps_the_list) {
  const auto policy =
      policy_from_json(R"({"network": {"allow": ["API.Example.com.", "*.example.org:443", "192.0.2.7:8080",
    "[2001:db8::1]", "*:8443"], "private": ["10.1.2.0/24"], "rate": "5M", "bytes": "100M", "connections": 64}})");
  ASSERT_TRUE(policy.has_value()) << policy.error().what;
  EXPECT_EQ(policy->network, Network::allow);
  EXPECT_EQ(policy->allowed.rules.size(), 5U);
  EXPECT_EQ(policy->allowed.rate, 5_MiB);
  EXPECT_TRUE(validate(*policy).has_value());
  const auto again = policy_from_json(policy_to_json(*policy));
  ASSERT_TRUE(again.has_value()) << again.error().what;
  EXPECT_EQ(policy->allowed, again->allowed);
}

TEST(PolicyNetwork, the_command_line_replaces_the_file) {
  Policy policy = *policy_from_json(R"({"network": {"allow": ["a.example"], "rate": "5M"}})");
  ASSERT_TRUE(parse_network("allow:b.example,c.example:22", policy));
  EXPECT_EQ(policy.allowed.rules.size(), 2U);
  EXPECT_EQ(policy.allowed.rate, 5_MiB) << "what the line does not name stays";
  ASSERT_TRUE(parse_network("none", policy));
  EXPECT_TRUE(validate(policy)) << "a rate of nothing is no mistake of the line's";
  EXPECT_FALSE(parse_network("allow:", policy));
  EXPECT_FALSE(parse_network("allow:a.example,,b.example", policy));
  EXPECT_FALSE(parse_network("allow", policy));
}

TEST(PolicyNetwork, limits_without_a_list_are_refused) {
  for (const char* text : {R"({"network": {"allow": []}})", R"({"network": {}})", R"({"network": {"rate": "1M"}})"})
    EXPECT_FALSE(validate(*policy_from_json(text)).has_value()) << text;
  EXPECT_FALSE(validate(with([](Policy& p) { p.allowed.rate = 1_MiB; })).has_value());
  EXPECT_FALSE(validate(with([](Policy& p) { p.allowed.open_private = *parse_private_ranges("10.1.2.0/24"); })));
}

TEST(PolicyNetwork, private_ranges_are_separated_by_commas) {
  EXPECT_EQ(parse_private_ranges("10.1.2.0/24,fd00::/64")->size(), 2U);
  EXPECT_FALSE(parse_private_ranges(""));
  EXPECT_FALSE(parse_private_ranges("10.1.2.0/24,"));
}

TEST(ParseBind, reads_both_forms) {
  EXPECT_EQ(parse_bind("/a", false)->target, "/a");
  EXPECT_EQ(parse_bind("/a:/b", true)->target, "/b");
  EXPECT_FALSE(parse_bind("/a", true).has_value());
  EXPECT_FALSE(parse_bind(":/b", false).has_value());
}

TEST(ParseEnv, wants_a_value) {
  EXPECT_EQ(parse_env("A=b=c")->second, "b=c");
  EXPECT_FALSE(parse_env("PATH").has_value());
  EXPECT_FALSE(parse_env("=x").has_value());
}

}  // namespace
}  // namespace pctx
