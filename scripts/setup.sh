#!/usr/bin/env bash
# Everything that `make demo` and `make test` need before they start, in numbered steps. Each step first looks whether its
# work is done, so a second run starts at once. Afterwards .venv/bin/pctx-sandbox is the release build, and
# .venv/bin/python imports pctx_sandbox.
#
# usage: scripts/setup.sh demo|test [--vm] [--fuzz] [--bench] [--lint]
#   demo: the packages, the environment and the program; test: also the test programs and the Python packages they use
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
goal=${1:?usage: scripts/setup.sh demo|test [--vm] [--fuzz] [--bench] [--lint]}
shift
groups=("$@")
log=build/setup.log
mkdir -p build

seconds_since() { printf '%d.%d' $((($(date +%s%N) - $1) / 1000000000)) $((($(date +%s%N) - $1) / 100000000 % 10)); }

# Shows that a long step is alive: on a terminal its last line of output, elsewhere one line every 20 seconds.
watch_step() {
  local pid=$1 title=$2 ticks=0 last
  while sleep 0.2 && kill -0 "$pid" 2>/dev/null; do
    ticks=$((ticks + 1))
    last=$(tail -n 1 "$log" | tr -cd '[:print:]')
    if [[ -t 1 ]]; then
      printf '\r\033[K%s %d s  %.70s' "$title" $((ticks / 5)) "$last"
    elif ((ticks % 100 == 0)); then
      printf '%s %d s: %.100s\n' "$title" $((ticks / 5)) "$last"
    fi
  done
}

# step N/M NAME IS-DONE COMMAND: runs COMMAND unless IS-DONE says that its work is there already.
step() {
  local title="[$1] $2:" is_done=$3 work=$4 start status=0
  start=$(date +%s%N)
  if "$is_done"; then
    printf '%s ready (%s s)\n' "$title" "$(seconds_since "$start")"
    return
  fi
  printf '%s ...\n' "$title"
  : >"$log"
  "$work" >"$log" 2>&1 &
  local worker=$!
  watch_step "$worker" "$title"
  wait "$worker" || status=$?
  [[ -t 1 ]] && printf '\r\033[K'
  if [[ $status -ne 0 ]]; then
    tail -n 40 "$log" >&2
    printf '%s failed after %s s; the whole output is in %s\n' "$title" "$(seconds_since "$start")" "$log" >&2
    exit 1
  fi
  printf '%s done (%s s)\n' "$title" "$(seconds_since "$start")"
}

# --- packages ----------------------------------------------------------------------------------------------------------

packages_ready() { scripts/install-linux-deps.sh --check ${groups[@]+"${groups[@]}"}; }
packages() { scripts/install-linux-deps.sh ${groups[@]+"${groups[@]}"}; }

# --- Python environment ------------------------------------------------------------------------------------------------

stamp=.venv/requirements.sha256
# The distribution's own interpreter where there is one: python3-venv belongs to it, a box lends it to its guest, and every
# user of the machine can run it, which is not true of one below somebody's home.
python=/usr/bin/python3
[[ -x $python ]] || python=python3
# What the environment was made from: the interpreter, the place (an environment cannot be moved) and the pinned packages.
fingerprint() { { "$python" -c 'import sys; print(sys.version)'; pwd; cat requirements.txt requirements-dev.txt; } | sha256sum; }

venv_ready() {
  .venv/bin/python -c 'import cloudpickle, tqdm, uv' 2>/dev/null &&
    [[ $goal == demo || $(cat "$stamp" 2>/dev/null) == "$(fingerprint)" ]]
}
venv() {
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear .venv
  fi
  local pip=(.venv/bin/python -m pip install --disable-pip-version-check --progress-bar off)
  "${pip[@]}" -r requirements.txt
  [[ $goal == test ]] || return 0
  # By uv, which is among the former, in a quarter of pip's time; it does not read pip's settings, should they matter here.
  .venv/bin/uv pip install --no-progress --python .venv/bin/python -r requirements.txt -r requirements-dev.txt ||
    "${pip[@]}" -r requirements-dev.txt
  # Once, for all the interpreters that the tests start and that write none; nobody imports the packages' own tests.
  .venv/bin/python -m compileall -q -j 0 -x '/tests/' "$(site_packages)" || true
  fingerprint >"$stamp"
}

# --- release build -----------------------------------------------------------------------------------------------------

build() {
  [[ -f build/release/build.ninja ]] || cmake --preset release
  cmake --build --preset release --target "${targets[@]}"
}
targets=(pctx-sandbox pctx_native pctx_fork pctx_scripts)
[[ $goal == test ]] && targets=(all)

# The package is used from the tree, with what was compiled for it beside its sources. Copies, not links: they survive
# `rm -rf build`. Renamed into place, since a running program cannot be overwritten.
site_packages() { .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
compiled=(pctx-sandbox:.venv/bin/pctx-sandbox
          python/pctx_sandbox/_native.abi3.so:python/pctx_sandbox/_native.abi3.so
          python/pctx_sandbox/guest/_fork.so:python/pctx_sandbox/guest/_fork.so
          python/pctx_sandbox/guest/_scripts.so:python/pctx_sandbox/guest/_scripts.so)
installed() {
  for pair in "${compiled[@]}"; do
    cmp -s "build/release/${pair%%:*}" "${pair##*:}" || return 1
  done
  [[ $(cat "$(site_packages)/pctx_sandbox_tree.pth" 2>/dev/null) == "$PWD/python" ]]
}
install_tree() {
  for pair in "${compiled[@]}"; do
    # In one write: a kernel that can then keeps the file in large pages, and each start of it takes fewer faults.
    dd if="build/release/${pair%%:*}" of="${pair##*:}.new" bs=64M status=none
    chmod 755 "${pair##*:}.new"
    mv "${pair##*:}.new" "${pair##*:}"
  done
  printf '%s\n' "$PWD/python" >"$(site_packages)/pctx_sandbox_tree.pth"
}

# sudo may have to ask for a password, which it cannot do from a step whose output goes to a file.
if ! packages_ready && [[ $EUID -ne 0 && -t 0 ]] && command -v sudo >/dev/null; then sudo -v || true; fi

step 1/4 "packages" packages_ready packages
step 2/4 "Python environment in .venv" venv_ready venv
# Only ninja knows whether something changed: it is always asked, and answers in a moment.
step 3/4 "release build" false build
step 4/4 ".venv/bin/pctx-sandbox and the Python package" installed install_tree
