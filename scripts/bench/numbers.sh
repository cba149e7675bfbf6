#!/usr/bin/env bash
# Timestamps and ids: how many, and how long one takes.
source "$(dirname "$0")/lib.sh"
cluster
about
title
figure tso-1 tso --concurrency 1
figure tso-64 tso --concurrency 64
figure tso-1000 tso --concurrency 1000
figure tso-1000x10 tso --concurrency 1000 --batch 10
figure tso-64x1000 tso --concurrency 64 --batch 1000
figure id-1 id --concurrency 1
figure id-64 id --concurrency 64
figure id-1000 id --concurrency 1000
