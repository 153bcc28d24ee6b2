// Reads texts in guests' memory: the paths of calls that were refused. In a process of its own, because the kernel
// makes whoever reads wait while the guest changes its mappings, and nothing ends that wait: how long it lasts is up to
// the guest. Who answers calls and keeps deadlines must not be the one who waits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace pctx {

class TextReader {
 public:
  static constexpr std::size_t kLongest = 255;

  struct Answer {
    std::uint64_t id = 0;
    std::string text;  // as it is there, up to its end; empty if there is none
  };

  TextReader() = default;
  ~TextReader();
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  // False: nobody can read it. `id` comes back with the answer.
  bool ask(std::uint64_t id, pid_t pid, std::uint64_t address);
  // Readable when there is something to hear; -1 before anything was asked.
  int fd() const { return socket_.get(); }
  // Another one than before has another `fd`, be its number the same.
  unsigned started() const { return started_; }
  std::optional<Answer> hear();
  // Whatever was asked is not answered any more. A guest that keeps several waiting has its texts read no longer.
  void give_up();

 private:
  bool start();
  bool all_wait();

  Fd socket_;
  pid_t pid_ = -1;
  unsigned started_ = 0;
  std::vector<pid_t> waiting_;  // they end when the guest does, at the latest
};

}  // namespace pctx
