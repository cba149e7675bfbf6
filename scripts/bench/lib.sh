# Sourced by the scripts of this folder: starts a cluster, as separate
# processes in a temporary folder, and stops what it started.
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

# BENCH_TLS=1: every process has a certificate, and NOKV_CERTS is an operator's.
certs_of() { :; }
unset NOKV_CERTS
secure() {
  "$nokv" cert init --cluster bench --ca "$dir/ca" >/dev/null
  local name
  for name in root-{1,2,3} coordinator-c{1..9} operator-bench; do
    "$nokv" cert issue --ca "$dir/ca" --role "${name%-*}" --name "${name#*-}" --out "$dir/certs/$name" >/dev/null
  done
  certs_of() { echo --certs "$dir/certs/$1"; }
  export NOKV_CERTS=$dir/certs/operator-bench
}
[ -z "${BENCH_TLS:-}" ] || secure

# root N: a root peer; its process id is pid_of[root-N].
declare -A pid_of
root() {
  start "$dir/root-$1.log" "$nokv" meta-root -addr 127.0.0.1:$((port + $1 - 1)) -workdir "$dir/root-$1" -node-id "$1" \
    -transport-addr 127.0.0.1:$((port + $1 + 2)) -metrics-addr 127.0.0.1:$((port + $1 + 7)) "${peers[@]}" $(certs_of root-$1)
  pid_of[root-$1]=$!
}
coordinator() {
  start "$dir/coordinator-$1.log" "$nokv" coordinator -addr 127.0.0.1:$((port + 5 + $1)) -coordinator-id "c$1" \
    -metrics-addr 127.0.0.1:$((port + 10 + $1)) "${roots[@]}" $(certs_of coordinator-c$1)
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

# Other systems are not built or installed here: BENCH_ETCD and BENCH_PD are
# addresses, HOST:PORT[,HOST:PORT...], of an etcd and a PD that run already, on
# this machine and disk if the comparison is to mean anything. Without them
# NoKV is measured alone.
etcd=${BENCH_ETCD:-} pd=${BENCH_PD:-}

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

# steal_ticks is what the hypervisor took from all processors since the start.
steal_ticks() { awk '/^cpu / { print $9 }' /proc/stat; }

# bench ARGS...: one run, as JSON, on standard output. steal_percent is how much
# of the processors' time the hypervisor gave to others meanwhile.
bench() {
  calm
  local steal=$(steal_ticks) begin=$(date +%s%N)
  "$nokv" bench "$@" --coordinator-addr $coordinator --duration "${seconds}s" -o json >"$dir/one.json"
  # A tick is 10 ms.
  jq --argjson ticks $(($(steal_ticks) - steal)) --argjson nanos $(($(date +%s%N) - begin)) --argjson cores "$(nproc)" \
    '. + { steal_percent: ($ticks * 1e9 / ($nanos * $cores)) }' "$dir/one.json"
}

# of_runs FIELD FUNCTION FILE...: median, min or max of a field of the runs in files.
of_runs() {
  local field=$1 of=$2
  shift 2
  jq -s "def median: sort | .[length / 2 | floor]; map(.$field) | $of" "$@"
}

title() {
  printf '%-28s %12s %25s %9s %9s %9s %7s %7s\n' "" "ops/s" "min to max" "p50 us" "p99 us" "max us" errors "steal %"
}

# show NAME: a row with the medians of $dir/NAME.*.json, and how far its runs
# lie apart. Steal is the worst of them: a figure with more than a few percent
# is the neighbours'.
show() {
  local f=("$dir/$1".*.json)
  printf '%-28s %12.0f %12.0f %12.0f %9.0f %9.0f %9.0f %7.0f %7.1f\n' "$1" "$(of_runs ops_per_s median "${f[@]}")" \
    "$(of_runs ops_per_s min "${f[@]}")" "$(of_runs ops_per_s max "${f[@]}")" "$(of_runs p50_us median "${f[@]}")" \
    "$(of_runs p99_us median "${f[@]}")" "$(of_runs max_us max "${f[@]}")" "$(of_runs errors max "${f[@]}")" "$(of_runs steal_percent max "${f[@]}")"
}

# figure NAME ARGS...: repeated runs, and a row. They are kept in $dir/NAME.*.json.
figure() {
  local name=$1 i
  shift
  for ((i = 1; i <= repeat; i++)); do bench "$@" >"$dir/$name.$i.json"; done
  show "$name"
}

# pair NAME AGAINST ARGS...: in turns, so that both meet the same neighbours, the
# other side and NoKV; a row each, and the median, least and largest ratio. The
# other side's name is that of AGAINST. AGAINST "": NoKV alone.
pair() {
  local name=$1 against=$2 other=${2%%=*} i
  shift 2
  if [ -z "$against" ]; then
    figure "$name" "$@"
    return
  fi
  for ((i = 1; i <= repeat; i++)); do
    bench "$1" --against "$against" "${@:2}" >"$dir/$other-$name.$i.json"
    bench "$@" >"$dir/$name.$i.json"
  done
  show "$other-$name"
  show "$name"
  ratio "$name" "$other" ops_per_s ""
}
# ratio NAME OTHER FIELD WHAT: of a pair that was run.
ratio() {
  local i
  [ -e "$dir/$2-$1.1.json" ] || return 0
  for ((i = 1; i <= repeat; i++)); do
    jq -s ".[1].$3 / .[0].$3" "$dir/$2-$1.$i.json" "$dir/$1.$i.json"
  done | jq -sr --arg other "$2" --arg what "${4:+, $4}" 'sort | map(. * 100 | round / 100) |
    "  nokv / \($other)\($what): \(.[length / 2 | floor]), \(.[0]) to \(.[-1])"'
}
about() {
  echo "# $(date -u +%F), $(nproc) cores, $(go version | cut -d' ' -f3), load $(cut -d' ' -f1 /proc/loadavg): ${repeat} runs of ${seconds} s, medians"
  echo "# etcd: ${etcd:-none (BENCH_ETCD)}, PD: ${pd:-none (BENCH_PD)}, Redis: ${BENCH_REDIS:-none (BENCH_REDIS)}"
}
