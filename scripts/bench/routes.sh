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
figure cache-1 route --mode cache --regions "$regions" --concurrency 1
