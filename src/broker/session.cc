#include "broker/session.h"

#include <sys/mman.h>

#include "base/json.h"
#include "sys/files.h"

namespace pctx {
namespace {

constexpr std::uint64_t kLongestTime = 1'000'000'000'000;

Error malformed(const std::string& what) {
  return usage_error("the request is not understood: " + what,
                     "caller and Broker are of different versions: run `pctx-sandbox restart`");
}

Result<std::vector<std::string>> strings(const Json& json, const char* name) {
  std::vector<std::string> list;
  if (!json.is_array() || json.size() > 1000) return malformed(std::string{name} + " is not a list");
  for (const Json& entry : json) {
    if (!entry.is_string()) return malformed(std::string{name} + " holds something that is not a string");
    list.push_back(entry.get<std::string>());
  }
  return list;
}

Result<std::string> absolute(const Json& json, const char* name) {
  if (!json.is_string() || !json.get_ref<const std::string&>().starts_with('/'))
    return malformed(std::string{name} + " is not an absolute path");
  return json.get<std::string>();
}

Result<PoolSpec> parse_lease(const Json& json, Millis& queue_timeout) {
  PoolSpec spec;
  for (const auto& [key, value] : json.items()) {
    if (key == "python") {
      spec.python = PCTX_TRY(absolute(value, "python"));
    } else if (key == "environment") {
      if (!value.is_null()) spec.environment = PCTX_TRY(absolute(value, "environment"));
    } else if (key == "generation") {
      if (!value.is_number_unsigned()) return malformed("generation is not a number");
      spec.generation = value.get<std::uint64_t>();
    } else if (key == "preload") {
      spec.preload = PCTX_TRY(strings(value, "preload"));
    } else if (key == "support") {
      spec.support = PCTX_TRY(strings(value, "support"));
    } else if (key == "scripts") {
      if (!value.is_boolean()) return malformed("scripts is neither true nor false");
      spec.scripts = value.get<bool>();
    } else if (key == "folder") {
      if (!value.is_boolean()) return malformed("folder is neither true nor false");
      spec.folder = value.get<bool>();
    } else if (key == "policy") {
      spec.policy = PCTX_TRY(policy_from_json(value.dump()));
    } else if (key == "queue_timeout_ms") {
      if (!value.is_number_unsigned()) return malformed("queue_timeout_ms is not a number");
      queue_timeout = Millis{value.get<std::int64_t>()};
    } else if (key != "version") {
      return malformed("unknown key " + key);
    }
  }
  if (spec.python.empty()) return malformed("python is missing");
  return spec;
}

// A script's time is its caller's wish, and no reason for another pool.
Result<std::optional<Millis>> parse_start(const Json& json) {
  std::optional<Millis> timeout;
  for (const auto& [key, value] : json.items()) {
    if (key != "timeout_ms" || !value.is_number_unsigned() || value.get<std::uint64_t>() > kLongestTime)
      return malformed("start takes timeout_ms, a whole number");
    timeout = Millis{value.get<std::int64_t>()};
  }
  return timeout;
}

}  // namespace

bool Session::send_error(std::string_view kind, const Error& error) {
  const Json json{{"error", {{"kind", kind}, {"message", error.what}, {"hint", error.hint}}}};
  return send(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool Session::send_report(const std::string& text) {
  if (text.size() <= wire::kMaxPacket) return send(text);
  const Fd file{::memfd_create("report", MFD_CLOEXEC)};
  if (!file || !sys::write_all(file.get(), text)) return false;
  return send(R"({"ended": "in the file"})", {file.get()});
}

Result<Request> parse_request(const std::string& text) {
  Request request;
  // The two that matter for the time of a call.
  if (text == R"({"start": {}})") {
    request.start = true;
    return request;
  }
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return malformed("it is not a JSON object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_object()) return malformed(key + " is not an object");
    if (key == "start") {
      request.start = true;
      request.timeout = PCTX_TRY(parse_start(value));
    } else if (key == "mount") {
      if (value.size() != 1 || !value.contains("path")) return malformed("mount takes a path");
      request.mount = PCTX_TRY(absolute(value["path"], "the path of mount"));
    } else if (key == "done") {
      request.done = true;
    } else if (key == "status") {
      request.status = true;
    } else if (key == "stop") {
      request.stop = true;
    } else if (key == "lease") {
      request.lease = PCTX_TRY(parse_lease(value, request.queue_timeout));
      request.lease_text = value.dump();
    } else {
      return malformed("unknown key " + key);
    }
  }
  return request;
}

}  // namespace pctx
