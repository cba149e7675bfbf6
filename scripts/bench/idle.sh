#!/usr/bin/env bash
# What a cluster costs that nobody asks: processor time and context switches of
# three root peers and two coordinators. BENCH_ETCD_PIDS="PID PID PID" measures
# an etcd that runs already beside them.
source "$(dirname "$0")/lib.sh"
# BENCH_WAIT seconds pass before the first run: elections and checkpoints are over.
seconds=${BENCH_SECONDS:-20} repeat=${BENCH_REPEAT:-3}

# ticks PID...: user and system time, in ticks of 10 ms.
ticks() { for p in "$@"; do sed 's/.*) //' "/proc/$p/stat"; done | awk '{ n += $12 + $13 } END { print n }'; }
# switches PID...: voluntary and other context switches of all threads.
switches() { for p in "$@"; do cat /proc/"$p"/task/*/status; done | awk '/ctxt_switches/ { n += $2 } END { print n }'; }

declare -A group
order=()
watch() { group[$1]=$2 order+=("$1"); }
cluster 2
leader=$("$nokv" root status "${roots[@]}" -o json | jq 'map(select(.role | test("leader"; "i")))[0].node_id')
for n in 1 2 3; do
  watch "root-$n$([ $n != "$leader" ] || echo ', leader')" "${pid_of[root-$n]}"
done
for n in 1 2; do watch "coordinator-$n" "${pid_of[coordinator-$n]}"; done
watch "all five" "${pid_of[*]}"
[ -z "${BENCH_ETCD_PIDS:-}" ] || watch etcd "$BENCH_ETCD_PIDS"

sleep "${BENCH_WAIT:-10}"
about
printf '%-28s %15s %15s\n' "" "% of a core" "switches/s"
declare -A before_ticks before_switches
for ((i = 1; i <= repeat; i++)); do
  calm
  steal=$(steal_ticks)
  for name in "${order[@]}"; do
    before_ticks[$name]=$(ticks ${group[$name]}) before_switches[$name]=$(switches ${group[$name]})
  done
  sleep "$seconds"
  for name in "${order[@]}"; do
    awk -v name="$name" -v ticks=$(($(ticks ${group[$name]}) - ${before_ticks[$name]})) \
      -v switches=$(($(switches ${group[$name]}) - ${before_switches[$name]})) -v s="$seconds" \
      'BEGIN { printf "%-28s %15.1f %15.0f\n", name, ticks / s, switches / s }'
  done
  awk -v ticks=$(($(steal_ticks) - steal)) -v s="$seconds" -v n="$(nproc)" 'BEGIN { printf "  steal %.1f %%\n", ticks / s / n }'
done
