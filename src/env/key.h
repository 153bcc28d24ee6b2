// What an Environment is found by: the requirements in one form, the interpreter and the platform. Pure.
#pragma once

#include <string>
#include <vector>

#include "env/interpreter.h"
#include "env/requirement.h"

namespace pctx::env {

// 32 hexadecimal digits. Source distributions make another Environment than wheels do: who asked for wheels only must
// not be given what a build script made.
std::string make_key(const std::vector<Requirement>& requirements, const Interpreter& interpreter, bool source);

// Whether a text has the form of a key: it becomes the name of a folder.
bool is_key(std::string_view text);

}  // namespace pctx::env
