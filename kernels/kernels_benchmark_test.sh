#!/bin/sh
# Every operation is timed and printed, on both instruction sets and in both precisions, and on a GPU if there
# is one; wrong flags are refused.
set -eu
for run in "auto --precision bfloat16" avx2; do
  # shellcheck disable=SC2086
  out=$("$1" --batch 32 --threads 2 --repeats 2 --isa $run)
  echo "$out"
  echo "$out" | grep -q "family [0-9]*, model [0-9]*, AVX"
  echo "$out" | grep -q "multiply-adds, float32: [1-9][0-9.]* GFLOP/s of a thread, [1-9][0-9.]* of 2"
  echo "$out" | grep -q "oneDNN: sgemm of the step's products, float32: [0-9.]* GFLOP/s"
  echo "$out" | grep -q "top weight gradients.*%"
  echo "$out" | grep -q "its products.* GFLOP/s .*%"
  echo "$out" | grep -q "step (sum of the above)"
  echo "$out" | grep -q "layer norm backward 400"
  echo "$out" | grep -q "attention backward 4 x 16.* GFLOP/s .*%"
done
if out=$("$1" --device cuda --batch 32 --repeats 2 2>&1); then
  echo "$out" | grep -q "a copy in its memory"
else
  echo "$out"
  echo "$out" | grep -Eq "NOT_FOUND|UNIMPLEMENTED"  # This machine has no GPU.
fi
for wrong in --batch "--device tpu" "--precision tf32"; do
  # shellcheck disable=SC2086
  if "$1" $wrong; then
    echo "'$wrong' was accepted" >&2
    exit 1
  fi
done
