#include "box/receipt.h"

#include <nlohmann/json.hpp>

#include "box/terminal.h"

namespace pctx {
namespace {

using Json = nlohmann::ordered_json;

Json paths(const std::vector<std::string>& raw) {
  Json list = Json::array();
  for (const std::string& path : raw) list.push_back(printable_path(path));
  return list;
}

Json outcome_json(const Outcome& outcome) {
  Json json{{"kind", name(outcome.kind)}};
  json["exit_code"] = outcome.kind == OutcomeKind::exited ? Json(outcome.exit_code) : Json();
  json["signal"] = outcome.kind == OutcomeKind::exited ? Json() : Json(outcome.signal);
  json["limit"] = outcome.limit.empty() ? Json() : Json(outcome.limit);
  json["message"] = outcome.sentence.empty() ? Json() : Json(outcome.sentence);
  return json;
}

Json network_json(const NetworkRecord& record, bool attempts_recorded) {
  Json json{{"connections", Json::array()}};
  for (const ConnectionRecord& each : record.connections)
    json["connections"].push_back({{"name", each.name.empty() ? Json() : Json(printable_path(each.name))},
                                   {"address", each.address.empty() ? Json() : Json(each.address)},
                                   {"port", each.port},
                                   {"transport", each.transport},
                                   {"allowed", each.allowed},
                                   {"reason", each.reason.empty() ? Json() : Json(each.reason)},
                                   {"check", each.check.empty() ? Json() : Json(each.check)},
                                   {"sent", each.sent},
                                   {"received", each.received},
                                   {"count", each.count}});
  json["left_out"] = record.left_out;
  json["sent"] = record.sent;
  json["received"] = record.received;
  json["complete"] = record.complete;
  json["attempts_recorded"] = attempts_recorded;
  return json;
}

Json receipt_json(const Receipt& receipt) {
  Json json;
  json["backend"] = {{"name", receipt.backend}, {"reason", receipt.backend_reason}};
  if (!receipt.backend_limits.empty()) json["backend"]["limits"] = receipt.backend_limits;
  for (const LayerInfo& entry : kLayers) {
    const LayerState& state = receipt.layers[index(entry.layer)];
    json["layers"][std::string{entry.name}] = {{"on", state.on}, {"detail", state.detail}};
  }
  for (const LimitBinding& limit : receipt.limits)
    json["limits"][limit.limit] = {{"value", limit.value}, {"by", limit.by}};
  const Usage& usage = receipt.usage;
  json["usage"] = {{"wall_ms", usage.wall.count()},
                   {"cpu_ms", usage.cpu ? Json(usage.cpu->count()) : Json()},
                   {"peak_memory_bytes", usage.peak_memory ? Json(*usage.peak_memory) : Json()},
                   {"stdout_bytes", usage.stdout_bytes},
                   {"stderr_bytes", usage.stderr_bytes}};
  json["truncated"] = receipt.truncated;
  json["denials"] = Json::array();
  for (const Denial& denial : receipt.denials.kinds())
    json["denials"].push_back({{"syscall", denial.syscall},
                               {"detail", denial.detail},
                               {"answer", denial.answer},
                               {"reason", denial.reason},
                               {"count", denial.count}});
  json["denials_left_out"] = receipt.denials.left_out();
  json["denials_recorded"] = receipt.denials_recorded;
  if (receipt.network) json["network"] = network_json(*receipt.network, receipt.attempts_recorded);
  return json;
}

Json changes_json(const FolderChanges& changes) {
  Json json{
      {"created", paths(changes.created)}, {"modified", paths(changes.modified)}, {"deleted", paths(changes.deleted)}};
  json["skipped"] = Json::array();
  for (const SkippedPath& skipped : changes.skipped)
    json["skipped"].push_back({{"path", printable_path(skipped.path)}, {"reason", skipped.reason}});
  json["truncated"] = changes.truncated ? Json(changes.truncated_reason) : Json(false);
  return json;
}

const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::unavailable:
      return "unavailable";
    case ErrorKind::os:
      return "os";
    case ErrorKind::not_found:
      return "not_found";
    case ErrorKind::not_runnable:
      return "not_runnable";
  }
  return "os";
}

}  // namespace

std::string report_json(const Ending& ending, bool captured, int indent) {
  Json json;
  json["outcome"] = outcome_json(ending.outcome);
  json["exit_status"] = ending.outcome.exit_status();
  if (captured) {
    json["stdout"] = ending.captured_stdout;
    json["stderr"] = ending.captured_stderr;
  }
  json["receipt"] = receipt_json(ending.receipt);
  if (ending.changes) json["changed"] = changes_json(*ending.changes);
  // The guest's bytes need not be UTF-8.
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string error_json(const Error& error) {
  const Json json{{"error", {{"kind", kind_name(error.kind)}, {"message", error.what}, {"hint", error.hint}}}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace pctx
