#!/bin/sh
# Runs one Python test with the system's interpreter, or with that of $THERMOCLINE_TEST_PYTHON.
exec "${THERMOCLINE_TEST_PYTHON:-/usr/bin/python3}" "$(dirname "$0")/$1"
