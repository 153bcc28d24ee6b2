#include "policy/policy.h"

#include <fmt/format.h>
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

TEST(Policy, a_number_means_what_the_same_string_means) {
  for (const char* seconds : {"0.0004", "0.0000000001", "0.0014", "0.5", "1.001", "2.0005", "90"}) {
    const auto number = policy_from_json(fmt::format(R"({{"limits": {{"timeout": {0}, "cpu_time": {0}}}}})", seconds));
    const auto string =
        policy_from_json(fmt::format(R"({{"limits": {{"timeout": "{0}", "cpu_time": "{0}"}}}})", seconds));
    ASSERT_TRUE(number && string) << seconds;
    EXPECT_EQ(number->limits.timeout, string->limits.timeout) << seconds;
    EXPECT_EQ(number->limits.cpu_time, string->limits.cpu_time) << seconds;
    EXPECT_GE(number->limits.timeout, Millis{1}) << seconds;  // 0 would be no limit
  }
  EXPECT_EQ(policy_from_json(R"({"limits": {"timeout": 0}})")->limits.timeout, Millis{0});
  EXPECT_EQ(policy_from_json(R"({"limits": {"cpus": 0.25}})")->limits.cpus, 250U);
  EXPECT_FALSE(policy_from_json(R"({"limits": {"cpus": 0.0004}})").has_value());
  EXPECT_FALSE(policy_from_json(R"({"limits": {"timeout": 1e300}})").has_value());
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
  EXPECT_TRUE(policy.error().what.starts_with("policy: ")) << policy.error().what;
  EXPECT_NE(policy.error().hint, "") << policy.error().what;
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
        Refused{R"({"files": {"ro": [5]}})", "'files.ro' must be a list of strings"},
        Refused{R"({"files": {"rw": ["/x"]}})", "files.rw"},
        Refused{R"({"identity": {"env": {"A": 1}}})", "identity.env.A"},
        Refused{R"({"identity": {"uid": 70000}})", "identity.uid"}, Refused{R"({"require": ["armour"]})", "armour"},
        Refused{R"({"network": "none", "network": "host"})", "twice"}, Refused{R"([])", "policy: it must be an object"},
        Refused{R"({"limits": {"pids": 1, "pids": 2}})", "'limits.pids' stands twice"},
        Refused{R"({)", "not valid JSON at line 1, column 2"}, Refused{R"([[[[[[[[[[[[1]]]]]]]]]]]])", "deeper"}));

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

TEST(Validate, calls_what_a_file_set_by_its_key) {
  const auto complaint = [](const char* text) {
    const auto policy = policy_from_json(text, "--policy x.json");
    if (!policy) return policy.error();
    const auto valid = validate(*policy);
    return valid ? Error{} : valid.error();
  };
  const std::pair<const char*, const char*> files[] = {
      {R"({"limits": {"memory": 5}})", "--policy x.json: 'limits.memory': 5 B is not between 4 MiB and 1024 TiB"},
      {R"({"limits": {"cpu_time": 0}})", "--policy x.json: 'limits.cpu_time': the time must be above zero"},
      {R"({"limits": {"io_read": 1}})", "--policy x.json: 'limits.io_read': the rate"},
      {R"({"files": {"ro": ["/usr:/proc/x"]}})", "--policy x.json: 'files.ro': /proc/x is made by the sandbox itself"},
      {R"({"files": {"rw": ["/:/x"]}})", "--policy x.json: 'files.rw': / is never lent"},
      {R"({"files": {"tmpfs": ["x"]}})", "--policy x.json: 'files.tmpfs': 'x' is not an absolute path"},
      {R"({"files": {"workdir": "x"}})", "--policy x.json: 'files.workdir': 'x' is not"},
      {R"({"identity": {"hostname": "a b"}})", "--policy x.json: 'identity.hostname': 'a b' is not"},
      {R"({"identity": {"uid": 65534}})", "--policy x.json: 'identity.uid': 65534 is not below 65534"},
      {R"({"identity": {"env": {"A=B": ""}}})", "--policy x.json: 'identity.env': the variable 'A=B'"},
      {R"({"network": {}})", "--policy x.json: 'network': the network list is empty"},
      {R"({"network": {"allow": ["a.example:53"]}})", "--policy x.json: 'network.allow': 'a.example:53': port 53"},
      {R"({"network": {"allow": ["a.example"], "rate": 1}})", "--policy x.json: 'network.rate': the rate"},
      {R"({"network": {"allow": ["a.example"], "connections": 0}})", "--policy x.json: 'network.connections': 0"},
      {R"({"apparmor": "a b"})", "--policy x.json: 'apparmor': 'a b' is not"},
      {R"({"require": ["landlock"], "allow_degraded": ["landlock"]})",
       "--policy x.json: 'require': 'landlock' stands in 'allow_degraded' too"},
  };
  for (const auto& [text, says] : files) {
    EXPECT_TRUE(complaint(text).what.starts_with(says)) << complaint(text).what;
    EXPECT_NE(complaint(text).hint, "") << text;
  }
}

TEST(Names, a_key_is_its_option_unless_a_file_set_it) {
  const Names names{"--policy x.json", {"limits.cpu_time", "network.rate"}};
  EXPECT_EQ(names.of("limits.cpu_time"), "--policy x.json: 'limits.cpu_time'");
  EXPECT_EQ(names.brief("network.rate"), "'network.rate'");
  const std::pair<const char*, const char*> options[] = {{"limits.io_read", "--io-read"},
                                                         {"files.ro", "--ro"},
                                                         {"identity.uid", "--uid"},
                                                         {"network", "--network"},
                                                         {"network.allow", "--network"},
                                                         {"network.private", "--network-private"},
                                                         {"network.bytes", "--net-bytes"},
                                                         {"network.connections", "--net-connections"},
                                                         {"allow_degraded", "--allow-degraded"},
                                                         {"seccomp", "--seccomp"}};
  for (const auto& [key, option] : options) EXPECT_EQ(names.of(key), option);
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
  for (const auto& [text, writable, hint] : {std::tuple{"/a:/b:ro", false, "write /a:/b: --ro is"},
                                             {"/a:/b:rw,z", true, "write /a:/b: --rw may"},
                                             {"/a:/b:rw", false, "--rw /a:/b"},
                                             {"/a:/b:ro", true, "--ro /a:/b"},
                                             {"/a:/b:c", false, "without one"}}) {
    const auto bind = parse_bind(text, writable);
    ASSERT_FALSE(bind.has_value()) << text;
    EXPECT_NE(bind.error().hint.find(hint), std::string::npos) << bind.error().hint;
  }
}

TEST(ParseEnv, wants_a_value) {
  EXPECT_EQ(parse_env("A=b=c")->second, "b=c");
  EXPECT_FALSE(parse_env("PATH").has_value());
  EXPECT_FALSE(parse_env("=x").has_value());
}

}  // namespace
}  // namespace pctx
