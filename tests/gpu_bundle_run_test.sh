#!/usr/bin/env bash
# Which programs gpu_bundle_run.sh runs and under which tools, and how it ends: with stand-ins for the programs
# and for compute-sanitizer, which need no GPU.
#
#   tests/gpu_bundle_run_test.sh [SCRIPT]
set -uo pipefail
script=$(realpath "${1:-$(dirname "$0")/gpu_bundle_run.sh}")
folder=$(mktemp -d -t thermocline-gpu-run-XXXXXX)
trap 'rm -rf "$folder"' EXIT
export CUDA_HOME=$folder/no_toolkit
failed=0

make_program() {  # PATH EXIT_CODE
  mkdir -p "$(dirname "$1")"
  printf '#!/bin/sh\necho "required: $THERMOCLINE_REQUIRE_GPU"\nexit %s\n' "$2" >"$1"
  chmod +x "$1"
}
expect() {  # WHAT TEXT OUTPUT: a line of OUTPUT begins with TEXT
  if ! grep -q "^$2" <<<"$3"; then
    echo "$1: no line begins with '$2' in:"
    echo "$3"
    failed=1
  fi
}

for name in cuda_device_test cuda_kernels_test gpu_training_test; do make_program "$folder/bundle/$name" 0; done
without=$("$script" "$folder/bundle") || { echo "it failed: $without"; failed=1; }
expect "without the tool" "cuda_kernels_test, synccheck: not run" "$without"
expect "without the tool" "3 passed, 0 failed" "$without"

make_program "$folder/bundle/compute-sanitizer/compute-sanitizer" 0
with=$("$script" "$folder/bundle") || { echo "it failed: $with"; failed=1; }
for tool in memcheck racecheck initcheck synccheck; do
  expect "with the tool" "cuda_kernels_test, $tool: passed" "$with"
done
expect "with the tool" "gpu_training_test: passed" "$with"
expect "with the tool" "gpu_training_test, memcheck: passed" "$with"
expect "with the tool" "9 passed, 0 failed" "$with"

# Programs fail where there is no GPU, and so does the script.
make_program "$folder/bundle/gpu_training_test" 1
if bad=$("$script" "$folder/bundle"); then
  echo "it passed: $bad"
  failed=1
fi
expect "a failure" "gpu_training_test: FAILED" "$bad"
expect "a failure" "required: 1" "$bad"
expect "a failure" "8 passed, 1 failed" "$bad"
exit $failed
