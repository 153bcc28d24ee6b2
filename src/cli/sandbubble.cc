// Files for projects that have `sandbox.py` beside them: the same names, with this package behind them.
#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <memory>

#include <fmt/format.h>

#include "base/print.h"
#include "cli/verbs.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

struct Exported {
  const char* name;
  const char* text;
};

constexpr std::array<Exported, 2> kExportedFiles{{
    {"sandbox.py",
     R"py("""Runs untrusted Python with a virtualenv, in a box: `python sandbox.py --help`, `from sandbox import run_sandboxed`.

Written by `pctx-sandbox sandbubble export`. Everything is in the package pctx_sandbox; this file only gives it a name.
"""

from pctx_sandbox.sandbubble import *  # noqa: F403

if __name__ == "__main__":
    import os
    import sys

    from pctx_sandbox.sandbubble.__main__ import main

    # As with the extended suite's own file: beside this one or not at all.
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandbox_extra_tests.py")
    sys.exit(main(program="sandbox.py", extra_tests=os.path.exists(beside)))
)py"},
    {"sandbox_extra_tests.py",
     R"py("""Beside sandbox.py, this file unlocks its `--extra-tests`. The tests themselves are the engine's.

Written by `pctx-sandbox sandbubble export`.
"""
)py"},
}};

Result<int> export_to(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return os_error(fmt::format("cannot make {}", folder));
  for (const Exported& file : kExportedFiles) {
    const std::string path = sys::join(folder, file.name);
    // What is there may be somebody's own.
    if (const auto known = sys::try_read_file(path, 1 << 20); known && *known == file.text) {
      print_out("{}: as it should be\n", path);
      continue;
    }
    auto fd = sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (!fd && fd.error().code == EEXIST)
      return usage_error(fmt::format("{} is already there, with another content", path),
                         "move it away, or name another folder");
    if (!fd) return std::move(fd).error();
    PCTX_TRY(sys::write_all(fd->get(), file.text));
    print_out("{}\n", path);
  }
  return 0;
}

}  // namespace

void add_sandbubble(Verb program, int& status) {
  const Verb verb = program.add("sandbubble", "Files for projects that keep a sandbox.py beside their code");
  verb.needs_another();
  const Verb files = verb.add("export", "Write sandbox.py and sandbox_extra_tests.py into a folder");
  files.footer("They are thin: the package pctx_sandbox must be installed where they run.");
  auto folder = std::make_shared<std::string>();
  files.option("dir", *folder, {.type = "DIR", .means = "The folder; it is made if it is not there", .required = true});
  files.act(status, [folder] { return export_to(*folder); });
}

}  // namespace pctx::cli
