// The small readers: addresses, names of the host, synthetic addresses, packets, rates.
#include <gtest/gtest.h>

#include "net/address_class.h"
#include "net/confine.h"
#include "net/dns.h"
#include "net/host_config.h"
#include "net/name_table.h"
#include "net/packets.h"
#include "net/token_bucket.h"

namespace pctx::net {
namespace {

IpAddress ip(std::string_view text) {
  const auto address = parse_ip(text);
  EXPECT_TRUE(address) << text;
  return address.value_or(IpAddress{});
}

TEST(AddressClass, only_the_internet_is_open) {
  for (const char* open :
       {"93.184.216.34", "1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "223.255.255.255", "2606:4700::1111",
        "2a00:1450::5", "2001:4860:4860::8888", "64:ff9b::5db8:d822", "2002:5db8:d822::1", "::ffff:93.184.216.34"})
    EXPECT_EQ(closed_class(ip(open)), "") << open;
  for (const auto& [address, name] :
       std::vector<std::pair<const char*, const char*>>{{"0.0.0.0", "unspecified"},
                                                        {"0.1.2.3", "unspecified"},
                                                        {"10.0.0.1", "private"},
                                                        {"100.64.0.1", "carrier-grade NAT"},
                                                        {"100.127.255.255", "carrier-grade NAT"},
                                                        {"127.0.0.1", "loopback"},
                                                        {"127.255.255.254", "loopback"},
                                                        {"169.254.169.254", "cloud metadata"},
                                                        {"168.63.129.16", "cloud metadata"},
                                                        {"169.254.1.1", "link-local"},
                                                        {"172.16.0.1", "private"},
                                                        {"172.31.255.255", "private"},
                                                        {"192.168.0.1", "private"},
                                                        {"198.18.0.1", "benchmark"},
                                                        {"198.19.255.255", "benchmark"},
                                                        {"192.0.2.1", "documentation"},
                                                        {"224.0.0.1", "multicast"},
                                                        {"240.0.0.1", "reserved"},
                                                        {"255.255.255.255", "broadcast"},
                                                        {"::", "unspecified"},
                                                        {"::1", "loopback"},
                                                        {"::7f00:1", "reserved"},
                                                        {"fe80::1", "link-local"},
                                                        {"fec0::1", "private"},
                                                        {"fc00::1", "private"},
                                                        {"fd00:ec2::254", "cloud metadata"},
                                                        {"ff02::1", "multicast"},
                                                        {"2001:db8::1", "documentation"},
                                                        {"3fff::1", "documentation"},
                                                        {"2001::1", "reserved"},
                                                        {"100::1", "reserved"},
                                                        {"4000::1", "reserved"},
                                                        // The same behind an IPv6 mask.
                                                        {"::ffff:127.0.0.1", "loopback"},
                                                        {"::ffff:a9fe:a9fe", "cloud metadata"},
                                                        {"64:ff9b::a00:1", "private"},
                                                        {"64:ff9b:1::1", "private"},
                                                        {"2002:7f00:1::1", "loopback"},
                                                        {"2002:a9fe:a9fe::", "cloud metadata"},
                                                        {"2606:4700::5efe:192.168.0.1", "private"},
                                                        {"2606:4700::200:5efe:10.0.0.1", "private"}})
    EXPECT_EQ(closed_class(ip(address)), name) << address;
}

TEST(NameTable, gives_every_name_one_address_of_each_family) {
  NameTable table;
  EXPECT_EQ(table.add("a.example"), 0u);
  EXPECT_EQ(table.add("b.example"), 1u);
  EXPECT_EQ(table.add("a.example"), 0u);
  EXPECT_EQ(NameTable::address(0, false).text(), "198.18.1.0");
  EXPECT_EQ(NameTable::address(1, true).text(), "fd70:6374:7800::1:1");
  EXPECT_EQ(*table.find(ip("198.18.1.1")), "b.example");
  EXPECT_EQ(*table.find(ip("fd70:6374:7800::1:0")), "a.example");
  for (const char* other : {"198.18.1.2", "198.18.0.1", "198.18.0.2", "198.19.1.0", "10.18.1.0",
                            "fd70:6374:7800::", "::1:0", "fd70:6374:7801::1:0", "0.0.0.0", "::"})
    EXPECT_EQ(table.find(ip(other)), nullptr) << other;
}

TEST(NameTable, is_bounded) {
  NameTable table;
  for (std::size_t i = 0; i < NameTable::kMost; ++i) ASSERT_TRUE(table.add("n" + std::to_string(i)));
  EXPECT_FALSE(table.add("one.more"));
  EXPECT_TRUE(table.add("n5"));
  for (const bool v6 : {false, true})
    for (const std::size_t number : {0u, 255u, 256u, 1023u})
      EXPECT_EQ(*table.find(NameTable::address(number, v6)), "n" + std::to_string(number));
}

TEST(NameTable, goes_on_where_another_ended) {
  NameTable table(std::vector<std::string>{"a.example", "b.example"});
  EXPECT_EQ(*table.find(ip("198.18.1.1")), "b.example");
  EXPECT_EQ(table.add("a.example"), 0u);
  EXPECT_EQ(table.add("c.example"), 2u) << "what was told of another name stays that name's";
}

std::string query(std::string_view name, std::uint16_t type) { return write_query(0x1234, name, type); }

TEST(Dns, reads_a_question_and_repeats_it) {
  const auto question = read_question(query("API.Example.com", kTypeA));
  ASSERT_TRUE(question);
  EXPECT_EQ(question->problem, DnsCode::no_error);
  EXPECT_EQ(question->name, "api.example.com");
  EXPECT_TRUE(question->edns);
  EXPECT_TRUE(question->recursion);
  const std::string answer = write_answer(*question, DnsCode::no_error, ip("198.18.1.0"));
  EXPECT_EQ(answer.substr(0, 2), "\x12\x34");
  EXPECT_NE(answer.find("\x03"
                        "API\x07"
                        "Example\x03"
                        "com"),
            std::string::npos);
  EXPECT_EQ(answer.substr(6, 2), std::string("\0\1", 2));
  EXPECT_NE(answer.find(std::string("\0\4\xc6\x12\1\0", 6)), std::string::npos);
  EXPECT_FALSE(read_question(answer)) << "an answer is no question";
}

TEST(Dns, takes_no_dot_inside_a_label_for_one_between_labels) {
  std::string message = query("evil.example.com", kTypeA);
  message[message.find(
      "\x04"
      "evil")] = '\x0c';
  message[message.find(
      "\x07"
      "example")] = '.';
  const auto question = read_question(message);
  ASSERT_TRUE(question);
  EXPECT_EQ(question->problem, DnsCode::no_error);
  EXPECT_EQ(question->name, "");
}

TEST(Dns, refuses_what_is_broken) {
  const std::string whole = query("api.example.com", kTypeA);
  EXPECT_FALSE(read_question(""));
  EXPECT_FALSE(read_question(whole.substr(0, 11)));
  for (std::size_t size = 12; size < 12 + 17 + 4; ++size) {
    const auto question = read_question(whole.substr(0, size));
    ASSERT_TRUE(question) << size;
    EXPECT_EQ(question->problem, DnsCode::format_error) << size;
    EXPECT_TRUE(read_question(write_answer(*question, question->problem)) == std::nullopt);
  }
  std::string changed = whole;
  changed[5] = 2;  // two questions
  EXPECT_EQ(read_question(changed)->problem, DnsCode::format_error);
  changed = whole;
  changed[12] = '\xc0';  // a pointer
  EXPECT_EQ(read_question(changed)->problem, DnsCode::format_error);
  changed = whole;
  changed[2] = 0x28;  // an update
  EXPECT_EQ(read_question(changed)->problem, DnsCode::not_done);
  changed = whole;
  changed[12 + 17 + 3] = 3;  // class CHAOS
  EXPECT_EQ(read_question(changed)->name, "");
  std::string endless(12, '\0');
  endless[5] = 1;
  for (int i = 0; i < 10; ++i) endless += "\x3f" + std::string(63, 'a');
  endless += std::string(5, '\0');
  EXPECT_EQ(read_question(endless)->problem, DnsCode::format_error);
}

TEST(HostConfig, reads_resolv_conf) {
  const ResolverConfig config = read_resolv_conf(
      "# comment\nnameserver 127.0.0.53\nnameserver 2001:db8::53 # x\nnameserver fe80::1%eth0\n"
      "search corp.example  Lab.Example\noptions edns0 ndots:2 timeout:1 attempts:3 trust-ad\nnameserver");
  ASSERT_EQ(config.servers.size(), 2u);
  EXPECT_EQ(config.servers[1].text(), "2001:db8::53");
  EXPECT_EQ(config.candidates("db.x"), (std::vector<std::string>{"db.x.corp.example", "db.x.lab.example", "db.x"}));
  EXPECT_EQ(config.candidates("a.b.c"), (std::vector<std::string>{"a.b.c"}));
  EXPECT_EQ(read_resolv_conf("").servers.front().text(), "127.0.0.1");
}

TEST(HostConfig, reads_hosts) {
  const HostTable table =
      read_hosts("127.0.0.1 localhost\n10.0.0.5\tDB.internal db # the database\nbad x\n::1 localhost");
  EXPECT_EQ(table.at("db.internal").front().text(), "10.0.0.5");
  EXPECT_EQ(table.at("db").size(), 1u);
  EXPECT_EQ(table.at("localhost").size(), 2u);
  EXPECT_FALSE(table.contains("x"));
}

std::string syn(bool v6) {
  std::string packet =
      v6 ? std::string("\x60\0\0\0\0\x14\x06\x40", 8) : std::string("\x45\0\0\x28\0\0\0\0\x40\x06\0\0", 12);
  for (const char* address : v6 ? std::vector<const char*>{"fd70:6374:7800::2", "2606:4700::1111"}
                                : std::vector<const char*>{"198.18.0.2", "10.0.0.1"}) {
    const IpAddress a = ip(address);
    packet.append(reinterpret_cast<const char*>(a.bytes.data()), v6 ? 16 : 4);
  }
  return packet + std::string("\x9c\x40\0\x16\x01\x02\x03\x04\0\0\0\0\x50\x02\xff\xff\0\0\0\0", 20);
}

TEST(Packets, answer_an_attempt_with_a_reset) {
  for (const bool v6 : {false, true}) {
    const auto attempt = read_attempt(syn(v6));
    ASSERT_TRUE(attempt);
    EXPECT_TRUE(attempt->tcp);
    EXPECT_EQ(attempt->to.text(), v6 ? "2606:4700::1111" : "10.0.0.1");
    EXPECT_EQ(attempt->to_port, 22);
    const std::string reset = refusal(*attempt);
    const std::size_t header = v6 ? 40 : 20;
    ASSERT_EQ(reset.size(), header + 20);
    EXPECT_EQ(reset.substr(header + 8, 4), "\x01\x02\x03\x05");
    EXPECT_EQ(reset[header + 13], 0x14);
    EXPECT_FALSE(read_attempt(reset)) << "a reset is no attempt: answering answers would never end";
  }
}

TEST(Packets, answer_udp_with_unreachable) {
  for (const bool v6 : {false, true}) {
    std::string packet = syn(v6);
    packet[v6 ? 6 : 9] = 17;
    const auto attempt = read_attempt(packet);
    ASSERT_TRUE(attempt);
    EXPECT_FALSE(attempt->tcp);
    const std::string answer = refusal(*attempt);
    EXPECT_EQ(answer[v6 ? 6 : 9], v6 ? 58 : 1);
    EXPECT_NE(answer.find(packet.substr(0, (v6 ? 40 : 20) + 8)), std::string::npos);
    EXPECT_FALSE(read_attempt(answer));
  }
}

TEST(Packets, ignore_what_is_no_attempt) {
  const std::string whole = syn(false);
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(read_attempt(whole.substr(0, size))) << size;
  std::string later = whole;
  later[33] = 0x10;
  EXPECT_FALSE(read_attempt(later));
  std::string fragment = whole;
  fragment[7] = 1;
  EXPECT_FALSE(read_attempt(fragment));
}

TEST(Packets, find_the_transport_behind_what_ipv6_has_before_it) {
  const std::string plain = syn(true);
  const auto with = [&](std::uint8_t protocol, const std::string& extensions) {
    std::string packet = plain;
    packet[6] = static_cast<char>(protocol);
    return read_attempt(packet.insert(40, extensions));
  };
  const std::string first("\x06\0\0\x01\0\0\0\x07", 8), later("\x06\0\x05\xb0\0\0\0\x07", 8);
  ASSERT_TRUE(with(44, first)) << "the first part of a datagram tells where it goes";
  EXPECT_EQ(with(44, first)->to_port, 22);
  EXPECT_FALSE(with(44, later));
  for (const std::uint8_t kind : {std::uint8_t{0}, std::uint8_t{43}, std::uint8_t{60}}) {
    const std::string option = std::string("\x06\x01", 2) + std::string(14, '\0');
    ASSERT_TRUE(with(kind, option)) << int{kind};
    EXPECT_EQ(with(kind, option)->to_port, 22);
    std::string both = option;
    both[0] = 44;
    EXPECT_TRUE(with(kind, both + first)) << int{kind};
    EXPECT_FALSE(with(kind, std::string("\x06\xff", 2) + std::string(14, '\0'))) << "longer than the packet";
  }
}

Action decided(const char* name, std::array<std::uint64_t, 3> args = {}) {
  seccomp_data call{};
  call.nr = *syscall_number(kHostArch, name);
  call.arch = audit_arch(kHostArch);
  std::copy(args.begin(), args.end(), std::begin(call.args));
  return decide(relay_filter(kHostArch), call);
}

TEST(RelayFilter, lets_bytes_move_and_nothing_else) {
  for (const char* name : {"splice", "accept4", "connect", "epoll_wait", "recvmsg", "exit_group"})
    EXPECT_EQ(decided(name), Action::allow()) << name;
  EXPECT_EQ(decided("socket", {2, 1 | 02000000, 0}), Action::allow());
  EXPECT_EQ(decided("socket", {10, 2 | 02004000, 17}), Action::allow());
  EXPECT_EQ(decided("mmap", {0, 4096, 3}), Action::allow());
  for (const char* name : {"execve",
                           "execveat",
                           "clone",
                           "clone3",
                           "fork",
                           "ptrace",
                           "kill",
                           "tgkill",
                           "bind",
                           "listen",
                           "socketpair",
                           "mount",
                           "unshare",
                           "setns",
                           "prctl",
                           "ioctl",
                           "process_vm_readv",
                           "pidfd_getfd",
                           "io_uring_setup",
                           "bpf",
                           "keyctl",
                           "chroot",
                           "memfd_create",
                           "openat2",
                           "setuid"})
    EXPECT_EQ(decided(name), Action::fail(EPERM)) << name;
  EXPECT_EQ(decided("openat"), Action::fail(ENOENT));
  EXPECT_EQ(decided("socket", {1, 1, 0}), Action::fail(EPERM)) << "unix";
  EXPECT_EQ(decided("socket", {2, 3, 1}), Action::fail(EPERM)) << "raw";
  EXPECT_EQ(decided("socket", {16, 3, 0}), Action::fail(EPERM)) << "netlink";
  EXPECT_EQ(decided("socket", {2, 1, 132}), Action::fail(EPERM)) << "sctp";
  EXPECT_EQ(decided("mmap", {0, 4096, 7}), Action::fail(EPERM)) << "executable memory";
  EXPECT_EQ(decided("mprotect", {0, 4096, 5}), Action::fail(EPERM));
}

TEST(TokenBucket, holds_to_its_rate) {
  auto now = TokenBucket::Clock::now();
  TokenBucket bucket(5'000'000, now);
  std::uint64_t moved = 0;
  const auto start = now;
  while (moved < 20'000'000) {
    const std::uint64_t piece = std::min<std::uint64_t>(bucket.available(now), 65536);
    bucket.take(piece);
    moved += piece;
    if (piece == 0) now += bucket.wait();
  }
  EXPECT_NEAR(std::chrono::duration<double>(now - start).count(), 4.0, 0.1);
}

TEST(TokenBucket, without_a_rate_never_waits) {
  TokenBucket bucket(std::nullopt, {});
  bucket.take(1u << 30);
  EXPECT_GT(bucket.available({}), 1u << 30);
}

}  // namespace
}  // namespace pctx::net
