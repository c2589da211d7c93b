#!/bin/sh
# bench_jobs_test.sh THERMOCLINE JOB ARMS SWEEP HTTP GROWTH: tiny runs of arms.py, sweep.py, compare_http.py and
# growth.py must end well, and say what they can't do. Asserts nothing about time.
set -eu
thermocline=$1
job=$2
arms=$3
sweep=$4
http=$5
growth=$6
out=$(mktemp -d "${TEST_TMPDIR:-/tmp}/bench_jobs_XXXXXX")
trap 'rm -rf "$out"' EXIT
fail() {
  echo "$*" >&2
  exit 1
}

"$thermocline" generate "$out/log" --rows 4000 --test-rows 1000 --shrink 1000 --correlation 0.5 >/dev/null
# Small enough to be over in seconds; 63 steps.
small="--set train.batch_size=64 --set dlrm.bottom=8 --set dlrm.top=8 --set default_table.dim=4
       --set cluster.worker_threads=1 --set device=CPU"
# shellcheck disable=SC2086
arms() { "$arms" "$job" --thermocline "$thermocline" --data "$out/log" $small "$@"; }

arms --budgets 64KiB --seeds 2 --evaluations 3 --out "$out/arms" >"$out/text" ||
  fail "arms.py: $(cat "$out/text")"
cat "$out/text"
grep -q '^remote-cpu  *-  *[0-9]' "$out/text" || fail "no line of remote-cpu"
grep -q '^cache  *64.0 KiB  *[0-9]' "$out/text" || fail "no line of cache"
grep -q '^fae  *64.0 KiB  *[0-9].*% ' "$out/text" || fail "no line of fae, or without its share of hot samples"
grep -q '^fae-static  *64.0 KiB  *[0-9]' "$out/text" || fail "no line of fae-static"
grep -q '^cache-static  *64.0 KiB  *[0-9]' "$out/text" || fail "no line of cache-static"
grep -q '^fae,65536,1,.*,[0-9.]*$' "$out/arms/curves.csv" || fail "curves.csv has no rate of fae"
[ -e /proc/driver/nvidia/gpus ] || grep -q '^remote-gpu: this machine has no GPU' "$out/text" || fail "no line of remote-gpu"
# Both arms train the same model, so that the second needs no evaluated runs of its own.
[ -d "$out/arms/remote-cpu-seed-1-evaluated" ] || fail "no run is evaluated"
[ ! -d "$out/arms/cache-65536-seed-1-evaluated" ] || fail "the same model is evaluated twice"
[ "$(grep -c '^remote-cpu,0,' "$out/arms/arms.csv")" = 2 ] || fail "arms.csv has not two runs of remote-cpu"
[ "$(grep -c '^cache,65536,1,' "$out/arms/curves.csv")" -ge 3 ] || fail "curves.csv has no evaluations of the cache"
grep -q 'picture' "$out/text" || fail "not a word about the picture"

"$sweep" --thermocline "$thermocline" --knobs batch,device,placement --points 1 --steps 2 --set device=CPU \
  --set cluster.worker_threads=1 --out "$out/sweep" >"$out/text" 2>&1 || fail "sweep.py: $(cat "$out/text")"
cat "$out/text"
grep -q '^batch  *200  *[0-9]' "$out/text" || fail "no line of batch"
grep -q '^placement  *DEVICE, REMOTE  *[0-9]' "$out/text" || fail "no line of a placement"
[ "$(grep -c '^placement,' "$out/sweep/sweep.csv")" = 5 ] || fail "sweep.csv has not all placements"
[ ! -e "$out/sweep/data" ] || fail "the sweep's data are left behind"

# shellcheck disable=SC2086
"$http" "$out/log" --thermocline "$thermocline" --job "$job" --rounds 1 --period 0.05 -- $small --set train.passes=4 \
  >"$out/text" || fail "compare_http.py: $(cat "$out/text")"
cat "$out/text"
grep -q 'page [0-9.]*%, [1-9][0-9]* scrapes of [0-9]* bytes' "$out/text" || fail "nothing was scraped"

printf 'A\n<!-- costs of growth.py -->\nold\n<!-- end of costs -->\nB\n<!-- memory of growth.py -->\n<!-- end of memory -->\nC\n' \
  >"$out/page.md"
"$growth" --thermocline "$thermocline" --knobs workers --rounds 1 --scale 0.001 --out "$out/growth" \
  --into "$out/page.md" -- --set cluster.worker_threads=1 >"$out/text" 2>&1 || fail "growth.py: $(cat "$out/text")"
cat "$out/page.md"
grep -q '^| workers: 4 | [0-9.]* |' "$out/page.md" || fail "the page has no line of 4 workers"
grep -q '^| `adagrad` | 32 | 1[0-9][0-9] | 1[.]' "$out/page.md" || fail "the page has no memory of Adagrad"
[ "$(grep -c '^[ABC]$\|^old$' "$out/page.md")" = 3 ] || fail "the page has lost its text, or kept the old table"
grep -q '>workers</text>' "$out/growth.svg" || fail "no picture of workers"
[ ! -e "$out/growth/data-memory" ] || fail "the data of growth.py are left behind"

# The kernel takes the links away with the process.
if [ "$(id -u)" = 0 ] && unshare --net true 2>/dev/null && command -v tc >/dev/null; then
  arms --arms remote-cpu --seeds 1 --evaluations 0 --servers 2 --link 1gbit --out "$out/link" >"$out/text" 2>&1 ||
    fail "arms.py --link: $(cat "$out/text")"
  grep -q 'each behind a link of 1gbit' "$out/text" || fail "no word about the link"
  grep -q '^remote-cpu  *-  *[0-9]' "$out/text" || fail "no line of remote-cpu over links: $(cat "$out/text")"
  arms --arms remote-cpu --link fast --out "$out/fast" >"$out/text" 2>&1 && fail "a link of 'fast' is taken"
  grep -q 'tc knows no such rate' "$out/text" || fail "$(cat "$out/text")"
else
  echo "no links: this user can't make network namespaces here"
fi

# Bad usage is exit code 2, before anything runs.
while read -r bad; do
  code=0
  # shellcheck disable=SC2086
  arms --out "$out/bad" $bad >"$out/text" 2>&1 || code=$?
  [ "$code" = 2 ] || fail "'$bad' ended with $code: $(cat "$out/text")"
done <<'BAD'
--arms everything --budgets 1MiB
--arms cache
--arms cache --budgets 1MB
--arms cache --budgets 64KiB --workers 2 --set train.staleness_steps=2000
--seeds 0
--auc 1.5 --budgets 1MiB
BAD
code=0
"$sweep" --thermocline "$thermocline" --knobs size >"$out/text" 2>&1 || code=$?
[ "$code" = 2 ] || fail "a knob that is none ended with $code: $(cat "$out/text")"
