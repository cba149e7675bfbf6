#!/usr/bin/env bash
# All tests and checks; --help says more. Needs Go and git, nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p artifacts/test
go build -o artifacts/test/suite ./test/suite
exec artifacts/test/suite "$@"
