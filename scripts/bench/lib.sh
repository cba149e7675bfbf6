# Sourced by the scripts of this folder: starts a cluster, or an etcd, as
# separate processes in a temporary folder, and stops what it started.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# BENCH_DIR is where data goes: on the disk to be measured.
bench_parent=${BENCH_DIR:-${TMPDIR:-/tmp}}
# BENCH_PORT: sixteen ports from here on, for each cluster.
port=${BENCH_PORT:-27300}
# BENCH_SECONDS a run, BENCH_REPEAT runs a figure; the median is printed.
seconds=${BENCH_SECONDS:-5} repeat=${BENCH_REPEAT:-5}
dir=$(mktemp -d "$bench_parent/nokv-bench.XXXXXX")
pids=()

finish() {
  trap - EXIT INT TERM
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    kill -TERM "${pids[$i]}" 2>/dev/null || true
    wait "${pids[$i]}" 2>/dev/null || true
  done
  rm -rf -- "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

die() { echo "$(basename "$0"): $*" >&2; exit 1; }
command -v jq >/dev/null || die "needs jq"

nokv=${NOKV:-$dir/nokv}
[ -x "$nokv" ] || (cd "$here" && go build -o "$nokv" ./cmd/nokv)

# start LOG COMMAND...: a process of its own, ended at the end.
start() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 &
  pids+=($!)
}

peers=(-peer 1=127.0.0.1:$((port + 3)) -peer 2=127.0.0.1:$((port + 4)) -peer 3=127.0.0.1:$((port + 5)))
roots=(-root-peer 1=127.0.0.1:$port -root-peer 2=127.0.0.1:$((port + 1)) -root-peer 3=127.0.0.1:$((port + 2)))
coordinator=127.0.0.1:$((port + 6))

# root N: a root peer; its process id is pid_of[root-N].
declare -A pid_of
root() {
  start "$dir/root-$1.log" "$nokv" meta-root -addr 127.0.0.1:$((port + $1 - 1)) -workdir "$dir/root-$1" -node-id "$1" \
    -transport-addr 127.0.0.1:$((port + $1 + 2)) -metrics-addr 127.0.0.1:$((port + $1 + 7)) "${peers[@]}"
  pid_of[root-$1]=$!
}
coordinator() {
  start "$dir/coordinator-$1.log" "$nokv" coordinator -addr 127.0.0.1:$((port + 5 + $1)) -coordinator-id "c$1" \
    -metrics-addr 127.0.0.1:$((port + 10 + $1)) "${roots[@]}"
  pid_of[coordinator-$1]=$!
}

# until_true SECONDS COMMAND...: repeats the command until it succeeds.
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { tail -n 3 "$dir"/*.log >&2; die "gave up: $*"; }
    sleep 0.02
  done
}

# cluster [COORDINATORS]: three root peers and one coordinator, healthy.
cluster() {
  for n in 1 2 3; do root $n; done
  for ((n = 1; n <= ${1:-1}; n++)); do coordinator $n; done
  until_true 60 "$nokv" tso --coordinator-addr $coordinator --timeout 1s
}

# etcd_cluster: three members of etcd with their data beside the cluster's.
etcd_addrs=127.0.0.1:$((port + 20)),127.0.0.1:$((port + 21)),127.0.0.1:$((port + 22))
etcd_cluster() {
  command -v etcd >/dev/null || die "etcd is not installed (Debian: etcd-server)"
  local all="" n
  for n in 0 1 2; do all+="e$n=http://127.0.0.1:$((port + 23 + n)),"; done
  for n in 0 1 2; do
    ETCD_UNSUPPORTED_ARCH= start "$dir/etcd-$n.log" etcd --name e$n --data-dir "$dir/etcd-$n" --log-level error \
      --listen-client-urls http://127.0.0.1:$((port + 20 + n)) --advertise-client-urls http://127.0.0.1:$((port + 20 + n)) \
      --listen-peer-urls http://127.0.0.1:$((port + 23 + n)) --initial-advertise-peer-urls http://127.0.0.1:$((port + 23 + n)) \
      --initial-cluster "${all%,}" --initial-cluster-state new
  done
  until_true 30 "$nokv" bench publish --against "etcd=$etcd_addrs" --concurrency 1 --duration 200ms --warmup 0s
}

# calm waits, for BENCH_CALM seconds at most, until the machine has been idle
# for half a second, so that its other users are not measured.
idle_ticks() { awk '/^cpu / { print $5 + $6 }' /proc/stat; }
calm() {
  local end=$((SECONDS + ${BENCH_CALM:-0})) before
  while [ $SECONDS -lt $end ]; do
    before=$(idle_ticks)
    sleep 0.5
    # A tick is 10 ms: 50 a core are all of it.
    [ $(($(idle_ticks) - before)) -lt $((40 * $(nproc))) ] || return 0
  done
}

# bench ARGS...: one run, as JSON, on standard output.
bench() { calm; "$nokv" bench "$@" --coordinator-addr $coordinator --duration "${seconds}s" -o json; }

# median FIELD FILE...: of that field of the runs in these files.
median() {
  local field=$1
  shift
  jq -s "map(.$field) | sort | .[length / 2 | floor]" "$@"
}

title() { printf '%-28s %12s %12s %9s %9s %9s %7s\n' "" "ops/s" "best" "p50 us" "p99 us" "max us" errors; }

# figure NAME ARGS...: repeated runs, and a row with their medians. The runs
# are kept in $dir/NAME.*.json.
figure() {
  local name=$1 i
  shift
  for ((i = 1; i <= repeat; i++)); do bench "$@" >"$dir/$name.$i.json"; done
  show "$name"
}
show() {
  local f=("$dir/$1".*.json)
  printf '%-28s %12.0f %12.0f %9.0f %9.0f %9.0f %7.0f\n' "$1" "$(median ops_per_s "${f[@]}")" \
    "$(jq -s 'map(.ops_per_s) | max' "${f[@]}")" "$(median p50_us "${f[@]}")" \
    "$(median p99_us "${f[@]}")" "$(median max_us "${f[@]}")" "$(median errors "${f[@]}")"
}
about() { echo "# $(date -u +%F), $(nproc) cores, $(go version | cut -d' ' -f3), load $(cut -d' ' -f1 /proc/loadavg): ${repeat} runs of ${seconds} s, medians"; }
