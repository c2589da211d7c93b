#!/usr/bin/env bash
# Builds the programs that users run and copies them to a folder where no other build touches them.
#
#   deploy/build.sh [FOLDER]     default: build/ of this checkout
#
#   FOLDER/bin/      thermocline and the programs that it starts
#   FOLDER/python/   for PyTorch: the package thermocline with its library, examples, a loader of exported models
#
# The files of a library are one compile unit (tests/rules.bzl): from nothing this takes less than half of the time.
# tests/run.sh builds in the same way, so that each finds what the other has built. THERMOCLINE_BAZEL_FLAGS adds flags.
set -euo pipefail
(($# <= 1)) || { echo "usage: deploy/build.sh [FOLDER]" >&2; exit 2; }
folder=$(realpath -m "${1:-$(dirname "$0")/../build}")
cd "$(dirname "$0")/.."
read -r -a flags <<<"${THERMOCLINE_BAZEL_FLAGS:-}"
flags+=(--define=joined=1)
library=worker/api/libthermocline.so
programs=(deploy/thermocline server/thermocline-server worker/thermocline-{worker,pack,inspect,predict})

# The build's own server goes away soon after.
bazel --max_idle_secs=15 build "${flags[@]}" "${programs[@]}" "$library"
# The link bazel-bin leads to wherever the last build of any kind went.
built=$(bazel --max_idle_secs=15 info "${flags[@]}" bazel-bin 2>/dev/null)

mkdir -p "$folder"/{bin,python/{thermocline,examples}}
for program in "${programs[@]}"; do
  target=$folder/bin/$(basename "$program")
  # A job that runs keeps the file that it has started: `install` writes a new one.
  cmp -s "$built/$program" "$target" || install -m 755 "$built/$program" "$target"
done
install -m 644 deploy/python/*.py "$folder/python/"
install -m 644 deploy/python/thermocline/{*.py,py.typed} "$folder/python/thermocline/"
cmp -s "$built/$library" "$folder/python/thermocline/libthermocline.so" ||
  install -m 755 "$built/$library" "$folder/python/thermocline/"
find deploy/python/examples -maxdepth 1 -type f -exec install -m 644 -t "$folder/python/examples" {} +
