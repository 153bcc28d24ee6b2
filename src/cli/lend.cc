// A copy of a folder for boxes of another backend, for as long as a call lasts. `@sandbox` uses it; whoever holds our
// standard input holds the copy.
#include <memory>

#include <fmt/format.h>

#include "backend/copies.h"
#include "base/json.h"
#include "base/printable.h"
#include "cli/verbs.h"
#include "sys/files.h"

namespace pctx::cli {
namespace {

std::string printed(const FolderChanges& changes) {
  const auto list = [](const std::vector<std::string>& paths) {
    OrderedJson names = OrderedJson::array();
    for (const std::string& path : paths) names.push_back(printable_path(path));
    return names;
  };
  OrderedJson skipped = OrderedJson::array();
  for (const SkippedPath& each : changes.skipped)
    skipped.push_back({{"path", printable_path(each.path)}, {"reason", each.reason}});
  const OrderedJson json{{"created", list(changes.created)},
                         {"modified", list(changes.modified)},
                         {"deleted", list(changes.deleted)},
                         {"skipped", skipped},
                         {"truncated", changes.truncated_reason}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

struct Lending {
  std::string folder, copy;
  uid_t uid = 0;
  gid_t gid = 0;
};

Result<int> lend(const Lending& lending) {
  backend::FolderCopy copy =
      PCTX_TRY(backend::FolderCopy::make(lending.folder, lending.copy, lending.uid, lending.gid));
  PCTX_TRY(sys::write_all(STDOUT_FILENO, "ready\n"));
  char word[8];
  const bool back = std::fgets(word, sizeof word, stdin) != nullptr && std::string_view{word} == "back\n";
  if (back) {
    const FolderChanges changes = PCTX_TRY(copy.bring_back());
    PCTX_TRY(sys::write_all(STDOUT_FILENO, printed(changes)));
  }
  PCTX_TRY(copy.empty());
  return 0;
}

}  // namespace

void add_lend(Verb program, int& status) {
  const Verb verb = program.add("lend", "Copy a folder for a box in a container, and bring back what changed");
  auto lending = std::make_shared<Lending>();
  lending->uid = ::geteuid();
  lending->gid = ::getegid();
  verb.option("FOLDER", lending->folder, {.means = "Of the host", .required = true});
  verb.option("COPY", lending->copy,
              {.means = "Where the copy goes: an empty folder or none; it is emptied after", .required = true});
  verb.option("--uid", lending->uid, {.type = "ID", .means = "Who uses the copy (default: the caller)"});
  verb.option("--gid", lending->gid, {.type = "ID", .means = "The group of whoever uses it"});
  verb.footer(
      "Prints 'ready' once the copy stands. The line 'back' on standard input brings back what changed and prints it\n"
      "as JSON; the end of standard input drops it.");
  verb.act(status, [lending] { return lend(*lending); });
}

}  // namespace pctx::cli
