#!/usr/bin/env bash
# clang-format over all of our C++: rewrites the files, or with --check says which are not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/sources.sh
if [[ ${1:-} == --check ]]; then
  sources | xargs clang-format --dry-run -Werror
else
  sources | xargs clang-format -i
fi
