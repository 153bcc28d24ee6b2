#include "base/result.h"

#include <cstring>

namespace pctx {

Error os_error(std::string what, int code) {
  // strerrordesc_np does not translate and does not allocate: the same words on every host.
  const char* reason = strerrordesc_np(code);
  return {ErrorKind::os, std::move(what) + ": " + (reason != nullptr ? reason : "unknown error"), "", code};
}

Error usage_error(std::string what, std::string hint) {
  return {ErrorKind::usage, std::move(what), std::move(hint), 0};
}

Error unavailable(std::string what, std::string hint) {
  return {ErrorKind::unavailable, std::move(what), std::move(hint), 0};
}

Error named(std::string_view name, Error error) {
  error.what = std::string{name} + ": " + error.what;
  return error;
}

}  // namespace pctx
