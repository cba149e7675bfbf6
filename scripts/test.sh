#!/usr/bin/env bash
# All tests and checks; --help says more. Needs Go and git, nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./test/suite "$@"
