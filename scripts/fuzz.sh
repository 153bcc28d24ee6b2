#!/usr/bin/env bash
# Builds the libFuzzer targets and runs each for a number of seconds, keeping what they find in fuzz/corpus/<name>.
#
# usage: scripts/fuzz.sh [SECONDS]
# The last line is `N passed, N failed, N skipped`; a crash leaves its input in build/fuzz/crashes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}

if [[ ! -f fuzz/CMakeLists.txt ]]; then
  echo "skipped: there are no fuzz targets in this tree"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi

# The preset names clang 14, which Debian 12 has; elsewhere the distribution's own clang.
compiler=()
command -v clang++-14 >/dev/null || compiler=(-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang)
[[ -f build/fuzz/build.ninja ]] || cmake --preset fuzz ${compiler[@]+"${compiler[@]}"} >/dev/null
cmake --build --preset fuzz --target fuzz/all  # not the program itself
mkdir -p build/fuzz/crashes

passed=0 failed=0
for target in build/fuzz/fuzz/*_fuzz; do
  name=$(basename "$target")
  corpus=fuzz/corpus/${name%_fuzz}
  mkdir -p "$corpus"
  echo "fuzz: $name for $seconds s"
  if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix=build/fuzz/crashes/"$name"- "$corpus" >build/fuzz/"$name".log 2>&1; then
    grep -E 'number_of_executed_units|new_units_added' build/fuzz/"$name".log || true
    passed=$((passed + 1))
  else
    tail -n 30 build/fuzz/"$name".log
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[[ $failed -eq 0 && $passed -gt 0 ]]
