#!/usr/bin/env bash
# Builds the wheel into dist/: one for every CPython from 3.10 on, for every glibc from the oldest that its files ask for.
# The platform tag says which; it is made from the compiled files, never assumed.
#
# usage: scripts/wheel.sh      after scripts/setup.sh demo
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
work=build/wheel-out
rm -rf "$work"
mkdir -p "$work" dist

# Warnings are errors here as in the other builds; with the same flags and compiler ccache has the objects already.
export CC=${CC:-cc} CXX=${CXX:-c++}
"$python" -m pip wheel --disable-pip-version-check --no-deps --wheel-dir "$work" \
  --config-settings=cmake.define.PCTX_WERROR=ON .
built=$(echo "$work"/*.whl)
"$python" -m zipfile -e "$built" "$work/files"
floor=$("$python" scripts/glibc_floor.py "$work/files/pctx_sandbox/_native.abi3.so" \
  "$work/files/pctx_sandbox/guest/_fork.so" "$work/files/pctx_sandbox/guest/_scripts.so" \
  "$work/files/pctx_sandbox/bin/pctx-sandbox")

"$python" -m pip install --disable-pip-version-check --quiet --target "$work/tools" wheel==0.45.1
PYTHONPATH=$work/tools "$python" -m wheel tags --remove --platform-tag "manylinux_${floor/./_}_$(uname -m)" "$built" >/dev/null
rm -f dist/*.whl
mv "$work"/*.whl dist/
printf '%s (%d kB)\n' dist/*.whl $(($(stat -c %s dist/*.whl) / 1000))
