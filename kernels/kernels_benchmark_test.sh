#!/bin/sh
# Every operation is timed and printed, on both instruction sets; a wrong flag is refused.
set -eu
for isa in auto avx2; do
  out=$("$1" --batch 32 --threads 2 --repeats 2 --isa "$isa")
  echo "$out"
  echo "$out" | grep -q "top weight gradients"
  echo "$out" | grep -q "step (sum of the least)"
done
if "$1" --batch; then
  echo "a flag without a value was accepted" >&2
  exit 1
fi
