#!/usr/bin/env bash
# Proves the wheel of dist/ where it is to be used: with every Python from 3.10 on that this host has, and in a fresh
# minimal root that has no compiler (needs root and debootstrap; skipped without). Each time the newest dependencies, then
# the oldest allowed ones. Then a clone of the tree, installed in such a root with pip and uv. The last line is
# `N passed, N failed, N skipped`.
#
# usage: scripts/check-wheel.sh [--only-root] [--python FOLDER] [options of check-clean-root.sh: --suite, --mirror, --keyring]
#   --only-root leaves out this host's own Pythons and the clone.
#   FOLDER holds a relocatable Python, lent to the root instead of the distribution's own: for suites whose own is older.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
only_root=no folder='' options=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --only-root) only_root=yes ;;
    --python) folder=$2; shift ;;
    --suite | --mirror | --keyring) options+=("$1" "$2"); shift ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "unknown option: $1" >&2; exit 2 ;;
  esac
  shift
done
wheel=$(ls dist/*.whl 2>/dev/null) || { echo "there is no wheel; run 'make wheel'" >&2; exit 1; }

passed=0 failed=0 skipped=0
# Runs a check whose last line is a sum, and adds it up.
output=$(mktemp)
trap 'rm -f "$output"' EXIT
check() {
  echo "--- $1"
  shift
  nice "$@" 2>&1 | tee "$output" || true
  if [[ $(grep -E '^[0-9]+ passed, [0-9]+ failed, ' "$output" | tail -n 1) =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
  else
    echo "FAILED: it ended without a result"
    failed=$((failed + 1))
  fi
}

# Every minor version once: those of the PATH, of uv and of pyenv.
pythons() {
  local minor candidate
  for minor in 10 11 12 13 14 15; do
    for candidate in "/usr/bin/python3.$minor" "/usr/local/bin/python3.$minor" \
      "${HOME:-/root}"/.local/share/uv/python/cpython-3."$minor".*/bin/python3 "${HOME:-/root}"/.pyenv/versions/3."$minor".*/bin/python3; do
      if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then echo "$candidate"; break; fi
    done
  done
}
if [[ $only_root == no ]]; then
  while read -r python; do check "$python" "$python" scripts/check_install.py "$wheel" "$python"; done < <(pythons)
fi

if [[ $EUID -ne 0 ]] || ! command -v debootstrap >/dev/null; then
  echo "skipped: the clean root needs root and debootstrap (scripts/install-linux-deps.sh --vm)"
  skipped=$((skipped + 1))
else
  inside=/usr/bin/python3 packages=python3,python3-venv,ca-certificates
  if [[ -n $folder ]]; then
    inside=/root/lent/$(basename "$folder")/bin/python3 packages=ca-certificates
    options+=(--lend "$folder")
  fi
  # shellcheck disable=SC2016
  check "a root without a compiler" scripts/check-clean-root.sh ${options[@]+"${options[@]}"} --include "$packages" --lend "$wheel" \
    -- bash -c 'for name in cc gcc g++ c++ clang make cmake; do
        if command -v $name; then echo "this root has a compiler: $name"; exit 1; fi; done
      ldd --version | head -n 1
      exec "$0" scripts/check_install.py /root/lent/*.whl' "$inside"
  if [[ $only_root == no ]]; then
    check "a clone, installed with pip and uv" scripts/check-clean-root.sh ${options[@]+"${options[@]}"} \
      --include python3,python3-venv,ca-certificates -- scripts/check-clone-install.sh
  fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
