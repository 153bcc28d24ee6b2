#include "env/record.h"

#include <cmath>

#include <fmt/format.h>

#include "base/json.h"

namespace pctx::env {
namespace {

constexpr int kRecordFormat = 1;

Error unreadable_record() {
  return unavailable("the record of an Environment cannot be read", "it is built again when it is needed");
}

}  // namespace

std::string record_to_json(const Record& record) {
  OrderedJson json;
  json["format"] = kRecordFormat;
  json["key"] = record.key;
  json["requested"] = record.requested;
  const Interpreter& python = record.python;
  json["python"] = {{"version", python.version},       {"implementation", python.implementation},
                    {"executable", python.executable}, {"prefix", python.prefix},
                    {"platform", python.platform},     {"libc", python.libc}};
  json["packages"] = OrderedJson::array();
  for (const Package& package : record.packages) {
    OrderedJson entry{{"name", package.name}, {"version", package.version}};
    entry["sha256"] = package.sha256.empty() ? OrderedJson{nullptr} : OrderedJson(package.sha256);
    if (package.source) entry["source"] = true;
    json["packages"].push_back(std::move(entry));
  }
  json["modules"] = OrderedJson::object();
  for (const auto& [name, modules] : record.modules) json["modules"][name] = modules;
  json["built"] = record.built;
  json["build"] = {{"network", record.network},
                   {"source", record.source},
                   {"uv", record.uv},
                   {"bytecode", record.bytecode},
                   {"seconds", std::round(record.seconds * 10) / 10}};
  json["size"] = {{"files", record.size.files}, {"folders", record.size.folders}, {"bytes", record.size.bytes}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Record> record_from_json(const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", OrderedJson{}) != kRecordFormat) return unreadable_record();
  try {  // the seam: what the library throws for a wrong type goes no further
    Record record;
    record.key = json.at("key");
    json.at("requested").get_to(record.requested);
    const OrderedJson& python = json.at("python");
    record.python = {python.at("executable"),     python.at("prefix"),   python.at("version"),
                     python.at("implementation"), python.at("platform"), python.at("libc")};
    for (const OrderedJson& entry : json.at("packages"))
      record.packages.push_back({entry.at("name"), entry.at("version"),
                                 entry.at("sha256").is_string() ? entry.at("sha256").get<std::string>() : "",
                                 entry.value("source", false)});
    for (const auto& [name, modules] : json.at("modules").items())
      record.modules.emplace_back(name, modules.get<std::vector<std::string>>());
    record.built = json.at("built");
    const OrderedJson& build = json.at("build");
    record.network = build.at("network");
    record.source = build.at("source");
    record.uv = build.at("uv");
    record.bytecode = build.at("bytecode");
    record.seconds = build.at("seconds");
    const OrderedJson& size = json.at("size");
    record.size = {size.at("files"), size.at("folders"), size.at("bytes")};
    return record;
  } catch (const OrderedJson::exception&) {
    return unreadable_record();
  }
}

}  // namespace pctx::env
