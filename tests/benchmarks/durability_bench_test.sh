#!/bin/sh
# durability_bench_test.sh PROGRAM: a tiny run must end well, restore all rows and leave nothing.
set -eu
bench=$1
dir=$(mktemp -d)
output=$("$bench" --dir="$dir" --rows=3000 --keys=100)
echo "$output"
echo "$output" | grep -q "checkpoint  3000 rows"
echo "$output" | grep -q "restore .* 3000 rows"
rmdir "$dir"
for bad in "" "--dir=$dir --rows=0" "--dir=$dir --rwos=1"; do
  code=0
  # shellcheck disable=SC2086
  "$bench" $bad >/dev/null 2>&1 || code=$?
  [ "$code" = 2 ] || { echo "'$bad' ended with $code"; exit 1; }
done
