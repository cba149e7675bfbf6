#!/usr/bin/env bash
# Lookups: one a call beside a bare gRPC echo, batches, strong reads (beside
# linearizable gets of etcd when BENCH_ETCD says where one runs), the cache.
source "$(dirname "$0")/lib.sh"
regions=${BENCH_REGIONS:-10000}
cluster
about
"$nokv" bench route --regions "$regions" --coordinator-addr $coordinator --duration 1s >/dev/null
title
# Side by side: each pair meets the same neighbours on the machine.
for callers in 1 64 256; do
  pair route-$callers echo route --regions "$regions" --concurrency $callers
done
figure bounded-64 route --mode bounded --regions "$regions" --concurrency 64
figure batch128-16 route --mode batch --batch 128 --regions "$regions" --concurrency 16
figure batch128-64 route --mode batch --batch 128 --regions "$regions" --concurrency 64
for callers in 64 256; do
  pair strong-$callers "${etcd:+etcd=$etcd}" route --mode strong --regions "$regions" --concurrency $callers
done
# A router, and one lookup that asks a coordinator, beside the two reads of a registry in
# Redis, when BENCH_REDIS says where one runs; and so for a second of processor time.
[ -n "${BENCH_REDIS:-}" ] || echo "no Redis (BENCH_REDIS): not compared"
pair router-1 "${BENCH_REDIS:+redis=$BENCH_REDIS}" route --mode router --regions "$regions" --concurrency 1
ratio router-1 redis ops_per_cpu_s "a second of processor"
pair first-1 "${BENCH_REDIS:+redis=$BENCH_REDIS}" route --regions "$regions" --concurrency 1
figure cache-1 route --mode cache --regions "$regions" --concurrency 1
