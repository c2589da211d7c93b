#!/usr/bin/env bash
# All arms of tests/benchmarks/arms.py on a machine with a GPU, at three batch sizes, beside a DLRM in PyTorch.
#
#   tests/benchmarks/gpu_arms.sh [--data LOG] [--out DIR] [--batches 2048,8192,65536] [--budgets 64MiB,256MiB]
#                                [--seeds 3] [--peer torch_dlrm.py] [--python python3] [--thermocline PROGRAM] [--tiny]
#
# LOG is a folder as `thermocline generate` writes it; without --data one of 8,000,000 rows is made, with --correlation
# (default 0.23: as large a share of its samples is hot as of Criteo's sample at 2 MiB, docs/seeds.md).
# The peer is a script that takes `LOG --mode cpu|hybrid|gpu --batch N` and prints samples_per_s=; --python names an
# interpreter that has PyTorch. Without a GPU the arms that need one are lines that say so, and the peer runs on the
# CPU alone. --tiny takes seconds: it shows that everything runs, and measures nothing.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
thermocline=$root/build/bin/thermocline
data='' peer='' python=python3 out=gpu_arms batches=2048,8192,65536 budgets=64MiB,256MiB seeds=3 correlation=0.23
rows=8000000 evaluations=20 extra=()
usage() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d' >&2
  exit 2
}
while (($# > 0)); do
  case $1 in
    --tiny)
      batches=64,128 budgets=64KiB seeds=1 rows=4000 evaluations=2
      extra=(--set 'dlrm.bottom=8' --set 'dlrm.top=8' --set default_table.dim=4 --set cluster.worker_threads=1)
      shift
      continue
      ;;
    --data | --out | --batches | --budgets | --seeds | --peer | --python | --thermocline | --correlation)
      (($# > 1)) || usage
      declare "${1#--}=$2"
      shift 2
      ;;
    *) usage ;;
  esac
done
[[ -x $thermocline ]] || { echo "gpu_arms.sh: no program $thermocline; --thermocline names it" >&2; exit 2; }
[[ -z $peer || -f $peer ]] || { echo "gpu_arms.sh: no peer $peer" >&2; exit 2; }
[[ ! -e $out ]] || { echo "gpu_arms.sh: $out exists" >&2; exit 2; }
mkdir -p "$out"

has_gpu=false
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then has_gpu=true; fi
{
  echo "$(nproc) CPUs: $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1); load $(cut -d ' ' -f 1-3 /proc/loadavg)"
  if $has_gpu; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; else echo "no GPU"; fi
  "$thermocline" --version
} | tee "$out/machine.txt"

if [[ -z $data ]]; then
  data=$out/log
  "$thermocline" generate "$data" --rows "$rows" --correlation "$correlation" \
    "$([[ $rows -lt 100000 ]] && echo --shrink=1000 || echo --shrink=1)"
fi

failed=0
for batch in ${batches//,/ }; do
  echo "== batch $batch"
  python3 "$root/tests/benchmarks/arms.py" "$root/deploy/jobs/kaggle_npy.textproto" --thermocline "$thermocline" \
    --data "$data" --budgets "$budgets" --seeds "$seeds" --evaluations "$evaluations" \
    --set "train.batch_size=$batch" "${extra[@]}" --out "$out/batch-$batch" || failed=1
  [[ -n $peer ]] || continue
  modes=(cpu)
  if $has_gpu; then modes=(cpu hybrid gpu); fi
  for mode in "${modes[@]}"; do
    # It reads the whole training file once, as the arms do, and prints its speed, AUC and log loss.
    "$python" "$peer" "$data" --mode "$mode" --batch "$batch" | tee -a "$out/peers.txt" || failed=1
  done
  if ! $has_gpu; then echo "PyTorch, hybrid and gpu: this machine has no GPU" | tee -a "$out/peers.txt"; fi
done
[[ -n $peer ]] || echo "no peer: --peer names one" | tee "$out/peers.txt"
exit $failed
