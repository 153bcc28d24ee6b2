// The strict reader and the writer of policy files. Each key stands once, in the table of its group.
#include <array>
#include <charconv>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "base/json.h"
#include "base/strict_json.h"
#include "policy/policy.h"

namespace pctx {
namespace {

using Reader = std::function<Result<void>(const OrderedJson&)>;
using Table = std::map<std::string_view, Reader>;

Error wrong(std::string_view key, std::string_view expected) {
  return usage_error(
      key.empty() ? fmt::format("it must be {}", expected) : fmt::format("'{}' must be {}", key, expected),
      "'pctx-sandbox run --print-policy' prints a whole policy to begin with");
}

// Says which key a reader of units or paths stumbled over.
template <class T>
Result<T> at(std::string_view key, Result<T> value) {
  return named(fmt::format("'{}'", key), std::move(value));
}

Result<std::string> text(std::string_view key, const OrderedJson& value) {
  if (!value.is_string()) return wrong(key, "a string");
  return value.get<std::string>();
}

Result<std::uint64_t> count(std::string_view key, const OrderedJson& value) {
  if (!value.is_number_unsigned()) return wrong(key, "a whole number, 0 or above");
  return value.get<std::uint64_t>();
}

// Sizes may be numbers of bytes, durations numbers of seconds.
Result<std::uint64_t> size(std::string_view key, const OrderedJson& value) {
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (!value.is_string()) return wrong(key, "a whole number of bytes, or a string such as \"512M\"");
  return at(key, parse_size(value.get<std::string>()));
}

// As somebody would write it, without an exponent: a number then means what the same string means, rounding included.
std::string decimal(double number) {
  std::array<char, 512> text;
  const auto [end, status] = std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  return {text.data(), end};
}

Result<Millis> duration(std::string_view key, const OrderedJson& value) {
  if (value.is_number() && value.get<double>() >= 0) return at(key, parse_duration(decimal(value.get<double>())));
  if (!value.is_string()) return wrong(key, "a number of seconds, or a string such as \"30s\"");
  return at(key, parse_duration(value.get<std::string>()));
}

Result<std::uint32_t> cpus(std::string_view key, const OrderedJson& value) {
  if (value.is_number() && value.get<double>() > 0) return at(key, parse_cpus(decimal(value.get<double>())));
  if (!value.is_string()) return wrong(key, "a number above 0, or a string such as \"0.5\"");
  return at(key, parse_cpus(value.get<std::string>()));
}

template <class T, class Each>
Result<void> list(std::string_view key, const OrderedJson& value, std::vector<T>& into, Each each) {
  if (!value.is_array()) return wrong(key, "a list of strings");
  into.clear();
  for (const OrderedJson& item : value) {
    if (!item.is_string()) return wrong(key, "a list of strings");
    const auto word = item.get<std::string>();
    into.push_back(PCTX_TRY(at(key, each(word))));
  }
  return {};
}

Result<void> layers(std::string_view key, const OrderedJson& value, LayerSet& into) {
  if (!value.is_array()) return wrong(key, "a list of layer names");
  into.reset();
  for (const OrderedJson& item : value) {
    if (!item.is_string()) return wrong(key, "a list of layer names");
    into |= PCTX_TRY(at(key, parse_layers(item.get<std::string>())));
  }
  return {};
}

Result<void> read_object(std::string_view where, const OrderedJson& object, const Table& table, Names& names) {
  if (!object.is_object()) return wrong(where, "an object");
  for (const auto& [key, value] : object.items()) {
    const std::string place = fmt::format("{}{}{}", where, where.empty() ? "" : ".", key);
    const auto reader = table.find(key);
    if (reader == table.end()) {
      std::string known;
      for (const auto& entry : table) known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.first);
      return usage_error(fmt::format("unknown key '{}'", place), "the keys here are " + known);
    }
    names.keys.push_back(place);
    PCTX_TRY(reader->second(value));
  }
  return {};
}

// Binds one key to one field: the reader of its kind, assigned on success.
template <class Field, class Kind>
Reader field(std::string_view key, Field& into, Kind kind) {
  return [key, &into, kind](const OrderedJson& value) -> Result<void> {
    into = PCTX_TRY(kind(key, value));
    return {};
  };
}

Result<Policy> read_policy(std::string_view input) {
  Policy policy;
  const OrderedJson json = PCTX_TRY(parse_strict_json<OrderedJson>(input, kMaxPolicyBytes));
  Limits& limits = policy.limits;
  const Table limit_keys{
      {"memory", field("limits.memory", limits.memory, size)},
      {"cpus", field("limits.cpus", limits.cpus, cpus)},
      {"pids", field("limits.pids", limits.pids, count)},
      {"timeout", field("limits.timeout", limits.timeout, duration)},
      {"cpu_time", field("limits.cpu_time", limits.cpu_time, duration)},
      {"disk", field("limits.disk", limits.disk, size)},
      {"inodes", field("limits.inodes", limits.inodes, count)},
      {"output", field("limits.output", limits.output, size)},
      {"files", field("limits.files", limits.files, count)},
      {"io_read", field("limits.io_read", limits.io_read, size)},
      {"io_write", field("limits.io_write", limits.io_write, size)},
  };
  std::vector<Bind> ro, as_is, rw;
  const Table file_keys{
      {"mnt", field("files.mnt", policy.mnt, text)},
      {"ro",
       [&](const OrderedJson& v) {
         return list("files.ro", v, ro, [](const std::string& t) { return parse_bind(t, false); });
       }},
      {"ro_as_is",
       [&](const OrderedJson& v) {
         return list("files.ro_as_is", v, as_is, [](const std::string& t) -> Result<Bind> {
           Bind bind = PCTX_TRY(parse_bind(t, false));
           bind.as_is = true;
           return bind;
         });
       }},
      {"rw",
       [&](const OrderedJson& v) {
         return list("files.rw", v, rw, [](const std::string& t) { return parse_bind(t, true); });
       }},
      {"tmpfs", [&](const OrderedJson& v) { return list("files.tmpfs", v, policy.tmpfs, parse_tmpfs); }},
      {"workdir", field("files.workdir", policy.workdir, text)},
  };
  const Table identity_keys{
      {"env",
       [&](const OrderedJson& value) -> Result<void> {
         if (!value.is_object()) return wrong("identity.env", "an object of strings");
         policy.env.clear();
         for (const auto& [name, content] : value.items())
           policy.env.emplace_back(name, PCTX_TRY(text("identity.env." + name, content)));
         return {};
       }},
      {"hostname", field("identity.hostname", policy.hostname, text)},
      {"uid",
       [&](const OrderedJson& value) -> Result<void> {
         const std::uint64_t uid = PCTX_TRY(count("identity.uid", value));
         policy.uid = PCTX_TRY(at("identity.uid", check_uid(uid)));
         return {};
       }},
  };
  NetworkPolicy& allowed = policy.allowed;
  const Table network_keys{
      {"allow", [&](const OrderedJson& v) { return list("network.allow", v, allowed.rules, parse_net_rule); }},
      {"private",
       [&](const OrderedJson& v) { return list("network.private", v, allowed.open_private, parse_private_range); }},
      {"rate", field("network.rate", allowed.rate, size)},
      {"bytes", field("network.bytes", allowed.bytes, size)},
      {"connections", field("network.connections", allowed.connections, count)},
  };
  const Table keys{
      {"limits", [&](const OrderedJson& value) { return read_object("limits", value, limit_keys, policy.names); }},
      {"files", [&](const OrderedJson& value) { return read_object("files", value, file_keys, policy.names); }},
      {"identity",
       [&](const OrderedJson& value) { return read_object("identity", value, identity_keys, policy.names); }},
      {"network",
       [&](const OrderedJson& value) -> Result<void> {
         if (value.is_object()) {
           policy.network = Network::allow;
           policy.allowed = {};
           return read_object("network", value, network_keys, policy.names);
         }
         if (!value.is_string()) return wrong("network", "\"none\", \"host\" or an object");
         return at("network", parse_network(value.get<std::string>(), policy));
       }},
      {"seccomp", field("seccomp", policy.seccomp, text)},
      {"apparmor", field("apparmor", policy.apparmor, text)},
      {"require", [&](const OrderedJson& value) { return layers("require", value, policy.require); }},
      {"allow_degraded",
       [&](const OrderedJson& value) { return layers("allow_degraded", value, policy.allow_degraded); }},
  };
  PCTX_TRY(read_object("", json, keys, policy.names));
  for (std::vector<Bind>* binds : {&ro, &as_is, &rw})
    policy.binds.insert(policy.binds.end(), binds->begin(), binds->end());
  return policy;
}

OrderedJson network_json(const Policy& policy) {
  if (policy.network != Network::allow) return policy.network == Network::none ? "none" : "host";
  const NetworkPolicy& allowed = policy.allowed;
  OrderedJson out{{"allow", OrderedJson::array()}};
  for (const NetRule& rule : allowed.rules) out["allow"].push_back(to_string(rule));
  for (const IpPrefix& prefix : allowed.open_private) out["private"].push_back(prefix.text());
  if (allowed.rate) out["rate"] = *allowed.rate;
  if (allowed.bytes) out["bytes"] = *allowed.bytes;
  if (allowed.connections) out["connections"] = *allowed.connections;
  return out;
}

}  // namespace

Result<void> check_as_json(const Policy& policy) {
  const auto check = [&](std::string_view key, const std::string& bytes) -> Result<void> {
    if (is_utf8(bytes)) return {};
    return usage_error(
        fmt::format("{}: a value is not UTF-8, and a policy as JSON has nothing else", policy.names.of(key)),
        "write it in UTF-8; a file or folder can have a link that is named so");
  };
  if (policy.mnt) PCTX_TRY(check("files.mnt", *policy.mnt));
  for (const Bind& bind : policy.binds) PCTX_TRY(check(bind.key(), bind.source + bind.target));
  for (const Tmpfs& tmpfs : policy.tmpfs) PCTX_TRY(check("files.tmpfs", tmpfs.target));
  PCTX_TRY(check("files.workdir", policy.workdir));
  for (const auto& [name, value] : policy.env) PCTX_TRY(check("identity.env", name + "=" + value));
  return policy.seccomp ? check("seccomp", *policy.seccomp) : Result<void>{};
}

Result<Policy> policy_from_json(std::string_view text, std::string file) {
  Policy policy = PCTX_TRY(named(file, read_policy(text)));
  policy.names.file = std::move(file);
  return policy;
}

std::string policy_to_json(const Policy& policy) {
  const Limits& limits = policy.limits;
  OrderedJson out;
  out["limits"] = {{"memory", limits.memory},
                   {"cpus", limits.cpus / 1000.0},
                   {"pids", limits.pids},
                   {"timeout", static_cast<double>(limits.timeout.count()) / 1000.0}};
  if (limits.cpu_time) out["limits"]["cpu_time"] = static_cast<double>(limits.cpu_time->count()) / 1000.0;
  out["limits"]["disk"] = limits.disk;
  out["limits"]["inodes"] = limits.inodes;
  out["limits"]["output"] = limits.output;
  out["limits"]["files"] = limits.files;
  if (limits.io_read) out["limits"]["io_read"] = *limits.io_read;
  if (limits.io_write) out["limits"]["io_write"] = *limits.io_write;
  OrderedJson files = OrderedJson::object();
  if (policy.mnt) files["mnt"] = *policy.mnt;
  for (const Bind& bind : policy.binds)
    files[std::string{bind.key()}.substr(6)].push_back(bind.source + ":" + bind.target);
  for (const Tmpfs& tmpfs : policy.tmpfs) files["tmpfs"].push_back(fmt::format("{}:{}", tmpfs.target, tmpfs.size));
  if (!policy.workdir.empty()) files["workdir"] = policy.workdir;
  if (!files.empty()) out["files"] = files;
  OrderedJson env = OrderedJson::object();
  for (const auto& [name, value] : policy.env) env[name] = value;
  out["identity"] = {{"env", env}, {"hostname", policy.hostname}, {"uid", policy.uid}};
  out["network"] = network_json(policy);
  if (policy.seccomp) out["seccomp"] = *policy.seccomp;
  if (policy.apparmor) out["apparmor"] = *policy.apparmor;
  for (const auto& [key, set] : {std::pair{"require", policy.require}, {"allow_degraded", policy.allow_degraded}})
    for (const LayerInfo& entry : kLayers)
      if (set.test(index(entry.layer))) out[key].push_back(entry.name);
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace pctx
