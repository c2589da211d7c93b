#!/usr/bin/env bash
# Installs the Debian packages that building and testing need and that are missing. Says first which.
# Needs root or sudo only if something is missing.
#
#   deploy/setup.sh [--tests] [--check]
#
# --tests  also what single tests need and are skipped without: PyTorch (135 MB to download, 560 MB on disk)
# --check  only says what is missing; exit code 1 if anything is
set -euo pipefail

tests=false
check=false
for flag in "$@"; do
  case $flag in
    --tests) tests=true ;;
    --check) check=true ;;
    *)
      echo "unknown flag '$flag'; usage: deploy/setup.sh [--tests] [--check]" >&2
      exit 2
      ;;
  esac
done

# Everything is built for x86-64-v3, with AVX2 and FMA: elsewhere it would end with "Illegal instruction".
for feature in avx2 bmi1 bmi2 f16c fma movbe; do
  if ! grep -qw "$feature" /proc/cpuinfo; then
    echo "this machine's CPU has no $feature: Thermocline is built for x86-64-v3 (AVX2, FMA), and would not run" >&2
    exit 1
  fi
done

packages=(
  # The build: Bazel and its rules, compilers.
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  g++ clang clang-format libclang-rt-dev
  # Libraries.
  libabsl-dev libcli11-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libdnnl-dev librocksdb-dev libssl-dev libzstd-dev nlohmann-json3-dev zlib1g-dev
  # Tests and benchmarks.
  libgtest-dev libgmock-dev libbenchmark-dev libboost-context-dev libhiredis-dev redis-server openssl
  python3 python3-grpcio python3-protobuf python3-numpy
)
if $tests; then packages+=(python3-torch); fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

echo "missing packages: ${missing[*]}"
if $check; then exit 1; fi
as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || { echo "installing them needs root or sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing them with apt-get"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
# The packages' own services (redis-server) are not to start: a policy that says no, for this while.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod +x "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
