# Sourced by the checks: prints our C++ and CUDA files, one a line.
sources() {
  find common kernels server worker deploy tests \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -type f | sort
}
