#include "box/receipt.h"

#include "base/json.h"
#include "base/printable.h"

namespace pctx {
namespace {

OrderedJson paths(const std::vector<std::string>& raw) {
  OrderedJson list = OrderedJson::array();
  for (const std::string& path : raw) list.push_back(printable_path(path));
  return list;
}

OrderedJson outcome_json(const Outcome& outcome) {
  OrderedJson json{{"kind", name(outcome.kind)}};
  json["exit_code"] = outcome.kind == OutcomeKind::exited ? OrderedJson(outcome.exit_code) : OrderedJson();
  json["signal"] = outcome.kind == OutcomeKind::exited ? OrderedJson() : OrderedJson(outcome.signal);
  json["limit"] = outcome.limit.empty() ? OrderedJson() : OrderedJson(outcome.limit);
  json["message"] = outcome.sentence.empty() ? OrderedJson() : OrderedJson(outcome.sentence);
  return json;
}

OrderedJson connections_json(const NetworkRecord& record, bool attempts_recorded) {
  OrderedJson json{{"connections", OrderedJson::array()}};
  for (const ConnectionRecord& each : record.connections)
    json["connections"].push_back({{"name", each.name.empty() ? OrderedJson() : OrderedJson(printable_path(each.name))},
                                   {"address", each.address.empty() ? OrderedJson() : OrderedJson(each.address)},
                                   {"port", each.port},
                                   {"transport", each.transport},
                                   {"allowed", each.allowed},
                                   {"reason", each.reason.empty() ? OrderedJson() : OrderedJson(each.reason)},
                                   {"check", each.check.empty() ? OrderedJson() : OrderedJson(each.check)},
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

OrderedJson receipt_json(const Receipt& receipt) {
  OrderedJson json;
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
                   {"cpu_ms", usage.cpu ? OrderedJson(usage.cpu->count()) : OrderedJson()},
                   {"peak_memory_bytes", usage.peak_memory ? OrderedJson(*usage.peak_memory) : OrderedJson()},
                   {"stdout_bytes", usage.stdout_bytes},
                   {"stderr_bytes", usage.stderr_bytes}};
  json["truncated"] = receipt.truncated;
  json["limits_reached"] = OrderedJson::object();
  if (receipt.processes_refused > 0) json["limits_reached"]["pids"] = receipt.processes_refused;
  json["denials"] = OrderedJson::array();
  for (const Denial& denial : receipt.denials.kinds())
    json["denials"].push_back({{"syscall", denial.syscall},
                               {"detail", denial.detail},
                               {"answer", denial.answer},
                               {"reason", denial.reason},
                               {"count", denial.count}});
  json["denials_left_out"] = receipt.denials.left_out();
  json["denials_left_out_of"] = OrderedJson::object();
  for (const auto& [call, count] : receipt.denials.left_out_of()) json["denials_left_out_of"][call] = count;
  json["denials_recorded"] = receipt.denials_recorded;
  if (receipt.network) json["network"] = connections_json(*receipt.network, receipt.attempts_recorded);
  return json;
}

OrderedJson changes_json(const FolderChanges& changes) {
  OrderedJson json{
      {"created", paths(changes.created)}, {"modified", paths(changes.modified)}, {"deleted", paths(changes.deleted)}};
  json["skipped"] = OrderedJson::array();
  for (const SkippedPath& skipped : changes.skipped)
    json["skipped"].push_back({{"path", printable_path(skipped.path)}, {"reason", skipped.reason}});
  json["truncated"] = changes.truncated ? OrderedJson(changes.truncated_reason) : OrderedJson(false);
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
  OrderedJson json;
  json["outcome"] = outcome_json(ending.outcome);
  json["exit_status"] = ending.outcome.exit_status();
  if (captured) {
    json["stdout"] = ending.captured_stdout;
    json["stderr"] = ending.captured_stderr;
  }
  json["receipt"] = receipt_json(ending.receipt);
  if (ending.changes) json["changed"] = changes_json(*ending.changes);
  // The guest's bytes need not be UTF-8.
  return printable_json(json.dump(indent, ' ', false, OrderedJson::error_handler_t::replace));
}

std::string error_json(const Error& error) {
  const OrderedJson json{{"error", {{"kind", kind_name(error.kind)}, {"message", error.what}, {"hint", error.hint}}}};
  return printable_json(json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace pctx
