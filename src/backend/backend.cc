#include "backend/backend.h"

#include <array>
#include <cstdlib>

#include <fmt/format.h>

#include "backend/lima/lima.h"
#include "backend/namespaces.h"
#include "backend/podman/podman.h"

namespace pctx::backend {
namespace {

// The one list: a fourth backend is a folder beside these and a name here.
constexpr std::array kBackends{kNamespaces, podman::kPodman, lima::kLima};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

Result<const Backend*> find(std::string_view name) {
  std::string known = "auto";
  for (const Backend& each : kBackends) {
    if (each.name == name) return &each;
    known += fmt::format(", {}", each.name);
  }
  const char* const where = named_by_caller() == name ? "PCTX_SANDBOX_BACKEND" : "--backend";
  return usage_error(fmt::format("{}: there is no backend '{}'", where, name), fmt::format("choose one of {}", known));
}

std::string named_by_caller() {
  const char* named = std::getenv("PCTX_SANDBOX_BACKEND");
  return named != nullptr && *named != '\0' ? named : "auto";
}

Choice decide(const Standing& namespaces, const Standing& podman) {
  if (!namespaces.usable && podman.usable) return {&podman::kPodman, fmt::format("{}; {}", namespaces.why, podman.why)};
  // Its own errors say best what is missing.
  return {&kNamespaces, namespaces.why};
}

Result<Choice> choose(std::string_view name) {
  if (name == "auto") {
    const Standing here = look_at_namespaces();
    return decide(here, here.usable ? Standing{} : podman::look());  // Podman takes a tenth of a second to answer
  }
  return Choice{PCTX_TRY(find(name)), "asked for by name"};
}

}  // namespace pctx::backend
