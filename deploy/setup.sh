#!/usr/bin/env bash
# Installs the Debian packages that building and testing need and that are missing. Says first which.
# Needs root or sudo only if something is missing. Then fetches Arrow C++, which reads Parquet files and s3://, from
# PyPI (55 MB to download, 170 MB in ~/.local/share/thermocline). Where PyPI can't be reached it says so, and all the
# rest is built.
#
#   deploy/setup.sh [--tests] [--newest-pytorch] [--check]
#
# --tests           also what single tests need and are skipped without: PyTorch with a fast BLAS, and what runs
#                   notebooks (150 MB to download, 600 MB on disk), Chromium, in which reports are looked at (110 MB to
#                   download, 350 MB on disk), Slurm, sshd and busybox (80 MB on disk), and from PyPI a small S3 server
#                   (moto, 60 MB)
# --newest-pytorch  the newest PyTorch of PyPI, in a virtual environment of its own: tests/run.sh then runs the tests of
#                   the Python package with it, too. PyPI has it with CUDA alone: 3 GB to download, 5.5 GB on disk
# --check           only says which packages are missing; exit code 1 if any is
set -euo pipefail

tests=false
newest_pytorch=false
check=false
for flag in "$@"; do
  case $flag in
    --tests) tests=true ;;
    --newest-pytorch) newest_pytorch=true ;;
    --check) check=true ;;
    *)
      echo "unknown flag '$flag'; usage: deploy/setup.sh [--tests] [--newest-pytorch] [--check]" >&2
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
  libabsl-dev libcli11-dev libcpp-httplib-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libdnnl-dev libisal-dev librocksdb-dev libssl-dev libzstd-dev nlohmann-json3-dev prometheus-cpp-dev rapidjson-dev
  zlib1g-dev
  # Tests and benchmarks.
  libgtest-dev libgmock-dev libbenchmark-dev libboost-context-dev libhiredis-dev redis-server openssl
  python3 python3-grpcio python3-protobuf python3-numpy python3-pip python3-venv
)
# Several hosts on one machine (tests/cluster, which is skipped without them).
cluster=()
if $tests; then
  # Without OpenBLAS, Debian's PyTorch multiplies matrices with a slow reference library.
  packages+=(python3-torch libopenblas0-pthread python3-nbclient python3-ipykernel chromium prometheus)
  cluster=(slurmctld slurmd slurm-client munge openssh-server openssh-client iproute2 busybox-static)
fi

missing_of() {  # PACKAGE...: prints those that are missing
  local package state
  for package in "$@"; do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $state == installed ]] || echo "$package"
  done
}
install_packages() {  # PACKAGE...
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
    apt-get install -y -qq --no-install-recommends "$@"
}

mapfile -t missing < <(missing_of "${packages[@]}")
if ((${#missing[@]} > 0)); then
  echo "missing packages: ${missing[*]}"
  if $check; then exit 1; fi
  install_packages "${missing[@]}"
fi
mapfile -t missing < <(missing_of "${cluster[@]}")
if ((${#missing[@]} > 0)); then
  echo "missing packages of tests/cluster: ${missing[*]}"
  if ! $check && ! (install_packages "${missing[@]}"); then
    echo "they could not be installed: the tests over several hosts are skipped" >&2
  fi
fi
if $check; then exit 0; fi

# PyPI may be slow, or out of reach: nothing waits for it for long.
from_pypi() {
  timeout 600 python3 -m pip --disable-pip-version-check "$1" --quiet --timeout 20 --retries 2 --only-binary=:all: "${@:2}"
}
home=${HOME:-/root}/.local/share/thermocline
requirements=$(dirname "${BASH_SOURCE[0]}")/../third_party/arrow/requirements.txt

# The wheel of that version and no other; unpacked, not installed: it is no part of any Python.
fetch_arrow() {
  local version folder=$home/arrow
  version=$(sed -n 's/^pyarrow==\([^ ]*\).*/\1/p' "$requirements")
  [[ -e $folder/pyarrow-$version.dist-info ]] && return
  echo "fetching Arrow C++ $version from PyPI (pyarrow's wheel)"
  mkdir -p "$home"
  local wheel
  wheel=$(mktemp -d -p "$home")
  if from_pypi download --no-deps --require-hashes --implementation=cp --python-version=3.11 \
    --platform=manylinux_2_28_x86_64 --dest="$wheel" -r "$requirements" &&
    python3 -m zipfile -e "$wheel"/pyarrow-*.whl "$wheel/arrow"; then
    rm -rf "$folder"
    mv "$wheel/arrow" "$folder"
    # A build server that runs already has looked for it, and would not again.
    (cd "$(dirname "$requirements")" && timeout 60 bazel shutdown >/dev/null 2>&1) || true
  else
    echo "Arrow C++ could not be fetched: what is built now refuses Parquet and s3:// (deploy/setup.sh tries again)" >&2
  fi
  rm -rf "$wheel"
}

# A virtual environment for tests; their own files say what they take from it.
fetch_test_tools() {
  local folder=$home/tests
  [[ -x $folder/bin/moto_server && -x $folder/bin/tensorboard ]] && return
  echo "fetching what tests take from PyPI: a small S3 server (moto), TensorBoard"
  if ! { python3 -m venv "$folder" && timeout 600 "$folder/bin/python" -m pip --disable-pip-version-check install \
    --quiet --timeout 20 --retries 2 -r "$(dirname "${BASH_SOURCE[0]}")/../tests/process/requirements.txt"; }; then
    rm -rf "$folder"
    echo "they could not be fetched: the tests of s3:// and of TensorBoard's files are skipped" >&2
  fi
}

# A virtual environment of its own, since it is large and has a NumPy of its own.
fetch_newest_pytorch() {
  local folder=$home/pytorch
  [[ -e $folder/is_whole ]] && return
  echo "fetching the newest PyTorch from PyPI, 3 GB"
  if python3 -m venv "$folder" && timeout 3600 "$folder/bin/python" -m pip --disable-pip-version-check install \
    --quiet --timeout 20 --retries 2 --only-binary=:all: torch numpy; then
    touch "$folder/is_whole"
  else
    rm -rf "$folder"
    echo "it could not be fetched: tests/run.sh runs the Python package's tests with Debian's alone" >&2
  fi
}

if [[ ${THERMOCLINE_ARROW_HOME:-} == "" ]]; then fetch_arrow; fi
if $tests; then fetch_test_tools; fi
if $newest_pytorch; then fetch_newest_pytorch; fi
