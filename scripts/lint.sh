#!/usr/bin/env bash
# usage: scripts/lint.sh check|format
# check: formatting, clang-tidy, ruff and shellcheck; format: rewrites C++ and Python files.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=${1:-check}
mapfile -t cxx < <(git ls-files '*.cc' '*.h' '*.c')
mapfile -t shell < <(git ls-files '*.sh' '.ci/run')

if [[ $mode == format ]]; then
  [[ ${#cxx[@]} -eq 0 ]] || .venv/bin/clang-format -i "${cxx[@]}"
  .venv/bin/ruff format --quiet .
  .venv/bin/ruff check --quiet --fix .
  exit 0
fi

failed=0
check() {
  local name=$1
  shift
  if "$@"; then echo "lint: $name ok"; else echo "lint: $name failed"; failed=1; fi
}
check clang-format .venv/bin/clang-format --dry-run -Werror "${cxx[@]}"
check "ruff format" .venv/bin/ruff format --check .
check ruff .venv/bin/ruff check .
check shellcheck shellcheck "${shell[@]}"
[[ -f build/dev/build.ninja ]] || cmake --preset dev >/dev/null
mapfile -t units < <(git ls-files 'src/*.cc')
# The build is GCC's: some of its warning options are unknown to clang. What clang-tidy counts on stderr are warnings in
# headers of others, which it does not show.
# shellcheck disable=SC2317,SC2329  # called by check
tidy() {
  printf '%s\n' "${units[@]}" |
    xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/dev --extra-arg=-Wno-unknown-warning-option \
      2> >(grep -v 'generated\.$' >&2)
}
check clang-tidy tidy
exit "$failed"
