#!/usr/bin/env bash
# Runs the benchmark, which prints its table and writes it to bench/results/, and copies that table into README.md.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ! -f bench/run.py ]]; then
  echo "bench/run.py does not exist in this tree: there is nothing to measure with" >&2
  exit 1
fi
.venv/bin/python bench/run.py "$@"
