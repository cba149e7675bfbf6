#!/usr/bin/env bash
# Timestamps and ids: how many, and how long one takes; beside PD's, in turns, when
# BENCH_PD says where one runs.
source "$(dirname "$0")/lib.sh"
cluster
about
title
other=${pd:+pd=$pd}
pair tso-1 "$other" tso --concurrency 1
pair tso-64 "$other" tso --concurrency 64
pair tso-1000 "$other" tso --concurrency 1000
figure tso-1000x10 tso --concurrency 1000 --batch 10
figure tso-64x1000 tso --concurrency 64 --batch 1000
pair id-1 "$other" id --concurrency 1
pair id-64 "$other" id --concurrency 64
pair id-1000 "$other" id --concurrency 1000
