// environment.json: what an Environment is, written when it is published and read whenever it is used. It holds no
// address and no credential.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "env/interpreter.h"
#include "env/lock.h"
#include "env/tree.h"

namespace pctx::env {

inline constexpr const char* kRecordName = "environment.json";
inline constexpr const char* kManifestName = "manifest";

struct Record {
  std::string key;
  std::vector<std::string> requested;  // normalised
  Interpreter python;
  std::vector<Package> packages;
  std::vector<std::pair<std::string, std::vector<std::string>>> modules;  // of each requested distribution
  std::string built;                                                      // UTC, ISO 8601
  std::string network;                                                    // "host": what the build could reach
  bool source = false;                                                    // code of packages ran in the build
  bool bytecode = false;                                                  // all of it was compiled
  std::string uv;                                                         // version
  double seconds = 0;
  TreeSize size;
};

std::string record_to_json(const Record& record);
Result<Record> record_from_json(const std::string& text);

}  // namespace pctx::env
