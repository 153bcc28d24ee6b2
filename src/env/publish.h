// From a folder that a build has filled to an Environment that can be published: checked, cleared, frozen, recorded.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "env/record.h"
#include "env/requirement.h"

namespace pctx::env {

inline constexpr const char* kScratchName = ".build";  // in the tree: caches of the build, never published

// `record` holds what is known; sizes, modules and the version of uv are filled in. The top itself stays writable for
// its owner: the kernel refuses to move a folder that is not.
Result<void> finish_tree(int tree, int shared, const std::vector<Requirement>& requirements, Record record);

}  // namespace pctx::env
