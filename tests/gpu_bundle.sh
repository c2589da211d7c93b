#!/usr/bin/env bash
# Packs the GPU tests, the benchmark of the kernels, the programs and the script that compares training with
# and without a cache, with the libraries they need and this machine's compute-sanitizer, if it has one, for a
# machine that has an NVIDIA driver and a CUDA toolkit (for cuBLASLt), and glibc as new as this machine's, but no
# Bazel.
#
#   tests/gpu_bundle.sh OUT.tar.gz
#
# There: tar xzf OUT.tar.gz && cd thermocline_gpu && ./gpu_bundle_run.sh
#        export LD_LIBRARY_PATH=$PWD/lib
#        python3 compare_cache.py DATA --thermocline ./thermocline --job kaggle_npy.textproto -- --set device=CUDA
set -euo pipefail
(($# == 1)) || { echo "usage: tests/gpu_bundle.sh OUT.tar.gz" >&2; exit 2; }
out=$(realpath "$1")
cd "$(dirname "$0")/.."
read -r -a flags <<<"${THERMOCLINE_BAZEL_FLAGS:-}"
programs=({kernels/cuda/cuda_device,kernels/cuda/cuda_kernels,tests/training/gpu_training}_test
  kernels/kernels_benchmark deploy/thermocline server/thermocline-server worker/thermocline-worker)
bazel build "${flags[@]}" "${programs[@]}"
# Without a toolkit the tests could be packed, but would find no GPU anywhere.
if [[ -z $(find -L bazel-bin/kernels/cuda -name "*.cu.pic.o" -print -quit) ]]; then
  echo "no CUDA toolkit on this machine: nothing of this would run on a GPU" >&2
  exit 1
fi

folder=$(mktemp -d -t thermocline-bundle-XXXXXX)
trap 'rm -rf "$folder"' EXIT
bundle=$folder/thermocline_gpu
mkdir -p "$bundle/lib"
for program in "${programs[@]}"; do
  cp "bazel-bin/$program" "$bundle/"
  # The C library is not among them: it must fit the other machine's driver.
  ldd "bazel-bin/$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
    grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | xargs -I{} cp -Lu {} "$bundle/lib/"
done
sanitizer=${CUDA_HOME:-/usr/local/cuda}/compute-sanitizer
[[ ! -d $sanitizer ]] || cp -rL "$sanitizer" "$bundle/"
cp tests/gpu_bundle_run.sh tests/benchmarks/{compare_cache,train_run}.py deploy/jobs/kaggle_npy.textproto "$bundle/"
tar -C "$folder" -czf "$out" thermocline_gpu
echo "$out: $(du -h "$out" | cut -f1)"
