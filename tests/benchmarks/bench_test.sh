#!/bin/sh
# bench_test.sh PROGRAM pull|push: a tiny run must end well and print its ratio.
set -eu
bench=$1
what=$2
output=$("$bench" "$what" --rows=3000 --keys=100,1000 --channels=2 --repetitions=1 --seconds=0.01)
echo "$output"
echo "$output" | grep -q "$what / delivered"
# Bad usage is exit code 2.
for bad in "$what extra" "$what --keys=none" "$what --rows=10" "$what --repetitions=0" "$what --rwos=3000" "$what --rows=many" \
  "sing"; do
  code=0
  # shellcheck disable=SC2086
  "$bench" $bad >/dev/null 2>&1 || code=$?
  [ "$code" = 2 ] || { echo "'$bad' ended with $code"; exit 1; }
done
