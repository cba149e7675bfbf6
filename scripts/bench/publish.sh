#!/usr/bin/env bash
# Publishing beside puts of etcd: same disk, same callers, same run, in turns.
source "$(dirname "$0")/lib.sh"
cluster
etcd_cluster
about
title
for callers in 1 64 1000; do
  for ((i = 1; i <= repeat; i++)); do
    bench publish --against "etcd=$etcd_addrs" --concurrency $callers >"$dir/etcd-$callers.$i.json"
    bench publish --concurrency $callers >"$dir/nokv-$callers.$i.json"
  done
  show etcd-$callers
  show nokv-$callers
  for ((i = 1; i <= repeat; i++)); do
    jq -s '.[1].ops_per_s / .[0].ops_per_s' "$dir/etcd-$callers.$i.json" "$dir/nokv-$callers.$i.json"
  done | sort -n | jq -s '"  nokv / etcd, median of pairs: \(.[length / 2 | floor] * 10 | round / 10)x"' -r
done
