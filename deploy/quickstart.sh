#!/usr/bin/env bash
# From nothing to a trained model: installs what is missing, builds, makes a click log, trains a DLRM on
# two parameter servers and one worker, evaluates it.
#
#   deploy/quickstart.sh [ROWS]     default: 500000 rows
set -euo pipefail
cd "$(dirname "$0")/.."
rows=${1:-500000}
if [[ ! $rows =~ ^[0-9]+$ ]]; then
  echo "usage: deploy/quickstart.sh [ROWS]" >&2
  exit 2
fi

deploy/setup.sh

echo "== build"
deploy/build.sh
thermocline=build/bin/thermocline

clicklog=$(mktemp -d -t thermocline-clicklog-XXXXXX)
trap 'rm -rf "$clicklog"' EXIT

echo "== generate a click log of $rows rows"
"$thermocline" generate "$clicklog" --rows "$rows"

echo "== train"
"$thermocline" train deploy/jobs/quickstart.textproto --data "$clicklog" --servers 2 --workers 1
echo "== the launcher is $thermocline; \"$thermocline help\" lists the other commands"
