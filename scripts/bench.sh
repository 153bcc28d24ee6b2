#!/usr/bin/env bash
# Runs the benchmark, which prints its table and writes it to bench/results/table.md, and copies that table into README.md
# between the two bench marks.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ! -f bench/run.py ]]; then
  echo "bench/run.py does not exist in this tree: there is nothing to measure with" >&2
  exit 1
fi
.venv/bin/python bench/run.py "$@"

table=bench/results/table.md
[[ -s $table ]] || { echo "bench/run.py wrote no $table; README.md is unchanged" >&2; exit 1; }
awk -v table="$table" '
  /<!-- bench:end -->/ { inside = 0 }
  !inside { print }
  /<!-- bench:begin -->/ { inside = 1; while ((getline line < table) > 0) print line }
' README.md >build/README.new
cat build/README.new >README.md
rm build/README.new
