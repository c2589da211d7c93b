#!/bin/sh
# report_cost_test.sh REPORT_COST THERMOCLINE: a tiny run must get its page. Asserts nothing about time.
set -eu
out=$("$1" --thermocline "$2" --lines 300 --servers 3 --rounds 1)
echo "$out"
case $out in
  *"           300 "*" MiB  "*) ;;
  *)
    echo "no line of figures" >&2
    exit 1
    ;;
esac
