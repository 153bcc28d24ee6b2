#!/usr/bin/env bash
# Run by check-wheel.sh in the clone of a clean root, as root: without a compiler `pip install .` says in one sentence which
# packages are missing; with exactly those it works, and so does `uv tool install .`.
set -uo pipefail

env=/opt/from-clone
passed=0 failed=0
claim() {
  local what=$1
  shift
  if said=$("$@" 2>&1); then
    echo "ok: $what"
    passed=$((passed + 1))
  else
    echo "FAILED: $what"
    tail -n 30 <<<"$said"
    failed=$((failed + 1))
  fi
}
apt_line() { grep -o "apt-get install [^']*" <<<"$said" | head -n 1; }
refused_with_apt_line() {
  said=$("$env/bin/pip" install . 2>&1) && { echo "it installed without a compiler"; return 1; }
  [[ -n $(apt_line) ]] || { echo "$said"; return 1; }
  apt_line >/tmp/apt-line
}
install_what_was_named() {
  read -ra words </tmp/apt-line
  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${words[@]:2}"
}
call() { (cd / && "$env/bin/python" -c 'from pctx_sandbox import sandbox; assert sandbox(lambda: 6 * 7)() == 42'); }

claim "an environment" python3 -m venv "$env"
claim "pip install . names what is missing" refused_with_apt_line
claim "what it named can be installed: $(cat /tmp/apt-line)" install_what_was_named
claim "pip install ." "$env/bin/pip" install .
claim "a call" call
claim "uv tool install ." "$env/bin/uv" tool install --python /usr/bin/python3 .
claim "its program runs" "$HOME/.local/bin/pctx-sandbox" run -- true
"$env/bin/pctx-sandbox" stop
echo "$passed passed, $failed failed, 0 skipped"
[[ $failed -eq 0 ]]
