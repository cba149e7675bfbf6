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
trap 'rm -f "$report"' EXIT
NOKV_TEST_REPORT=$report go test -timeout 20m ./... "$@"
status=$?
if [ -s "$report" ]; then
  echo
  echo "what the long tests did:"
  sort "$report" | sed 's/^/  /'
fi
exit $status
