#!/usr/bin/env bash
# All tests: house rules, generated code, linters, units, simulation, real
# processes. Prints what the long ones did. Needs Go and git, nothing else.
# Arguments go to go test.
set -uo pipefail
cd "$(dirname "$0")/.."
# Compilers and simulations make garbage; collecting it seldom saves a fifth of
# the time.
export GOGC=${GOGC:-400}
report=$(mktemp)
output=$(mktemp)
trap 'rm -f "$report" "$output"' EXIT
NOKV_TEST_REPORT=$report go test -timeout 20m ./... "$@" 2>&1 | tee "$output"
status=${PIPESTATUS[0]}
if [ -s "$report" ]; then
  echo
  echo "what the long tests did:"
  sort "$report" | sed 's/^/  /'
fi
if [ "$status" != 0 ]; then
  echo
  echo "what failed, without the logs of processes:"
  grep -E '^ *--- FAIL|^ +[a-z0-9_]+\.go:[0-9]+: |^panic: |^FAIL|DATA RACE' "$output" | cut -c1-600 | tail -80 | sed 's/^/  /'
fi
exit "$status"
