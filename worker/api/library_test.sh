#!/usr/bin/env bash
# What libthermocline.so needs of a machine, and what it shows:   library_test.sh LIBRARY HEADER
set -euo pipefail
library=$1
header=$2
failed=0
fail() {
  echo "$library: $1"
  failed=1
}

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[[ $needed == libc.so.6 ]] || fail "needs $needed, and should need the C library alone"

symbols=$(objdump -T "$library")
newest=$(grep -oE 'GLIBC_[0-9.]+' <<<"$symbols" | sort -uV | tail -1)
[[ -n $newest ]] || fail "objdump -T shows no version of the C library"
[[ $(printf '%s\nGLIBC_2.17\n' "$newest" | sort -V | tail -1) == GLIBC_2.17 ]] ||
  fail "needs $newest: $(grep -F "$newest" <<<"$symbols")"
! grep -E 'GLIBCXX|CXXABI|GCC_' <<<"$symbols" || fail "needs a C++ library, or the compiler's"

# It shows the functions of its header; the other names are the linker's.
shown=$(awk '$2 == "g" && $4 != "*UND*" {print $NF}' <<<"$symbols" |
  grep -vxE '__bss_start|_edata|_end|_init|_fini' | sort)
declared=$(sed -nE 's/^TC_API .*\b(tc_[a-z]+)\(.*/\1/p' "$header" | sort)
[[ -n $declared && $shown == "$declared" ]] ||
  fail "shows other functions than $header declares: $(diff <(echo "$declared") <(echo "$shown"))"

# A script may be of the oldest C that has stdint.h, or of C++; the header needs nothing before it.
for language in "c -std=c99" "c++ -std=c++98" "c++ -std=c++17"; do
  # shellcheck disable=SC2086
  echo '#include "thermocline.h"' |
    "${CC:-cc}" -x $language -I "$(dirname "$header")" -Wall -Wextra -pedantic -Werror -fsyntax-only - ||
    fail "$header alone is no $language"
done
exit $failed
