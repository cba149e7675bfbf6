#!/usr/bin/env bash
# A million regions: what a checkpoint in the background does to publishing,
# how long a peer and a coordinator take to start, what a region costs.
source "$(dirname "$0")/lib.sh"
regions=${BENCH_REGIONS:-1000000}
cluster
about
vars() { curl -s "127.0.0.1:$((port + $1))/debug/vars"; }
# live PORT_OFFSET: bytes of heap found live by the last collection, and what
# counts as such. The next one is due at 1.45 times that (serverGC).
live() { vars "$1" | jq '.memstats.NextGC / 1.45 | floor'; }
rss() { awk '/VmRSS/ { print $2 * 1024 }' "/proc/${pid_of[$1]}/status"; }

empty_live=$(live 11) begin=$SECONDS
"$nokv" bench route --regions "$regions" --coordinator-addr $coordinator --duration 1s --timeout 600s >/dev/null 2>"$dir/make.log"
echo "made $regions regions in $((SECONDS - begin)) s"
sleep 2

# Publishing in short runs; each is one with or without a checkpoint.
writing() { cat "$dir"/root-*.log | awk '/writing checkpoint/ { n++ } /checkpoint written/ { n-- } END { print n + 0 }'; }
begun() { cat "$dir"/root-*.log | grep -c "writing checkpoint" || true; }
seconds=1
for ((i = 1; i <= ${BENCH_RUNS:-60}; i++)); do
  w=$(writing) b=$(begun)
  bench publish --concurrency 64 --warmup 0s >"$dir/run.json"
  if [ "$w" = 0 ] && [ "$(begun)" = "$b" ]; then mv "$dir/run.json" "$dir/quiet-64.$i.json"; else mv "$dir/run.json" "$dir/checkpoint-64.$i.json"; fi
done
title
show quiet-64
ls "$dir"/checkpoint-64.*.json >/dev/null 2>&1 || die "no checkpoint was written in ${BENCH_RUNS:-60} runs: raise BENCH_RUNS"
show checkpoint-64
grep -h "checkpoint written" "$dir"/root-*.log | sed 's/.*took=/  a checkpoint took /' | tail -n 3
du -sh "$dir"/root-1/*checkpoint* | sed 's/^/  /'

# since NANOSECONDS: seconds since then.
since() { awk -v a="$1" -v b="$(date +%s%N)" 'BEGIN { printf "%.2f", (b - a) / 1e9 }'; }
kill -TERM "${pid_of[root-3]}"
wait "${pid_of[root-3]}" || true
from=$(date +%s%N)
root 3
until_true 60 curl -sf 127.0.0.1:$((port + 10))/healthz
echo "root peer restarted and healthy after $(since "$from") s"
kill -KILL "${pid_of[root-3]}"
wait "${pid_of[root-3]}" 2>/dev/null || true
from=$(date +%s%N)
root 3
until_true 60 curl -sf 127.0.0.1:$((port + 10))/healthz
echo "root peer restarted after kill -9 and healthy after $(since "$from") s"
ready() { [ "$(vars 12 | jq -r '"\(.nokv.regions >= '"$regions"') \(.nokv.catch_up_state)"')" = "true $1" ]; }
fresh=$(vars 11 | jq -r .nokv.catch_up_state)
from=$(date +%s%N)
coordinator 2
until_true 60 ready "$fresh"
echo "coordinator has the view after $(since "$from") s"
sleep 1
# Two collections: the first may have begun before the view was whole.
for _ in 1 2; do bench route --regions "$regions" --concurrency 64 >/dev/null; done
echo "coordinator: $(( ($(live 11) - empty_live) / regions )) bytes of live heap a region, $(( $(rss coordinator-1) / 1048576 )) MiB resident"
echo "root peer: $(( $(rss root-1) / 1048576 )) MiB resident"
seconds=${BENCH_SECONDS:-5}
figure "batch128-16 of $regions" route --mode batch --batch 128 --regions "$regions" --concurrency 16
figure "route-64 of $regions" route --regions "$regions" --concurrency 64
