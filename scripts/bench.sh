#!/usr/bin/env bash
# Runs the benchmarks, which print their tables and write them to bench/results, and copies those tables into README.md
# between their marks: cold starts (options go to bench/run.py), then warm calls, scripts, the network, and
# Podman. At last the micro benchmarks of what a run pays before there is a box, which have no goal and no table.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# fill MARK TABLE: what stands in README.md between the two marks becomes the table.
fill() {
  [[ -s $2 ]] || { echo "there is no $2; README.md is unchanged" >&2; exit 1; }
  awk -v mark="$1" -v table="$2" '
    $0 == "<!-- " mark ":end -->" { inside = 0 }
    !inside { print }
    $0 == "<!-- " mark ":begin -->" { inside = 1; while ((getline line < table) > 0) print line }
  ' README.md >build/README.new
  cat build/README.new >README.md
  rm build/README.new
}

.venv/bin/python bench/run.py "$@"
fill bench bench/results/table.md
.venv/bin/python bench/warm.py
fill warm bench/results/warm.md
.venv/bin/python bench/scripts.py
fill scripts bench/results/scripts.md
.venv/bin/python bench/network.py
fill network bench/results/network.md
.venv/bin/python bench/podman.py
fill podman bench/results/podman.md

[[ -f build/bench/build.ninja ]] || cmake --preset bench >/dev/null
cmake --build --preset bench --target micro
build/bench/bench/micro
