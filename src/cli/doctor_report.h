// What `doctor` says, from what it found: text for people, JSON for programs. Pure.
#pragma once

#include <optional>
#include <string>

#include "box/receipt.h"
#include "launch/remedies.h"

namespace pctx::cli {

// A box that was really made, with `true` in it.
struct Trial {
  std::optional<Ending> ending;
  std::optional<Error> failure;
};

struct Diagnosis {
  HostFacts facts;
  std::optional<HostFacts> user;  // as root: what an ordinary user would find
  Trial trial;
};

bool is_ready(const Diagnosis& diagnosis);
// The last line: ready, or what to do first.
std::string verdict(const Diagnosis& diagnosis);
std::string report_text(const Diagnosis& diagnosis, bool colour);
std::string report_json(const Diagnosis& diagnosis);

}  // namespace pctx::cli
