#!/bin/sh
# Compares the exported C ABI, types included, with the baseline in the tree.
#   abi_gate.sh LIBDGPU_SO             fails on anything but additions, and lists those
#   abi_gate.sh LIBDGPU_SO --refresh   writes the baseline anew: after a release, or after additions were reviewed.
#                                      Before 1.0 is published also after a deliberate change. Never to silence a failure.
set -eu
library=$1
here=$(cd "$(dirname "$0")" && pwd)
baseline=$here/libdgpu.abi
headers=$here/../../include
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
abidw --headers-dir "$headers" --exported-interfaces-only --drop-private-types --drop-undefined-syms --no-elf-needed \
  --no-architecture --no-corpus-path --no-comp-dir-path --no-show-locs --type-id-style hash --out-file "$work/now.abi" "$library"
if ! grep -q 'dgpuInitOptions' "$work/now.abi"; then
  echo "the library has no debug information about its types; build src/api with -g" >&2
  exit 2
fi
if [ "${2:-}" = --refresh ]; then
  cp "$work/now.abi" "$baseline"
  echo "abi: baseline written, $(grep -c '<elf-symbol ' "$baseline") symbols"
  exit 0
fi
# 4: the ABI changed, 8: incompatibly; both with additions left out are failures.
status=0
abidiff --no-added-syms "$baseline" "$work/now.abi" > "$work/breakage.txt" 2> "$work/errors.txt" || status=$?
# A baseline that does not parse compares as equal and complains on standard error only.
if [ "$status" -ne 0 ] || [ -s "$work/errors.txt" ]; then
  cat "$work/breakage.txt" "$work/errors.txt"
  echo "abi: the ABI is not what the baseline says (abidiff exit $status)"
  exit 1
fi
abidiff "$baseline" "$work/now.abi" > "$work/additions.txt" || true
added=$(grep -c "^  *\[A\]" "$work/additions.txt" || true)
if [ "$added" -gt 0 ]; then grep "^  *\[A\]" "$work/additions.txt"; fi
echo "abi: as the baseline, $added symbols added"
