// The box's network with an allow-list: which addresses are local in it, which ports are listened on for the relay, and
// what the watchers are shown of attempts to reach anything else.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sched.h>

#include <algorithm>

#include <fmt/format.h>

#include "plan/network.h"
#include "plan/plan.h"

namespace pctx {
namespace {

constexpr std::uint16_t kDns = 53;
constexpr IpPrefix kLoopback4{{false, {127}}, 8};
constexpr IpPrefix kLoopback6{{true, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, 128};
constexpr std::uint32_t kShown = 256;  // bytes of a packet: its headers, and their options
// What IPv6 may have before the transport's header: hop by hop, routing, fragment, destination.
constexpr std::uint32_t kExtensions[] = {0, 43, 44, 60};

// A program of classic BPF for packets. It falls through from test to test; `leave` goes to one of two ends.
class PacketFilter {
 public:
  void load(std::uint16_t size, std::uint32_t offset) { add(BPF_LD | size | BPF_ABS, offset); }
  void load_indexed(std::uint16_t size, std::uint32_t offset) { add(BPF_LD | size | BPF_IND, offset); }
  void keep(std::uint32_t bits) { add(BPF_ALU | BPF_AND | BPF_K, bits); }
  void add(std::uint16_t code, std::uint32_t k) { code_.push_back({code, 0, 0, k}); }
  // The rest of a block is skipped when the value differs; `end_block` says where it ends.
  void unless_equal_skip(std::uint32_t value) { jump(value, false); }
  void if_equal_skip(std::uint32_t value) { jump(value, true); }
  void end_block(std::size_t mark) {
    for (; marks_.size() > mark; marks_.pop_back())
      code_[marks_.back()].k = static_cast<std::uint32_t>(code_.size() - marks_.back() - 1);
  }
  std::size_t block() const { return marks_.size(); }
  void leave(std::uint32_t bytes) { add(BPF_RET | BPF_K, bytes); }
  std::vector<sock_filter> finish() { return std::move(code_); }

 private:
  // By an unconditional jump, whose distance has 32 bits and not 8.
  void jump(std::uint32_t value, bool when_equal) {
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint8_t>(when_equal ? 0 : 1),
                     static_cast<std::uint8_t>(when_equal ? 1 : 0), value});
    marks_.push_back(code_.size());
    add(BPF_JMP | BPF_JA, 0);
  }
  std::vector<sock_filter> code_;
  std::vector<std::size_t> marks_;
};

std::uint32_t word(const IpPrefix& prefix, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(prefix.address.bytes[at * 4 + i]); };
  return byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
}

std::uint32_t prefix_word(unsigned length, std::size_t at) {
  const unsigned before = static_cast<unsigned>(at) * 32;
  if (length <= before) return 0;
  const unsigned bits = std::min(32U, length - before);
  return bits == 32 ? ~0U : ~(~0U >> bits);
}

// Leaves with nothing if the destination lies in one of `local`.
void drop_local(PacketFilter& out, const std::vector<IpPrefix>& local, bool ipv6) {
  for (const IpPrefix& prefix : local) {
    if (prefix.address.v6 != ipv6) continue;
    const std::size_t block = out.block();
    for (std::size_t at = 0; at < (ipv6 ? 4U : 1U) && prefix_word(prefix.length, at) != 0; ++at) {
      out.load(BPF_W, static_cast<std::uint32_t>((ipv6 ? 24 : 16) + at * 4));
      out.keep(prefix_word(prefix.length, at));
      out.unless_equal_skip(word(prefix, at) & prefix_word(prefix.length, at));
    }
    out.leave(0);
    out.end_block(block);
  }
}

// One family, one protocol: X is where the transport's header starts. What has somebody to answer it is not shown.
void judge_port(PacketFilter& out, const NetworkPlan& network, bool ipv6, const std::vector<std::uint16_t>& served) {
  for (const std::uint16_t port : served) {
    const std::size_t block = out.block();
    out.load_indexed(BPF_H, 2);
    out.unless_equal_skip(port);
    if (ipv6 || network.everything_is_local)
      out.leave(0);
    else
      drop_local(out, network.local, ipv6);
    out.leave(kShown);
    out.end_block(block);
  }
  out.leave(kShown);
}

void judge_protocols(PacketFilter& out, const NetworkPlan& network, bool ipv6) {
  std::vector<std::uint16_t> tcp = network.ports;
  tcp.push_back(kDns);
  out.load(BPF_B, ipv6 ? 6 : 9);
  std::size_t block = out.block();
  out.unless_equal_skip(IPPROTO_TCP);
  out.load_indexed(BPF_B, 13);
  out.keep(0x12);  // SYN and ACK
  const std::size_t answer = out.block();
  out.if_equal_skip(0x02);
  out.leave(0);
  out.end_block(answer);
  judge_port(out, network, ipv6, tcp);
  out.end_block(block);
  block = out.block();
  out.unless_equal_skip(IPPROTO_UDP);
  judge_port(out, network, ipv6, {kDns});
  out.end_block(block);
  out.leave(0);
}

std::vector<sock_filter> watched(const NetworkPlan& network) {
  PacketFilter out;
  out.load(BPF_B, static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_PKTTYPE));
  std::size_t block = out.block();
  // Everything passes a loopback twice.
  out.unless_equal_skip(PACKET_OUTGOING);
  out.leave(0);
  out.end_block(block);
  out.load(BPF_H, static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_PROTOCOL));
  block = out.block();
  out.unless_equal_skip(ETH_P_IP);
  drop_local(out, {kLoopback4, network.own4}, false);  // the box itself
  out.load(BPF_H, 6);
  out.keep(0x1fff);
  const std::size_t fragment = out.block();
  out.if_equal_skip(0);
  out.leave(0);  // a later part of one: the first told everything
  out.end_block(fragment);
  out.add(BPF_LDX | BPF_B | BPF_MSH, 0);
  judge_protocols(out, network, false);
  out.end_block(block);
  block = out.block();
  out.unless_equal_skip(ETH_P_IPV6);
  drop_local(out, {kLoopback6, network.own6}, true);
  out.load(BPF_B, 6);
  for (const std::uint32_t extension : kExtensions) {  // the reader finds its way through them, and judges itself
    const std::size_t other = out.block();
    out.unless_equal_skip(extension);
    out.leave(kShown);
    out.end_block(other);
  }
  out.add(BPF_LDX | BPF_W | BPF_IMM, 40);
  judge_protocols(out, network, true);
  out.end_block(block);
  out.leave(0);
  return out.finish();
}

}  // namespace

Result<void> plan_network(Plan& plan) {
  if (plan.policy.network != Network::allow) return {};
  if ((plan.namespaces & CLONE_NEWNET) == 0)
    return unavailable("--network allow: needs a network namespace, which this host refuses",
                       "see 'pctx-sandbox doctor' for the fix, or run with --network none");
  NetworkPlan& network = plan.network.emplace();
  network.own4 = kBoxAddress4;
  network.own6 = kBoxAddress6;
  network.local = {kSyntheticRange4, kSyntheticRange6};
  for (const NetRule& rule : plan.policy.allowed.rules) {
    network.everything_is_local |= rule.kind == NetRule::Kind::any;
    if (rule.kind == NetRule::Kind::address &&
        std::find(network.local.begin(), network.local.end(), rule.address) == network.local.end())
      network.local.push_back(rule.address);
  }
  network.ports = listening_ports(plan.policy.allowed);
  network.watched = watched(network);
  plan.layer(Layer::network).detail = fmt::format("new, {} allowed by name", plan.policy.allowed.rules.size());
  return {};
}

}  // namespace pctx
