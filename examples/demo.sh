#!/usr/bin/env bash
# The first three commands to try, and what each must do. Ends with an error if one misbehaves.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
bin=${PCTX_SANDBOX_BIN:-.venv/bin/pctx-sandbox}
wrong=0

# expect STATUS TEXT ARG...: shows and runs `pctx-sandbox ARG...`; its output must contain TEXT.
expect() {
  local status=$1 text=$2 output word actual=0
  shift 2
  printf '\n$ pctx-sandbox'
  for word in "$@"; do
    if [[ $word == *[!a-zA-Z0-9_./:=-]* ]]; then printf " '%s'" "$word"; else printf ' %s' "$word"; fi
  done
  printf '\n'
  output=$("$bin" "$@" 2>&1 </dev/null) || actual=$?
  printf '%s\n(exit status %d)\n' "$output" "$actual"
  if [[ $actual -ne $status || $output != *"$text"* ]]; then
    printf 'WRONG: expected exit status %d and "%s"\n' "$status" "$text"
    wrong=1
  fi
}

echo "A file of the host does not exist in the box:"
expect 1 "No such file" run -- cat /etc/shadow

echo
echo "A limit binds, and the message names the option that raises it:"
expect 137 "out of memory: limit 64 MiB (--memory)" run --memory 64M -- python3 -c 'bytearray(10**9)'

echo
echo "What this host can enforce:"
expect 0 "" doctor

if [[ $wrong -ne 0 ]]; then
  printf '\nAt least one command misbehaved; pctx-sandbox doctor names what this host lacks and how to fix it.\n' >&2
fi
exit "$wrong"
