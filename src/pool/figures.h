// What `status` tells about a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pctx {

struct PoolFigures {
  std::size_t waiting = 0, busy = 0, making = 0;
  std::uint64_t forked = 0, calls = 0;
  std::vector<std::string> preloaded;
  std::map<std::string, std::string> left;  // module: why the Zygote did not import it
};

// What a Zygote says when it is ready: for people to read, nothing depends on it.
void take_figures(const std::string& text, PoolFigures& figures);

}  // namespace pctx
