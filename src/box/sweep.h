// A thorough look at all processes of a box, in steps of one process, so that whoever looks at several boxes gets round
// to each of them: what they have together, page for page, and what the kernel has for them beside their pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "box/proc_tree.h"

namespace pctx {

class Sweep {
 public:
  struct Wanted {
    bool mappings = false;
    bool exact = false;            // else only where processes may share memory, and their sum is above `highest`
    std::uint64_t highest = 0;     // an exact figure from before
    std::size_t longest_line = 0;  // of a list of mappings that was seen in this box before
    unsigned doubts = 0;           // exact looks before this one, in a row, that left out what is in doubt
  };

  Sweep(int proc, const Wanted& wanted) : proc_(proc), wanted_(wanted), roll_(proc, kRounds) {}

  // False: it was the last one.
  bool step();

  // Pages that several share are split between them; memory that is shared as a whole, by a process and the child whose
  // exec it waits for, counts once. Of who came while we looked, what nobody else has: the others were read when there
  // were fewer to share.
  Resident exact();
  // Whether children were left out though their parent did not wait, but ran: it may have been about to.
  bool doubted() const { return doubted_; }
  std::uint64_t kept() const;    // mappings, and buffers of open files of /proc
  std::uint64_t parked() const;  // shared anonymous objects that are mapped, whether their pages are or not
  bool counted_exactly() const { return wanted_.exact; }
  bool counted_mappings() const { return wanted_.mappings; }
  std::size_t longest_line() const { return wanted_.longest_line; }
  // Somebody takes care not to be seen: new processes came as fast as we looked, or a mapping has a name beyond reason.
  bool hidden() const;

 private:
  static constexpr int kRounds = 64;

  struct Seen {
    Holder holder;
    bool newcomer = false;
    Resident share;
    std::uint64_t mappings = 0, tables = 0;  // tables: descriptors that are open on /proc or /sys
  };

  bool call();
  void settle_what_is_wanted();
  std::optional<Resident> share_now(const Seen& seen) const;  // nullopt: it is gone
  void count_mappings(Seen& seen);
  void note_line(std::string_view line);
  std::uint64_t ancestors(const std::string& pid) const;

  int proc_;
  Wanted wanted_;
  RollCall roll_;
  bool first_ = true;
  std::vector<std::string> left_;
  std::map<std::string, Seen> seen_;
  std::map<std::string, std::uint64_t> objects_;
  bool doubted_ = false;
  std::size_t read_ = 0;
};

}  // namespace pctx
