#!/usr/bin/env bash
# Packs the programs with the libraries that they need, for machines that have none of them: no Debian, no root. Beside
# it a wheel of the Python package, thermocline-VERSION-py3-none-linux_x86_64.whl, for `pip install`.
#
#   deploy/package.sh [OUT.tar.gz]     default: thermocline-VERSION-x86_64.tar.gz
#
# There: tar xzf OUT.tar.gz && thermocline-VERSION/bin/thermocline help
#
#   bin/        a wrapper for each program: chooses the C library, and starts the program with the libraries here
#   programs/   the programs
#   lib/        their libraries; lib/libc/ the C library, for machines whose own is older or missing. A link of each
#               program's name leads to the loader, so that `top` shows the program
#   jobs/       examples of job files
#   monitoring/ alert rules for Prometheus, a dashboard for Grafana
#   python/     for PyTorch: the package thermocline as in the wheel, examples, a loader of exported models
#
# The machine needs a Linux kernel of 5.x or newer and an x86-64 CPU with AVX2. THERMOCLINE_BAZEL_FLAGS adds flags to
# the build; THERMOCLINE_LIBC=bundled, for the wrappers, takes the C library of the package in any case.
set -euo pipefail
(($# <= 1)) || { echo "usage: deploy/package.sh [OUT.tar.gz]" >&2; exit 2; }
out=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
built=${THERMOCLINE_PACKAGE_BUILT:-}  # For tests: a folder that deploy/build.sh has filled.
if [[ -z $built ]]; then
  built=build
  deploy/build.sh
fi
version=$(sed -n 's/.*THERMOCLINE_VERSION "\(.*\)".*/\1/p' common/version/version.h)
out=${out:-$PWD/thermocline-$version-x86_64.tar.gz}

folder=$(mktemp -d -t thermocline-package-XXXXXX)
trap 'rm -rf "$folder"' EXIT
package=$folder/thermocline-$version
mkdir -p "$package"/{bin,programs,lib/libc,lib/host,jobs,python}

# What must fit the kernel's loader, and each other.
libc='^(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libnss_[a-z]*)\.so\.'
for program in "$built"/bin/*; do
  install -m 755 "$program" "$package/programs/"
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\/.*ld-linux/ {print $1}'
done | sort -u >"$folder/libraries"
while read -r library; do
  name=$(basename "$library")
  if [[ $name =~ $libc ]]; then target=$package/lib/libc; else target=$package/lib; fi
  cp -L "$library" "$target/$name"
  chmod 755 "$target/$name"
done <"$folder/libraries"
strip --strip-unneeded "$package"/programs/* 2>/dev/null || true

for program in "$built"/bin/*; do
  name=$(basename "$program")
  ln -s /lib64/ld-linux-x86-64.so.2 "$package/lib/host/$name"
  ln -s ld-linux-x86-64.so.2 "$package/lib/libc/$name"
  cat >"$package/bin/$name" <<WRAPPER
#!/bin/sh
# Starts $name of Thermocline $version
self=\$(readlink -f "\$0")
package=\${self%/bin/*}
program=\$package/programs/$name
loader=\$package/lib/host/$name
libraries=\$package/lib
# This machine's C library, unless it is too old: then the package's.
if [ "\${THERMOCLINE_LIBC-}" = bundled ] || ! [ -x "\$loader" ] ||
  ! "\$loader" --library-path "\$libraries" --list "\$program" >/dev/null 2>&1; then
  loader=\$package/lib/libc/$name
  libraries=\$package/lib/libc:\$libraries
fi
THERMOCLINE_PROGRAM=\$self exec "\$loader" --library-path "\$libraries" "\$program" "\$@"
WRAPPER
  chmod 755 "$package/bin/$name"
done
cp deploy/jobs/*.textproto "$package/jobs/"
cp -r "$built"/python/{*.py,thermocline,examples} "$package/python/"
find "$package/python" -name __pycache__ -exec rm -rf {} +
strip --strip-unneeded "$package/python/thermocline/libthermocline.so"
wheel=$(python3 deploy/wheel.py "$package/python/thermocline" "$version" "$(dirname "$out")")
cp -r README.md CHANGELOG.md CONTRIBUTING.md docs deploy/monitoring "$package/"
tar -C "$folder" --owner=0 --group=0 -czf "$out" "thermocline-$version"
echo "$out: $(du -h "$out" | cut -f1)"
echo "$wheel: $(du -h "$wheel" | cut -f1)"
