// What `doctor` says, from what it found: text for people, JSON for programs. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "box/receipt.h"
#include "launch/remedies.h"

namespace pctx::cli {

// A box that was really made, with `true` in it.
struct FirstBox {
  std::optional<Ending> ending;
  std::optional<Error> failure;
};

struct BackendReport {
  std::string name, means;
  backend::Standing standing;
};

struct Diagnosis {
  HostFacts facts;
  std::optional<HostFacts> user;  // as root: what an ordinary user would find
  FirstBox trial;
  std::vector<BackendReport> backends;
  std::string chosen, chosen_because;  // what "auto" comes to
};

bool is_ready(const Diagnosis& diagnosis);
// The last line: ready, or what to do first.
std::string verdict(const Diagnosis& diagnosis);
std::string report_text(const Diagnosis& diagnosis, bool colour);
std::string report_json(const Diagnosis& diagnosis);

}  // namespace pctx::cli
