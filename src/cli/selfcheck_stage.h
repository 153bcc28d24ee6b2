// What the self-check plants on the host for its probes to attack: a folder, a variable, a descriptor, two sockets, a
// process, shared memory. All of it is gone with this object.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "cli/selfcheck_probes.h"

namespace pctx::cli {

class Stage {
 public:
  static Result<Stage> plant();
  Stage(Stage&& other) noexcept = default;
  Stage& operator=(Stage&&) = delete;
  ~Stage();

  const std::string& folder() const { return folder_; }
  const std::string& token() const { return token_; }
  // As the open box finds it.
  const Planted& planted() const { return planted_; }

  // Whether a process of ours is still there that a guest left behind; ends it.
  bool daemon_is_left() const;

 private:
  Stage() = default;
  Result<void> make_folder();
  Result<void> make_sockets();
  Result<void> make_process();
  Result<void> make_memory();

  std::string folder_, token_;
  Planted planted_;
  Fd descriptor_, port_, abstract_, lifeline_;
  int process_ = -1, memory_ = -1;
};

// The probes' program as a plain process, started by start() and ended by its end or after a while.
class OpenRun {
 public:
  static Result<OpenRun> start(std::string_view what, const Planted& planted);
  OpenRun(OpenRun&& other) noexcept;
  OpenRun& operator=(OpenRun&&) = delete;
  ~OpenRun();
  // What it printed.
  std::string finish();

 private:
  OpenRun() = default;
  int pid_ = -1;
  Fd output_;
};

}  // namespace pctx::cli
