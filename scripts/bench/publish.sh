#!/usr/bin/env bash
# Publishing; beside puts of etcd, in turns, when BENCH_ETCD says where one runs.
source "$(dirname "$0")/lib.sh"
cluster
about
title
for callers in 1 64 1000; do
  pair publish-$callers "${etcd:+etcd=$etcd}" publish --concurrency $callers
done
