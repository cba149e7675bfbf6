#!/usr/bin/env bash
# Lookups: one a call beside a bare gRPC echo, batches, strong reads, the cache.
source "$(dirname "$0")/lib.sh"
regions=${BENCH_REGIONS:-10000}
cluster
about
"$nokv" bench route --regions "$regions" --coordinator-addr $coordinator --duration 1s >/dev/null
title
for callers in 1 64 256; do
  # Side by side: each pair meets the same neighbours on the machine.
  for ((i = 1; i <= repeat; i++)); do
    bench route --against echo --concurrency $callers >"$dir/echo-$callers.$i.json"
    bench route --regions "$regions" --concurrency $callers >"$dir/route-$callers.$i.json"
  done
  show echo-$callers
  show route-$callers
  for ((i = 1; i <= repeat; i++)); do
    jq -s '.[1].ops_per_s / .[0].ops_per_s' "$dir/echo-$callers.$i.json" "$dir/route-$callers.$i.json"
  done | sort -n | jq -s '"  route / echo, median of pairs: \(.[length / 2 | floor] * 1000 | round / 10)%"' -r
done
figure bounded-64 route --mode bounded --regions "$regions" --concurrency 64
figure batch128-16 route --mode batch --batch 128 --regions "$regions" --concurrency 16
figure batch128-64 route --mode batch --batch 128 --regions "$regions" --concurrency 64
figure strong-256 route --mode strong --regions "$regions" --concurrency 256
figure cache-1 route --mode cache --regions "$regions" --concurrency 1
