#!/bin/bash
# main_test.sh SERVER: how the program starts and ends.
set -u
server=$1
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$dir"' EXIT

fail() {
  echo "FAILED: $*"
  cat "$dir"/*.log 2>/dev/null
  exit 1
}

# wait_for_file PATH PID: until the file is there, or the process has ended.
wait_for_file() {
  while [ ! -e "$1" ]; do
    kill -0 "$2" 2>/dev/null || fail "the server ended before it wrote $1"
    sleep 0.01
  done
}

# expect_exit CODE TEXT ARGS...: the server must end by itself, saying TEXT.
expect_exit() {
  local code=$1 text=$2
  shift 2
  "$server" "$@" 2>"$dir/exit.log"
  local got=$?
  [ $got = "$code" ] || fail "'$*' ended with $got, not $code"
  grep -q -- "$text" "$dir/exit.log" || fail "'$*' did not say '$text'"
}

# Serves on a free port, writes it whole, ends well on SIGTERM and on SIGINT.
for signal in TERM INT; do
  "$server" --port_file="$dir/port.$signal" 2>"$dir/$signal.log" &
  pid=$!
  wait_for_file "$dir/port.$signal" $pid
  grep -Eq '^127\.0\.0\.1:[0-9]+$' "$dir/port.$signal" || fail "port file: $(cat "$dir/port.$signal")"
  if [ $signal = TERM ]; then
    expect_exit 1 "Address already in use" --listen="$(cat "$dir/port.TERM")"
    # In our words alone; gRPC's on request.
    [ "$(wc -l <"$dir/exit.log")" = 1 ] || fail "not one line: $(cat "$dir/exit.log")"
    GRPC_VERBOSITY=ERROR expect_exit 1 "Address already in use" --listen="$(cat "$dir/port.TERM")"
    [ "$(wc -l <"$dir/exit.log")" -gt 1 ] || fail "no line of gRPC: $(cat "$dir/exit.log")"
  fi
  kill -$signal $pid
  wait $pid
  code=$?
  [ $code = 0 ] || fail "SIG$signal: ended with $code"
done

expect_exit 2 "is not on loopback" --listen=0.0.0.0:0
expect_exit 2 "host:port" --listen=nonsense
expect_exit 2 "no such" --tls_certificate="$dir/no such" --tls_private_key=k --tls_ca=a
echo "-----BEGIN CERTIFICATE-----" >"$dir/certificate.pem"
expect_exit 2 "no private key is named" --tls_certificate="$dir/certificate.pem"
expect_exit 2 "apply_threads" --apply_threads=0
"$server" --help >"$dir/help.log" || fail "--help ended with $?"
grep -q -- "--listen" "$dir/help.log" || fail "--help did not list the flags"
expect_exit 2 "unknown flag --aply_threads" --aply_threads=1
expect_exit 2 "--apply_threads is 'many'" --apply_threads=many
expect_exit 2 "--port_file needs a value" --port_file
expect_exit 2 "max_message_bytes" --max_message_bytes=5
expect_exit 2 "--max_pending_bytes is 5; it must be in" --max_pending_bytes=5
expect_exit 2 "--max_held_pulls is 0; it must be in" --max_held_pulls=0
expect_exit 1 "port file" --port_file="$dir/no/such/folder/port"

# As many open files as the system allows.
(ulimit -Sn 100 && exec "$server" --port_file="$dir/port.files" 2>"$dir/files.log") &
pid=$!
wait_for_file "$dir/port.files" $pid
read -r soft hard < <(awk '/^Max open files/ { print $4, $5 }' /proc/$pid/limits)
kill $pid
wait $pid
[ "$soft" = "$hard" ] || fail "open files: $soft, and $hard were allowed"

# Beyond loopback where it is asked for.
"$server" --listen=0.0.0.0:0 --insecure --port_file="$dir/port.open" 2>"$dir/open.log" &
pid=$!
wait_for_file "$dir/port.open" $pid
kill $pid
wait $pid || fail "--insecure: ended badly"

echo PASSED
