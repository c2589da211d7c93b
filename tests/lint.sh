#!/usr/bin/env bash
# What the compiler doesn't check: which folder may include which, how long files are, include
# guards, how comments begin.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/sources.sh
errors=0

# FOLDER PATTERN [EXCEPT]: no file below FOLDER, but for the folder EXCEPT, may include files that match PATTERN,
# except those that tests share, which Bazel allows only tests to use (testonly).
forbid() {
  local found
  found=$(sources | grep "^$1/" | grep -v "^${3:-none}/" | xargs -r grep -nE "^#include [<\"]($2)" |
    grep -v '"tests/testing/' || true)
  [[ -z $found ]] && return
  echo "$found"
  echo "$1/ must not include $2"
  errors=$((errors + 1))
}
forbid common 'kernels/|server/|worker/|deploy/|tests/'
forbid kernels 'proto/|grpc|google/protobuf|rocksdb/|server/|worker/|deploy/|tests/'
forbid server 'kernels/|worker/|deploy/|tests/'
# A worker has a server in its process where the job has no other: worker/embedded, for the program alone.
forbid worker 'server/|deploy/|tests/|rocksdb/' worker/embedded
forbid worker/embedded 'server/(checkpoint|storage|tables)/|deploy/|tests/|rocksdb/'
forbid deploy 'kernels/|server/|worker/|tests/'

# The job machine decides; runners carry out. (Its tests have a simulated disk.)
forbid deploy/job 'grpc|(thread|mutex|atomic|condition_variable|chrono|fstream|filesystem|iostream)>|unistd|fcntl|sys/|poll\.h|signal\.h|absl/synchronization|absl/time/clock|common/disk/|common/net/|common/base/(process\.h|timing)|deploy/(checkpoints|runner)/'

# A file is one story. Beyond these lengths there are two in it.
while read -r file; do
  lines=$(wc -l <"$file")
  case $file in
    *_test.cc | tests/*) limit=800 ;;
    *.h) limit=250 ;;
    *) limit=800 ;;
  esac
  if ((lines > limit)); then
    echo "$file has $lines lines; at most $limit"
    errors=$((errors + 1))
  fi
  # common/base/ids.h is guarded by THERMOCLINE_COMMON_IDS_H_.
  if [[ $file == *.h ]]; then
    guard=THERMOCLINE_$(tr 'a-z/.-' 'A-Z___' <<<"$file")_
    if ! grep -q "^#ifndef $guard\$" "$file"; then
      echo "$file: the include guard should be $guard"
      errors=$((errors + 1))
    fi
  fi
done < <(sources)

# Pages name what is there: a link leads to a file and its heading, a path to a file, a label to a target of Bazel's.
pages() { git ls-files --cached --others --exclude-standard -- '*.md'; }
# GitHub's anchor of each heading of a page: lower case, hyphens for spaces, no other punctuation.
anchors() {
  awk '/^```/ { code = !code } !code && /^#/' "$1" | sed -E 's/^#+ //' |
    tr '[:upper:] ' '[:lower:]-' | tr -cd 'a-z0-9_\n-'
}
check_pages() {
  local page found path target
  local folders='(common|deploy|docs|kernels|proto|server|tests|third_party|worker)'
  missing() {
    echo "$page: there is no $1"
    errors=$((errors + 1))
  }
  while read -r page; do
    # A row of a table has to be one line.
    if LC_ALL=C.UTF-8 grep -nE '^[^|].{120}' "$page"; then
      echo "$page: lines of more than 120 characters"
      errors=$((errors + 1))
    fi
    while read -r found; do
      path=${found%%#*}
      path=${path:+$(dirname "$page")/$path}
      path=${path:-$page}
      if [[ ! -e $path ]]; then
        missing "file for the link ($found)"
      elif [[ $found == *#* ]] && ! grep -qxF -- "${found#*#}" <(anchors "$path"); then
        missing "heading for the link ($found)"
      fi
    done < <(grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//' | grep -v '://' | sort -u)
    while read -r found; do
      [[ -e $found ]] || missing "$found"
    done < <(grep -oE "(^|[^A-Za-z0-9_./-])$folders(/[a-z0-9_]+)+\.[a-z_]+" "$page" |
      sed -E 's/^[^a-z]//' | sort -u)
    while read -r found; do
      path=${found#//}
      target=${path#*:}
      path=${path%:*}/BUILD.bazel
      [[ -e $path ]] && { [[ $target == all ]] || grep -qF "\"$target\"" "$path"; } || missing "$found"
    done < <(grep -oE '//[a-z0-9_/]+:[a-z0-9_]+' "$page" | sort -u)
  done < <(pages)
}
check_pages

# A comment is a sentence, or says what a thing is. One that begins with "Of", "That", "Whose" or "Those" ("Of the step
# under way") needs the name beside it as its grammar. A comment begins after code, or where the line before has none in
# the same column.
check_comments() {
  local found
  found=$({ sources; find proto tests deploy -name '*.proto' -o -name '*.py' | sort; } | xargs awk '
    FNR == 1 {
      column = 0  # Where the comment is that this line may continue; 0: there is none.
      mark = FILENAME ~ /\.py$/ ? "(#|\"\"\")" : "//+"
    }
    {
      begins = 0
      if (match($0, "^ *" mark " ?")) {
        text = substr($0, RLENGTH + 1)
        match($0, "[^ ]")
        begins = RSTART != column
        column = text == "" ? 0 : RSTART
      } else if (match($0, " " mark " .*$")) {
        column = RSTART + 1
        text = substr($0, column)
        sub("^" mark " ", "", text)
        begins = 1
      } else {
        column = 0
      }
      if (begins && text ~ /^(Of|That|Whose|Those)([^A-Za-z0-9_]|$)/)
        print FILENAME ":" FNR ": a comment begins with \"" text "\": make it a whole sentence"
    }')
  [[ -z $found ]] && return
  echo "$found"
  errors=$((errors + $(wc -l <<<"$found")))
}
check_comments

# Two types of one name in one namespace break whatever is linked with both: the linker keeps one of their constructors,
# without a word. Those of unnamed namespaces and of tests, each in its own, are out of it.
check_types() {
  local found
  found=$(sources | grep -v '_test\.cc$' | xargs awk '
    FNR == 1 { depth = 0 }
    /^(inline )?namespace.*\{$/ { spaces[++depth] = $0 }
    /^\}  \/\/ namespace/ { --depth }
    /^(class|struct|enum|enum class) .*\{$/ {
      name = ""
      for (i = 1; i <= depth; ++i) name = name spaces[i]
      if (name ~ /namespace \{/ || $0 ~ /^[^:{]*::/) next
      match($0, /^(enum )?(class|struct|enum) [^:{]*/)
      type = substr($0, RSTART, RLENGTH)
      sub(/ final *$/, "", type)
      sub(/ +$/, "", type)
      sub(/.* /, "", type)
      if ((name, type) in places) print FILENAME ":" FNR ": " type " is in " places[name, type] ", too"
      places[name, type] = FILENAME
    }')
  [[ -z $found ]] && return
  echo "$found"
  errors=$((errors + $(wc -l <<<"$found")))
}
check_types

# A folder that .bazelrc or tests/run.sh names is there: flags for one that was renamed would be lost without a word.
while read -r found; do
  [[ -d $found ]] && continue
  echo ".bazelrc or tests/run.sh: there is no $found"
  errors=$((errors + 1))
done < <(grep -hoE '[a-z]+/[({][a-z_|,]+[)}]' .bazelrc tests/run.sh | tr '({|,' '    ' | tr -d ')}' |
  while read -r folder names; do printf "$folder%s\n" $names; done)

# docs/protocol.md names the tests that prove its rules.
tests_of_pages() {
  tr -s '\n ' ' ' <docs/protocol.md |
    grep -oE '`([A-Z][A-Za-z0-9]+\.[A-Z][A-Za-z0-9]+|[a-z_0-9]+_test\.py: [a-z_0-9]+)`' | tr -d '`' |
    grep -vxE 'Suite\.Name|x_test\.py: name'
}
tests_there_are() {
  git grep -hoE '^TEST(_F|_P)?\([A-Za-z0-9]+, [A-Za-z0-9]+' -- '*.cc' | sed -E 's/^TEST(_F|_P)?\(//; s/, /./'
  git grep -oE 'def test_[a-z_0-9]+' -- 'tests/process/*.py' | sed -E 's/.*\/([a-z_0-9]+\.py):def test_/\1: /'
}
while read -r found; do
  echo "docs/protocol.md: there is no test $found"
  errors=$((errors + 1))
done < <(LC_ALL=C comm -23 <(tests_of_pages | LC_ALL=C sort -u) <(tests_there_are | LC_ALL=C sort -u))

if ((errors > 0)); then
  echo "$errors errors"
  exit 1
fi
