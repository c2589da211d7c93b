#!/bin/sh
# Runs one Python test with the system's interpreter, which has grpcio and protobuf.
exec /usr/bin/python3 "$(dirname "$0")/$1"
