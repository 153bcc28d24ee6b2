#include "launch/netlink.h"

#include <linux/if_addr.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <cstring>

namespace pctx {
namespace {

class Writer {
 public:
  void link_up() {
    ifinfomsg body{};
    body.ifi_family = AF_UNSPEC;
    body.ifi_index = kLoopback;
    body.ifi_flags = IFF_UP;
    body.ifi_change = IFF_UP;
    begin(RTM_NEWLINK, 0, body);
  }
  void address(const IpPrefix& address) {
    ifaddrmsg body{};
    body.ifa_family = family(address);
    body.ifa_prefixlen = static_cast<std::uint8_t>(address.length);
    body.ifa_flags = IFA_F_PERMANENT | IFA_F_NODAD;
    body.ifa_scope = RT_SCOPE_UNIVERSE;
    body.ifa_index = kLoopback;
    begin(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, body);
    attribute(IFA_LOCAL, address);
    attribute(IFA_ADDRESS, address);
  }
  // `from` is the address that the box has when it talks to these.
  void route(const IpPrefix& to, const IpPrefix& from, bool local) {
    rtmsg body{};
    body.rtm_family = family(to);
    body.rtm_dst_len = static_cast<std::uint8_t>(to.length);
    body.rtm_table = local ? RT_TABLE_LOCAL : RT_TABLE_MAIN;
    body.rtm_protocol = RTPROT_STATIC;
    body.rtm_scope = local ? RT_SCOPE_HOST : RT_SCOPE_LINK;
    body.rtm_type = local ? RTN_LOCAL : RTN_UNICAST;
    begin(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body);
    if (to.length > 0) attribute(RTA_DST, to);
    attribute(RTA_PREFSRC, from);
    const std::uint32_t interface = kLoopback;
    attribute(RTA_OIF, &interface, sizeof interface);
  }
  NetlinkMessages finish() {
    if (out_.last == 0) return {};
    header([](nlmsghdr& last) { last.nlmsg_flags |= NLM_F_ACK; });
    return std::move(out_);
  }

 private:
  static std::uint8_t family(const IpPrefix& prefix) { return prefix.address.v6 ? AF_INET6 : AF_INET; }

  template <class Change>
  void header(Change change) {
    nlmsghdr current;
    std::memcpy(&current, out_.bytes.data() + start_, sizeof current);
    change(current);
    std::memcpy(out_.bytes.data() + start_, &current, sizeof current);
  }
  void append(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    out_.bytes.insert(out_.bytes.end(), bytes, bytes + size);
    out_.bytes.resize((out_.bytes.size() + NLMSG_ALIGNTO - 1) / NLMSG_ALIGNTO * NLMSG_ALIGNTO);
    header([&](nlmsghdr& current) { current.nlmsg_len = static_cast<std::uint32_t>(out_.bytes.size() - start_); });
  }
  template <class Body>
  void begin(std::uint16_t type, std::uint16_t flags, const Body& body) {
    start_ = out_.bytes.size();
    nlmsghdr head{};
    head.nlmsg_type = type;
    head.nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags);
    head.nlmsg_seq = ++out_.last;
    out_.bytes.resize(start_ + sizeof head);
    std::memcpy(out_.bytes.data() + start_, &head, sizeof head);
    append(&body, sizeof body);
  }
  void attribute(std::uint16_t type, const void* data, std::size_t size) {
    const rtattr head{static_cast<std::uint16_t>(sizeof(rtattr) + size), type};
    append(&head, sizeof head);
    append(data, size);
  }
  void attribute(std::uint16_t type, const IpPrefix& prefix) {
    attribute(type, prefix.address.bytes.data(), prefix.address.v6 ? 16 : 4);
  }

  NetlinkMessages out_;
  std::size_t start_ = 0;
};

IpPrefix everything(bool ipv6) { return {{ipv6, {}}, 0}; }
const IpPrefix& own(const NetworkPlan& network, bool ipv6) { return ipv6 ? network.own6 : network.own4; }

}  // namespace

NetlinkMessages local_routes(const NetworkPlan& network, bool ipv6) {
  Writer out;
  out.link_up();
  out.address(own(network, ipv6));
  for (const IpPrefix& prefix : network.local)
    if (prefix.address.v6 == ipv6) out.route(prefix, own(network, ipv6), true);
  if (ipv6 || network.everything_is_local) out.route(everything(ipv6), own(network, ipv6), true);
  return out.finish();
}

NetlinkMessages watched_route(const NetworkPlan& network) {
  Writer out;
  if (!network.everything_is_local) out.route(everything(false), own(network, false), false);
  return out.finish();
}

}  // namespace pctx
