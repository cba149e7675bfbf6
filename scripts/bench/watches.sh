#!/usr/bin/env bash
# Publishing while many watch one coordinator, and memory of the coordinator.
# BENCH_WATCHES watches (10,000) over BENCH_CONNECTIONS (20), one in ten slow;
# BENCH_RATE changes a second (2,000).
source "$(dirname "$0")/lib.sh"
cluster
about
watches=${BENCH_WATCHES:-10000} connections=${BENCH_CONNECTIONS:-20} rate=${BENCH_RATE:-2000}
# memory WHEN: of the coordinator, and the processor time it has used.
memory() {
  awk '/^Vm(RSS|HWM)/ { printf "%s %d MB  ", $1, $2 / 1024 }' "/proc/${pid_of[coordinator-1]}/status"
  awk '{ printf "cpu %.1f s  ", ($14 + $15) / 100 }' "/proc/${pid_of[coordinator-1]}/stat"
  echo "$1"
}
run() {
  "$nokv" bench watches --coordinator-addr "$coordinator" --duration "${seconds}s" --warmup 2s --rate "$rate" "$@" | cut -c1-200
}
memory idle
echo "without watches:"
"$nokv" bench watches --coordinator-addr "$coordinator" --duration "${seconds}s" --rate "$rate" --watches 1 --connections 1 --slow 0 | cut -c1-200
memory behind
echo "$watches watches over $connections connections:"
run --watches "$watches" --connections "$connections"
memory behind
