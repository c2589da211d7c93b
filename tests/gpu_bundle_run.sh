#!/usr/bin/env bash
# Runs test programs on a GPU, directly: on a machine that has a driver but no Bazel, or for tests/run.sh.
# Where compute-sanitizer is, the kernels' tests (*kernels_test) also run under each of its tools: memcheck,
# racecheck, initcheck, synccheck; and one whole training run (*training_test) under memcheck and initcheck.
#
#   tests/gpu_bundle_run.sh [DIR | PROGRAM...]   default: the folder that this script lies in
#
# Runs every *_test in DIR (tests/gpu_bundle.sh makes such a folder). A machine without a GPU is a failure.
# The last line is "N passed, N failed"; the exit code is not 0 if any failed.
set -uo pipefail
export THERMOCLINE_REQUIRE_GPU=1

folder=$(dirname "$0")
programs=()
if (($# == 1)) && [[ -d $1 ]]; then
  folder=$1
elif (($# > 0)); then
  programs=("$@")
fi
((${#programs[@]})) || programs=("$folder"/*_test)
[[ -d $folder/lib ]] && export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

passed=0
failed=0
log=$(mktemp -t thermocline-gpu-XXXXXX)
trap 'rm -f "$log"' EXIT

check() {  # WHAT COMMAND...
  local what=$1 start=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1))
    echo "$what: passed in $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    tail -n 60 "$log"
    echo "$what: FAILED in $((SECONDS - start)) s"
  fi
}

sanitizer=$(command -v compute-sanitizer || true)
for candidate in "$folder" "${CUDA_HOME:-/usr/local/cuda}"{/bin,}; do
  candidate+=/compute-sanitizer
  [[ -d $candidate ]] && candidate+=/compute-sanitizer
  [[ -z $sanitizer && -x $candidate ]] && sanitizer=$candidate
done

sanitize() {  # PROGRAM FILTER TOOL...
  local program=$1 filter=$2 name tool
  shift 2
  name=$(basename "$program")
  for tool in "$@"; do
    if [[ -z $sanitizer ]]; then
      echo "$name, $tool: not run, for compute-sanitizer is not on this machine"
      continue
    fi
    check "$name, $tool" "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" --gtest_filter="$filter"
  done
}

for program in "${programs[@]}"; do
  name=$(basename "$program")
  check "$name" "$program"
  case $name in
    *kernels_test)
      # Tests that are not about memory or races take long under them.
      sanitize "$program" '-*TooLargeAnAllocation*:*AnEventsWaitReportsErrors:*ACaptureOfAWait*:MlpTest.LowerPrecisions' \
        memcheck racecheck initcheck synccheck
      ;;
    *training_test)
      sanitize "$program" '*AnUncachedRunMayLagAStepBehind' memcheck initcheck
      ;;
  esac
done

echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
