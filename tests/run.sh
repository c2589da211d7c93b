#!/usr/bin/env bash
# Installs what is missing, then builds and runs every test. Ends with a table of the stages and the line
# "N passed, N failed"; the exit code is not 0 if any failed.
#
#   tests/run.sh [STAGE...]   default: all of: unit pytorch cluster lint format clang asan fuzz tsan
#   tests/run.sh --gpu        the tests that need a GPU; fails where there is none
#
# unit    every test, as the programs are built for users
# pytorch the tests of the Python package again, with the interpreter of $THERMOCLINE_TEST_PYTHON or with the newest
#         PyTorch, where deploy/setup.sh --newest-pytorch has fetched it. Skipped, and says so, without
# cluster jobs on Slurm and over ssh on hosts that are network namespaces of this machine, with faults; and the
#         package of deploy/package.sh. Skipped, and says so, without root, namespaces or Slurm.
#         THERMOCLINE_CLUSTER_ROUNDS (default 4), THERMOCLINE_TEST_SEED
# lint    which folder may include which, length of files, how comments begin, what pages name
# format  clang-format
# clang   compiles everything with clang, thread-safety analysis as errors, for asan and fuzz
# asan    unit tests under the address and undefined-behaviour sanitizers
# fuzz    bytes from outside, made up by libFuzzer from tests/fuzz/corpus: THERMOCLINE_FUZZ_SECONDS
#         (default 20; more finds more) of a processor for each target, all at a time
# tsan    unit tests under the thread sanitizer
# --gpu   the GPU's kernels against the CPU's and whole training runs on the GPU, also under the tools of
#         compute-sanitizer where that is installed (tests/gpu_bundle_run.sh); elsewhere these tests are skipped
#
# THERMOCLINE_BAZEL_FLAGS adds flags to every build, such as --jobs=2 or --disk_cache=DIR.
set -uo pipefail
cd "$(dirname "$0")/.."
stages=("$@")
((${#stages[@]})) || stages=(unit pytorch cluster lint format clang asan fuzz tsan)

passed=0
failed=0
summary=()  # A line for each stage.
logs=$(mktemp -d -t thermocline-tests-XXXXXX)
trap 'rm -rf "$logs"' EXIT

test_python=${THERMOCLINE_TEST_PYTHON:-}
unset THERMOCLINE_TEST_PYTHON  # For the stage pytorch alone.

read -r -a extra_flags <<<"${THERMOCLINE_BAZEL_FLAGS:-}"
# The build's own server goes away soon after. The files of a library or a test are one compile unit: tests/rules.bzl.
bazel_run() {  # VERB FLAGS...
  local verb=$1
  shift
  bazel --max_idle_secs=15 "$verb" --define=joined=1 "${extra_flags[@]}" "$@"
}

# Counts what a stage found and prints it.
end_stage() {  # STAGE PASSED FAILED [NOTE]
  local seconds=$((SECONDS - stage_start))
  stage_start=$SECONDS
  passed=$((passed + $2))
  failed=$((failed + $3))
  echo "== $1: $2 passed, $3 failed in $seconds s${4:+; $4}"
  summary+=("$(printf '%-8s%6d passed%6d failed%8d s%s' "$1" "$2" "$3" "$seconds" "${4:+   $4}")")
}

# Runs test targets and counts each. Everything after the stage's name goes to Bazel.
test_stage() {
  local stage=$1 log=$logs/$1
  shift
  echo "== $stage"
  bazel_run test --keep_going --build_tests_only --test_output=errors "$@" >"$log" 2>&1
  local code=$? ok bad
  grep -v '^INFO: \(Analyzed\|Found\|Elapsed\|[0-9]* process\)' "$log"
  ok=$(grep -cE '^//\S+ +(\(cached\) )?(PASSED|FLAKY)' "$log")
  bad=$(grep -cE '^//\S+ +(\(cached\) )?(FAILED|TIMEOUT|NO STATUS|INCOMPLETE)' "$log")
  # A build that fails before any target is known, or has no tests at all, is one failure.
  if ((code != 0 && bad == 0)) || ((ok + bad == 0)); then bad=1; fi
  end_stage "$stage" "$ok" "$bad"
}

# Runs a command that is one check.
check_stage() {
  local stage=$1 log=$logs/$1
  shift
  echo "== $stage"
  if "$@" >"$log" 2>&1; then
    end_stage "$stage" 1 0
  else
    tail -n 100 "$log"
    end_stage "$stage" 0 1
  fi
}

# Runs every fuzzer, each one check. An input that crashes one is kept, and named.
fuzz_stage() {
  local log=$logs/fuzz name bad=0
  local finds=${TMPDIR:-/tmp}/thermocline-fuzz-finds
  local names=(history job manifest push_log rows_file wire) targets=()
  for name in "${names[@]}"; do targets+=("//tests/fuzz:${name}_fuzzer"); done
  # They share the processors, where there are fewer.
  local seconds=${THERMOCLINE_FUZZ_SECONDS:-20} processors
  processors=$(nproc)
  ((processors >= ${#names[@]})) || seconds=$((seconds * ${#names[@]} / processors))
  echo "== fuzz"
  if ! bazel_run build --config=asan "${targets[@]}" >"$log" 2>&1; then
    tail -n 100 "$log"
    end_stage fuzz 0 1
    return
  fi
  mkdir -p "$finds"
  local built
  built=$(bazel_run info --config=asan bazel-bin 2>/dev/null)
  # New inputs are added to the first folder, a copy: the corpus stays as it is.
  for name in "${names[@]}"; do
    mkdir "$logs/$name"
    echo "$name"
  done | xargs -P "${#names[@]}" -I{} sh -c "$built/tests/fuzz/{}_fuzzer $logs/{} tests/fuzz/corpus/{} \
    -max_total_time=$seconds -rss_limit_mb=2048 -timeout=30 -max_len=65536 \
    -artifact_prefix=$finds/{}- >$logs/{}.log 2>&1; echo \$? >$logs/{}.code"
  for name in "${names[@]}"; do
    if [[ $(cat "$logs/$name.code") == 0 ]]; then
      echo "$name: $(grep '^Done' "$logs/$name.log")"
    else
      bad=$((bad + 1))
      tail -n 60 "$logs/$name.log"
      echo "$name: FAILED; run $built/tests/fuzz/${name}_corpus_test on the input:" \
        "$(grep -o "Test unit written to .*" "$logs/$name.log" | sed 's/.*to //')"
    fi
  done
  end_stage fuzz $((${#names[@]} - bad)) "$bad"
}

# Runs jobs over several hosts, outside of Bazel: they need namespaces.
cluster_stage() {
  local log=$logs/cluster test ok bad passed_here=0 failed_here=0 why notes=
  echo "== cluster"
  if ! deploy/build.sh >"$log" 2>&1; then
    tail -n 100 "$log"
    end_stage cluster 0 1
    return
  fi
  for test in cluster_test package_test; do
    python3 tests/cluster/$test.py build | tee "$log"
    # A test that was killed says nothing at its end.
    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
      ok=${BASH_REMATCH[1]} bad=${BASH_REMATCH[2]}
    else
      ok=0 bad=1
    fi
    passed_here=$((passed_here + ok)) failed_here=$((failed_here + bad))
    why=$(sed -n 's/^skipped: //p' "$log")
    if [[ -n $why && $notes == *" SKIPPED: $why" ]]; then  # The same reason is said once.
      notes=${notes/ SKIPPED/, $test SKIPPED}
    elif [[ -n $why ]]; then
      notes+="${notes:+; }$test SKIPPED: $why"
    fi
  done
  end_stage cluster $passed_here $failed_here "$notes"
}

# Bazel's tests have no other PyTorch than Debian's, unless the environment names an interpreter.
pytorch_stage() {
  local fetched=${HOME:-/root}/.local/share/thermocline/pytorch
  if [[ -z $test_python && -e $fetched/is_whole ]]; then test_python=$fetched/bin/python; fi
  if [[ -n $test_python ]]; then
    test_stage pytorch --test_env=THERMOCLINE_TEST_PYTHON="$test_python" //deploy/python/tests/...
  else
    echo "== pytorch"
    end_stage pytorch 0 0 "SKIPPED: no newest PyTorch (deploy/setup.sh --newest-pytorch)"
  fi
}

# Builds what needs a GPU and runs it outside of Bazel, which would keep results of other machines.
gpu_stage() {
  local log=$logs/gpu ok bad
  local programs=({kernels/cuda/cuda_device,kernels/cuda/cuda_kernels,tests/training/gpu_training}_test)
  echo "== gpu"
  if ! bazel_run build "${programs[@]}" >"$log" 2>&1; then
    tail -n 100 "$log"
    end_stage gpu 0 1
    return
  fi
  tests/gpu_bundle_run.sh "${programs[@]/#/bazel-bin/}" | tee "$log"
  read -r ok _ bad _ < <(tail -n 1 "$log")
  end_stage gpu "$ok" "$bad"
}

# Only objects: programs that no sanitizer runs are not linked.
clang_build() {
  bazel_run build --config=asan --keep_going --output_groups=compilation_outputs //...
}

# Builds what tests of whole processes run, and then all, with these tests beside it: they wait more than they compute,
# so that there are jobs for the compilers of all processors and for three tests.
unit_stage() {
  local flags=("--jobs=$(($(nproc) + 3))")
  echo "== programs"
  THERMOCLINE_BAZEL_FLAGS="${extra_flags[*]} ${flags[*]}" deploy/build.sh 2>&1 | grep -v '^INFO: '
  test_stage unit "${flags[@]}" --local_test_jobs=3 //...
}

if ! deploy/setup.sh --tests; then
  echo "0 passed, 1 failed"
  exit 1
fi

# Links of an earlier build elsewhere would be taken for packages.
find . -maxdepth 1 -type l -name 'bazel-*' -delete

# Tests of whole processes and benchmarks run in the plain build only.
sanitized=--test_tag_filters=-process,-benchmark,-nosanitizer
# Nor is it news under a sanitizer that the tests of random failures find the faults planted for them and repeat a
# seed's trace, or what bash does.
no_news='*Planted*Test.*:*.FindsPlanted*:*.SameSeedSameTrace:ScriptTest.AProcessThatEndsWithASignal*'
# Of tests that do the same for every optimizer, those of the optimizers with the most state of a row and with one for
# the whole row are enough for the address sanitizer, and one is for the thread sanitizer.
asan_optimizers='Optimizers/*/sgd:Optimizers/*/adagrad'
tsan_optimizers='Optimizers/*/sgd:Optimizers/*/adam:Optimizers/*/row_wise_adagrad'
# The thread sanitizer is slow, and finds nothing where one thread runs: it leaves out these folders (a new one it
# takes) and, of the others, long tests of one thread.
one_thread=(
  -//common/{arrow,disk,job,math,wire}/... -//deploy/{checkpoints,cli,engines,inspect,job,plan}/...
  -//kernels/cuda/... -//server/checkpoint/... -//tests/fuzz/... -//worker/{model,plan}/...
  -//worker/data:criteo_sample_test -//worker/fae:criteo_calibration_test
)
one_thread_tests='*/CheckpointRecoveryTest.*:RowSourceTest.*:CacheRowsTest.RandomUse*:*RowsFormatsTest.EveryFlipped*'
one_thread_tests+=':VerifyCheckpointTest.EveryFlipped*:TextIndexTest.EveryPlace*:*/ModelTest.RandomBatches*'
one_thread_tests+=':EmbeddingTableTest.TakesTheMemoryThatIsPlanned:TableSpillTest.RowsThatStepsUseAgainStayInMemory'
one_thread_tests+=':GemmTest.EveryElementIsOneChain:CacheDirectoryTest.DoesAsHashMapsDo'
one_thread_tests+=':SharedCacheTest.RanksReadTheRowsOfOneMap:Cases/AdmissionTest.*:HistoryTest.ACrash*'
one_thread_tests+=':Stores/SpillTest.*StepByStep*:CpuMlpTest.AgreesWithPlainLoops*:ClickLog.Correlation*'
stage_start=$SECONDS
for stage in "${stages[@]}"; do
  case $stage in
    unit) unit_stage ;;
    pytorch) pytorch_stage ;;
    cluster) cluster_stage ;;
    lint) check_stage lint tests/lint.sh ;;
    format) check_stage format tests/format.sh --check ;;
    clang) check_stage clang clang_build ;;
    asan)
      test_stage asan --config=asan "$sanitized" --test_env=GTEST_FILTER="-$no_news:$asan_optimizers" //...
      ;;
    fuzz) fuzz_stage ;;
    tsan)
      test_stage tsan --config=tsan "$sanitized,-notsan" \
        --test_env=GTEST_FILTER="-$no_news:$one_thread_tests:$tsan_optimizers" \
        --test_env=TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" -- //... "${one_thread[@]}"
      ;;
    --gpu) gpu_stage ;;
    *)
      echo "unknown stage '$stage'" >&2
      failed=$((failed + 1))
      ;;
  esac
done

printf '%s\n' "" "${summary[@]}"
printf '%-8s%6d passed%6d failed%8d s\n\n' total "$passed" "$failed" "$SECONDS"
echo "$passed passed, $failed failed"
((failed == 0))
